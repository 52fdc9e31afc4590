"""An administrator adds to each reviewed config after an install: it stays what it is, and leads back to his text."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import entries_for, plan_install, plan_undo
from installer.config_text import WantedKey, same, value_at
from installer.config_text.change import apply
from installer.engines import ENGINES
from installer.engines.config_texts import predict_from_texts, syntax_of, text_of, tree_of
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.errors import InstallerError
from installer.model.effective import find_disturbances
from installer.model.facts import Record
from installer.model.files import File
from tests.change.golden import Case, Disk, accepted, cases, final_of, undo_facts, written

SHIM = "io.containerd.runc.v2"
CRI = (("registry", "config_path"), ("sandbox_image",), ("containerd", "runtimes", "mine", "runtime_type"))
ADDITIONS = {
    "containerd": [
        *(WantedKey(("plugins", plugin, *key), SHIM) for plugin in (V2_PLUGIN, V3_PLUGIN) for key in CRI),
        WantedKey(("debug", "level"), "warn"),
    ],
    "docker": [WantedKey(("debug",), value=True)],
    "crio": [WantedKey(("crio", "metrics", "enable_metrics"), value=True)],
}


def with_addition(disk: Disk, path: PurePosixPath, added: WantedKey) -> Disk:
    """Return a disk with what somebody adds to a file; he begins one where there is none.

    Raises:
        InstallerError: the file says something there already.
    """
    now = disk.get(path)
    said = text_of(now, path)
    text, edits = apply(said, [added], syntax_of(path, said), name=str(path))
    if not edits or edits[-1].before is not None:
        raise InstallerError(f"add to {path} (it says so)", remedy="choose another key")
    return {**disk, path: replace(now, content=text.encode()) if now else File(text.encode())}


def takes(case: Case, added: WantedKey) -> bool:
    """Tell whether something can be added to a case at all: it may say so, or stand in the way of it."""
    try:
        return bool(with_addition(case.before, ENGINES[case.engine].config, added))
    except InstallerError:
        return False


EDITED = [case for engine in ADDITIONS for case in cases(engine) if not case.said.get("refused")]


def install(case: Case, disk: Disk, held: Record, saved: dict[str, File]) -> tuple[Record, Disk]:
    """Return what is held after an install over a disk, and the disk; ``saved`` are the copies."""
    plan = accepted(plan_install(case.facts(disk, held, originals(held, saved)), case.options))
    saved |= {file.digest: file for file in plan.backups}
    return final_of(plan), written(disk, plan)


def originals(held: Record, saved: dict[str, File]) -> Disk:
    return {row.path: saved[row.original.digest] if row.original else None for row in held.configs}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", EDITED, ids=lambda case: f"{case.engine}-{case.path.name}")
def test_keys_added_after_an_install_outlive_the_undo(case: Case) -> None:
    for added in ADDITIONS[case.engine]:
        # Which of both ids counts depends on the release.
        if (V3_PLUGIN not in added.key or "engine_version" in case.said) and takes(case, added):
            check_addition(case, added)


def check_addition(case: Case, added: WantedKey) -> None:
    saved: dict[str, File] = {}
    first, after = install(case, case.before, Record(), saved)
    path = ENGINES[case.engine].config
    edited, pure = with_addition(after, path, added), with_addition(case.before, path, added)

    second, lived = install(case, edited, first, saved)
    _, again = install(case, lived, second, saved)

    assert again == lived
    facts = replace(undo_facts(case, lived, second), originals=originals(second, saved))
    back = written(lived, plan_undo(facts, case.options))
    names = {entry.name for entry in entries_for(case.options)}
    (engine,) = case.facts(edited, first, {}).engines
    assert [
        *find_disturbances(predict_from_texts(engine, edited), predict_from_texts(engine, back), names)
    ] == []
    assert back.keys() == pure.keys()
    for name, file in back.items():
        left, wanted = dict(tree_of(file, name)), dict(tree_of(pure[name], name))
        if "version" in left and "version" not in wanted:
            assert left.pop("version") == 2  # his additions were written to a file that said so
        if (
            "runtimes" in added.key and path == name
        ):  # as is the built-in one, which a table takes away in 1.x
            ours, his = (value_at(tree, added.key[:4]) for tree in (left, wanted))
            assert isinstance(ours, dict)
            assert isinstance(his, dict)
            if "runc" not in his and "runc" in ours:
                assert ours.pop("runc") == {"runtime_type": SHIM}
        assert same(left, wanted), (added, name)
