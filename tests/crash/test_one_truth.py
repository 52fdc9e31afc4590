"""status, plan and a second install never contradict one another, after each act of random lives and golden cases."""

import os
import random
from pathlib import Path, PurePosixPath

import pytest

from installer import daemon, status
from installer.decide.errors import Exit, InstallerError
from installer.decide.options import Options, RestartMode
from installer.demo import CONFIGS, stand_in_payload
from installer.host.files import Host
from installer.show import show_plan
from tests.crash.faults import NEVER, call
from tests.crash.test_sequences import ACTS, CONFIG, _starts_again
from tests.decide.golden import Case, cases

SEQUENCES = int(os.environ.get("SEQUENCES", "12"))
SEED = int(os.environ.get("SEED", "20261121"))
GOLDEN = [
    pytest.param(case, id=f"{engine}-{case.path.name}")
    for engine in CONFIG
    for case in cases(engine)
    if not (case.said.get("refused") or "drop_in" in case.said or "hook" in case.said)
]
# A CRI-O whose default runtime has lost its table: ours would inherit less, which plan alone tells.
ALIKE = {
    engine: [act for act in dict.fromkeys(ACTS) if engine != "crio" or act is not _starts_again]
    for engine in CONFIG
}
Truth = tuple[bool, int]


def truth(options: Options) -> Truth:
    """Return whether status finds all good, and what plan ends with."""
    host = Host.under(options.host_root, options.mounts)
    good = all(line.good for line in status.told(host, options))
    try:
        planned = int(show_plan(options))
    except InstallerError as error:
        planned = int(error.exit)
    return good, planned


def agreed(options: Options, story: list[str]) -> Truth:
    found = truth(options)
    assert found in {(True, Exit.OK), (False, Exit.WOULD_CHANGE), (False, Exit.FAILED)}, (story, found)
    return found


def repaired(options: Options, story: list[str]) -> None:
    """Install, and see that all agree before and after."""
    _, planned = agreed(options, story)
    code = call(daemon.install, options, NEVER)
    assert (code == 0) == (planned in {Exit.OK, Exit.WOULD_CHANGE}), (story, planned, code)
    if code == 0:
        assert truth(options) == (True, Exit.OK), story


def options_of(root: Path, engine: str, *, default: bool) -> Options:
    stand_in_payload(root.with_name("payload"))
    return Options(
        engines=(engine,),
        toolkit_source=PurePosixPath(root.with_name("payload")),
        host_root=PurePosixPath(root),
        restart_mode=RestartMode.NONE,
        set_as_default=default,
    )


@pytest.mark.parametrize("engine", CONFIG)
def test_none_contradicts_another_after_any_act_of_random_lives(engine: str, tmp_path: Path) -> None:
    for sequence in range(SEQUENCES):
        chance = random.Random(f"{SEED} {engine} {sequence}")  # noqa: S311 - lives, not secrets
        root = tmp_path / f"{sequence}/node"
        for name, text in CONFIGS.items():
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(text)
        options = options_of(root, engine, default=chance.random() < 0.5)
        assert call(daemon.install, options, NEVER) == 0
        story = ["install"]
        for turn in range(chance.randint(3, 6)):
            act = chance.choice(ALIKE[engine])
            act(root, engine, turn)
            story.append(act.__name__)
            agreed(options, story)
            if chance.random() < 0.4:
                repaired(options, story)
                story.append("install")


@pytest.mark.parametrize("case", GOLDEN)
def test_none_contradicts_another_in_a_golden_case(case: Case, tmp_path: Path) -> None:
    root = tmp_path / "node"
    root.mkdir()
    for path, file in case.before.items():
        assert file is not None
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.relative_to("/")).write_bytes(file.content)
    options = options_of(root, case.engine, default=case.said.get("set_as_default", False))
    if call(daemon.install, options, NEVER) != 0:
        pytest.skip("this one depends on the engine's release, and none runs here")

    assert truth(options) == (True, Exit.OK)
    chance = random.Random(f"{SEED} {case.path.name}")  # noqa: S311 - acts, not secrets
    acts = chance.sample(ALIKE[case.engine], 2)
    for turn, act in enumerate(acts):
        act(root, case.engine, turn)
    repaired(options, [act.__name__ for act in acts])
