"""status, plan and a second install never contradict one another, after each act of random lives and golden cases."""

import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.change.golden import Case, cases
from tests.crash.edits import ACTS, CONFIG, Act
from tests.crash.faults import call
from tests.support.stand_in import CONFIGS, stand_in_payload

SEQUENCES = int(os.environ.get("SEQUENCES", "12"))
SEED = int(os.environ.get("SEED", "20261121"))
GOLDEN = [
    pytest.param(case, id=f"{engine}-{case.path.name}")
    for engine in CONFIG
    for case in cases(engine)
    if not (case.said.get("refused") or "drop_in" in case.said or "hook" in case.said)
]
OK, FAILED, WOULD_CHANGE = 0, 1, 10
USUAL = {name: text.encode() for name, text in CONFIGS.items()}
HOME = "usr/local/nvidia/.toolkit-installer"


def _on(pattern: str, spoil: Callable[[Path], object]) -> Act:
    """Return an act on what is ours alone, by the pattern of its path."""

    def act(root: Path, _engine: str, _turn: int) -> None:
        for path in (root / HOME).glob(pattern):
            spoil(path)

    act.__name__ = f"spoils {pattern}"
    return act


OF_OURS = (
    _on("ledger", Path.unlink),
    _on("ledger", lambda path: path.chmod(0o644)),
    _on("backups", shutil.rmtree),
    _on("backups/*", lambda path: path.write_text("")),
    _on("versions/*/.config/nvidia-container-runtime/config.toml", Path.unlink),
)


class Node:
    """A node without an engine that runs, and the words by which all verbs are called on it."""

    def __init__(self, root: Path, files: Mapping[str, bytes], engine: str, *, default: bool) -> None:
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        source = root.with_name("payload")
        stand_in_payload(source)
        self.where = ["--host-root", str(root)]
        self.wanted = ["--runtime", engine, "--toolkit-source", str(source), "--restart-mode", "none"]
        self.wanted += ["--set-as-default"] if default else []

    def install(self) -> int:
        return call(["install", *self.where, *self.wanted])

    def truth(self) -> tuple[int, int]:
        """Return what status and plan end with."""
        return call(["status", *self.where]), call(["plan", *self.where, *self.wanted])

    def agreed(self, story: list[str]) -> int:
        found = self.truth()
        assert found in {(OK, OK), (FAILED, WOULD_CHANGE), (FAILED, FAILED)}, (story, found)
        return found[1]

    def repaired(self, story: list[str]) -> None:
        """Install, and see that all agree before and after."""
        planned = self.agreed(story)
        code = self.install()
        assert (code == 0) == (planned in {OK, WOULD_CHANGE}), (story, planned, code)
        if code == 0:
            assert self.truth() == (OK, OK), story


@pytest.mark.parametrize("life", range(SEQUENCES))
@pytest.mark.parametrize("engine", CONFIG)
def test_none_contradicts_another_after_any_act_of_a_random_life(
    engine: str, life: int, tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {engine} {life}")  # noqa: S311 - lives, not secrets
    root = tmp_path / "node"
    node = Node(root, USUAL, engine, default=chance.random() < 0.5)
    assert node.install() == 0
    story = ["install"]
    for turn in range(chance.randint(3, 6)):
        act = chance.choice((*ACTS, *OF_OURS))
        act(root, engine, turn)
        story.append(act.__name__)
        node.agreed(story)
        if chance.random() < 0.4:
            node.repaired(story)
            story.append("install")


@pytest.mark.parametrize("act", OF_OURS)
def test_who_spoils_what_is_ours_alone_has_each_verb_tell_that_an_install_mends_it(
    act: Act, tmp_path: Path
) -> None:
    root = tmp_path / "node"
    node = Node(root, USUAL, "containerd", default=False)
    assert node.install() == 0
    act(root, "containerd", 0)

    assert node.truth() == (FAILED, WOULD_CHANGE)

    assert node.install() == 0
    assert node.truth() == (OK, OK)


@pytest.mark.parametrize("case", GOLDEN)
def test_none_contradicts_another_in_a_golden_case(case: Case, tmp_path: Path) -> None:
    root = tmp_path / "node"
    root.mkdir()
    files = {str(path.relative_to("/")): file.content for path, file in case.before.items() if file}
    node = Node(root, files, case.engine, default=case.said.get("set_as_default", False))
    if node.install() != 0:
        pytest.skip("this one depends on the engine's release, and none runs here")

    assert node.truth() == (OK, OK)
    chance = random.Random(f"{SEED} {case.path.name}")  # noqa: S311 - acts, not secrets
    acts = chance.sample([*dict.fromkeys(ACTS)], 2)
    for turn, act in enumerate(acts):
        act(root, case.engine, turn)
    node.repaired([act.__name__ for act in acts])
