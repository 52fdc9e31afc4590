"""Random lives of a node: verbs, kills and what others do to a config.

In the end only what others did is left, and on the way no verb contradicts another.
"""

import os
import random
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.crash.faults import KILLED, NEVER, Fault, call
from tests.crash.nodes import GOLDEN, put_configs, put_payloads
from tests.support.looks import asked
from tests.support.site import HOME, Site
from tests.support.tree import tree
from tests.support.waiting import until

SEQUENCES = int(os.environ.get("SEQUENCES", "4"))
SEED = int(os.environ.get("SEED", "20261121"))
LAST_EFFECT = 110
CONFIG = {
    "docker": "etc/docker/daemon.json",
    "containerd": "etc/containerd/config.toml",
    "crio": "etc/crio/crio.conf",
}
BEFORE = {engine: sorted((GOLDEN / engine).glob("*/before")) for engine in CONFIG}
OK, FAILED, LOCKED, WOULD_CHANGE = 0, 1, 3, 10
UNASKED = "it is not known what "  # what keeps a node from being ready on which no engine runs
Act = Callable[[Path, str, int], None]


def _adds_a_key(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    if not path.exists():
        return
    text = path.read_text()
    if engine == "docker":
        path.write_text(text.replace("{", f'{{"mine-{turn}": {turn}, ', 1) if text.strip() else "")
    else:
        path.write_text(f"{text}# mine {turn}\n")


def _replaces_the_inode(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    if path.exists():
        copy = path.with_name(f"copy-{turn}")
        shutil.copy(path, copy)
        copy.rename(path)


def _changes_the_mode(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    if path.exists():
        path.chmod((0o600, 0o644, 0o640)[turn % 3])


def _starts_again(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    path.write_text(f'{{"fresh": {turn}}}\n' if engine == "docker" else f"# fresh {turn}\nversion = 2\n")


def _adds_a_neighbour(root: Path, engine: str, turn: int) -> None:
    (root / CONFIG[engine]).with_name(f"neighbour-{turn}").write_text("1\n")


def _spoils(pattern: str, spoil: Callable[[Path], object]) -> Act:
    """Return an act on what is ours alone, by the pattern of its path."""

    def act(root: Path, _engine: str, _turn: int) -> None:
        for path in (root / HOME).glob(pattern):
            spoil(path)

    act.__name__ = f"spoils {pattern}"
    return act


ACTS: tuple[Act, ...] = (
    *(_adds_a_key, _adds_a_key, _replaces_the_inode),
    *(_changes_the_mode, _starts_again, _adds_a_neighbour),
)
OF_OURS = (
    _spoils("ledger", Path.unlink),
    _spoils("ledger", lambda path: path.chmod(0o644)),
    _spoils("backups", shutil.rmtree),
    _spoils("backups/*", lambda path: path.write_text("")),
    _spoils("versions/*/.config/nvidia-container-runtime/config.toml", Path.unlink),
)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("engine", CONFIG)
def test_random_history_then_uninstall_leaves_only_foreign_edits(engine: str, tmp_path: Path) -> None:
    """Each foreign act is done to the node and to a copy that never saw us: in the end the two are the same."""
    put_payloads(tmp_path)
    node, pure = tmp_path / "node", tmp_path / "pure"
    where = ["--host-root", str(node), "--restart-mode", "none"]
    for sequence in range(SEQUENCES):
        chance = random.Random(f"{SEED} {engine} {sequence}")  # noqa: S311 - lives, not secrets
        for root in (node, pure):
            shutil.rmtree(root, ignore_errors=True)
            put_configs(root)
        story: list[str] = []
        for turn in range(chance.randint(3, 9)):
            if chance.random() < 0.4:
                act = chance.choice(ACTS)
                for root in (node, pure):
                    act(root, engine, turn)
                story.append(act.__name__)
                continue
            source = ["--toolkit-source", str(tmp_path / chance.choice(["one", "two"]))]
            default = ["--set-as-default"] if chance.random() < 0.5 else []
            verb = chance.choice(["install", "install", "uninstall"])
            fault = Fault(chance.randrange(LAST_EFFECT)) if chance.random() < 0.5 else NEVER
            code = call([verb, *where, *source, *default, "--runtime", engine], fault)
            story.append(f"{verb} {code}")
            assert code in ({0} if fault is NEVER else {0, KILLED}), story

        assert call(["uninstall", *where]) == 0, story

        left, wanted = tree(node).items(), tree(pure).items()
        assert {*left} ^ {*wanted} == set(), story


class Node(Site):
    """A node on which no engine runs, as one golden case starts; as its owner has it where there is none."""

    def __init__(self, directory: Path, before: Path, chance: random.Random) -> None:
        super().__init__(directory)
        if before.is_dir():
            shutil.copytree(before, self.root, dirs_exist_ok=True)
        self.more = ["--set-as-default"] if chance.random() < 0.5 else []

    def says(self, verb: str) -> int:
        return call(self.command(verb, *self.more)[3:])

    def truth(self) -> tuple[int, int]:
        """Return what status and plan end with."""
        return call(["status", "--host-root", str(self.root)]), self.says("plan")

    def agreed(self, story: list[str]) -> int:
        """Return what plan ends with, and see that status says the same."""
        found = self.truth()
        assert found in {(OK, OK), (FAILED, WOULD_CHANGE), (FAILED, FAILED)}, (story, found)
        return found[1]

    def repaired(self, story: list[str]) -> None:
        """Install, and see that all agree before and after."""
        planned = self.agreed(story)
        code = self.says("install")
        assert (code == 0) == (planned in {OK, WOULD_CHANGE}), (story, planned, code)
        if code == 0:
            assert self.truth() == (OK, OK), story


class Waiting(Node):
    """One on which ``run`` waits and only tells of drift."""

    def agrees(self) -> bool:
        """Tell whether the probe has nothing against the node that status does not tell."""
        status, probe = self.status(), self.status("--ready")
        assert probe.returncode == FAILED, "no engine runs"
        why = probe.stdout.strip()
        told = why.rpartition(": ")[2] in status.stdout and not why.startswith(UNASKED)
        return told if status.returncode else why.startswith(UNASKED)

    def agreed(self, story: list[str]) -> int:
        """Return that as soon as all say the same: a run that waits sees an act some time later."""
        until(self.agrees, lambda: (story, self.truth(), self.status().stdout))
        return super().agreed(story)

    def repaired(self, story: list[str]) -> None:
        """Ask the run that waits, and see that it does what plan has told, and that all is good then."""
        planned = self.agreed(story)
        assert self.says("install") == LOCKED, story
        done = asked(self)
        assert done.returncode == (FAILED if planned == FAILED else OK), (story, planned, done)
        if planned != FAILED:
            said = "repaired" if planned == WOULD_CHANGE else "nothing to do"
            assert done.stdout.splitlines()[-1] == said, (story, planned, done)
            assert self.agreed(story) == OK, story


def _live(node: Node, engine: str, chance: random.Random, acts: tuple[Act, ...]) -> None:
    """See after each of some acts that all say the same, also once it is repaired."""
    story = ["install"]
    assert node.agreed(story) == OK
    for turn in range(chance.randint(2, 4)):
        act = chance.choice(acts)
        act(node.root, engine, turn)
        story.append(act.__name__)
        node.agreed(story)
        if chance.random() < 0.4:
            node.repaired(story)
            story.append("repaired")
    node.repaired(story)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "before",
    [
        pytest.param(path, id=str(path.parent.relative_to(GOLDEN)))
        for each in BEFORE.values()
        for path in each
    ],
)
def test_status_plan_and_a_second_install_never_contradict_one_another(before: Path, tmp_path: Path) -> None:
    for sequence in range(1 + SEQUENCES // 100):
        chance = random.Random(f"{SEED} {before.parent.name} {sequence}")  # noqa: S311 - lives, not secrets
        node = Node(tmp_path / str(sequence), before, chance)
        if (refused := node.says("install")) == OK:
            _live(node, before.parents[1].name, chance, ACTS)
        else:  # also where it depends on the release of an engine, for none runs here
            assert node.says("plan") == refused


@pytest.mark.sampled(16)
@pytest.mark.parametrize("engine", CONFIG)
def test_random_lives_with_damage_to_our_own_files_end_as_they_should(engine: str, tmp_path: Path) -> None:
    for sequence in range(SEQUENCES):
        chance = random.Random(f"{SEED} {engine} {sequence}")  # noqa: S311 - lives, not secrets
        node = Node(tmp_path / str(sequence), tmp_path / "nothing", chance)
        assert node.says("install") == OK
        _live(node, engine, chance, (*ACTS, *OF_OURS))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("act", OF_OURS)
def test_damage_to_our_own_files_is_reported_by_status_and_plan_until_an_install(
    act: Act, installed: Site
) -> None:
    act(installed.root, "", 0)

    for agreed in ((FAILED, WOULD_CHANGE), (OK, OK)):
        assert (installed.status().returncode, installed.call("plan").returncode) == agreed
        installed.install()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("engine", CONFIG)
def test_none_contradicts_another_while_run_waits(engine: str, tmp_path: Path) -> None:
    for sequence in range(1 + SEQUENCES // 100):
        chance = random.Random(f"{SEED} {engine} {sequence}")  # noqa: S311 - lives, not secrets
        befores = ((tmp_path / f"{sequence}-{each}", chance.choice(BEFORE[engine])) for each in count())
        nodes = (Waiting(directory, before, chance) for directory, before in befores)
        # A case that is refused, or depends on the engine's release, is none here: no engine runs.
        node = next(node for node in nodes if node.says("plan") == WOULD_CHANGE)
        with node.running("--drift", "report", *node.more) as run:
            _live(node, engine, chance, ACTS)
            run.terminate()
            assert run.wait(30) == OK
