"""While ``run`` waits: status, its probe, plan, a second install and reconcile never contradict one another."""

import os
import random
import shutil
from itertools import count
from pathlib import Path

import pytest

from tests.crash.edits import ACTS, CONFIG
from tests.crash.faults import call
from tests.support.looks import asked
from tests.support.site import Site
from tests.support.waiting import until

SEQUENCES = int(os.environ.get("SEQUENCES", "1"))
SEED = int(os.environ.get("SEED", "20261121"))
GOLDEN = Path(__file__).parent.parent / "golden"
BEFORE = {engine: sorted((GOLDEN / engine).glob("*/before")) for engine in CONFIG}
OK, FAILED, LOCKED, WOULD_CHANGE = 0, 1, 3, 10
UNASKED = "it is not known what "  # what keeps a node from being ready on which no engine runs


class Node:
    """A node on whose root no engine runs, while ``run`` waits and only tells of drift."""

    def __init__(self, directory: Path, chance: random.Random, engine: str) -> None:
        self.site = Site(directory)
        shutil.copytree(chance.choice(BEFORE[engine]), self.site.root, dirs_exist_ok=True)
        self.more = ["--set-as-default"] if chance.random() < 0.5 else []

    def says(self, verb: str) -> int:
        return call(self.site.command(verb, *self.more)[3:])

    def truth(self) -> tuple[int, str, int]:
        """Return what status and plan end with, and what the probe has against the node that status does not tell."""
        status, probe = self.site.status(), self.site.status("--ready")
        assert probe.returncode == FAILED, "no engine runs"
        why = probe.stdout.strip()
        told = why.rpartition(": ")[2] in status.stdout and not why.startswith(UNASKED)
        return status.returncode, "" if told else why[: len(UNASKED)], self.says("plan")

    def agreed(self, story: list[str]) -> int:
        """Return what plan ends with, as soon as all say the same: a run that waits sees an act some time later."""
        found = self.truth()

        def all_say_the_same() -> bool:
            nonlocal found
            found = self.truth()
            return found in {(OK, UNASKED, OK), (FAILED, "", WOULD_CHANGE), (FAILED, "", FAILED)}

        until(all_say_the_same, lambda: (story, found, self.site.status().stdout))
        return found[2]

    def reconciled(self, story: list[str]) -> None:
        """Ask the run that waits, and see that it does what plan has told, and that all is good then."""
        planned = self.agreed(story)
        assert self.says("install") == LOCKED, story
        done = asked(self.site)
        assert done.returncode == (FAILED if planned == FAILED else OK), (story, planned, done)
        if planned != FAILED:
            said = "repaired" if planned == WOULD_CHANGE else "nothing to do"
            assert done.stdout.splitlines()[-1] == said, (story, planned, done)
            assert self.agreed(story) == OK, story


@pytest.mark.parametrize("engine", CONFIG)
def test_none_contradicts_another_while_run_waits(engine: str, tmp_path: Path) -> None:
    for sequence in range(SEQUENCES):
        chance = random.Random(f"{SEED} {engine} {sequence}")  # noqa: S311 - lives, not secrets
        nodes = (Node(tmp_path / f"{sequence}-{attempt}", chance, engine) for attempt in count())
        # A case that is refused, or depends on the engine's release, is none here: no engine runs.
        node = next(node for node in nodes if node.says("plan") == WOULD_CHANGE)
        with node.site.running("--drift", "report", *node.more) as run:
            story = ["run"]
            assert node.agreed(story) == OK
            for turn in range(chance.randint(2, 4)):
                act = chance.choice(ACTS)
                act(node.site.root, engine, turn)
                story.append(act.__name__)
                node.agreed(story)
                if chance.random() < 0.5:
                    node.reconciled(story)
                    story.append("reconcile")
            node.reconciled(story)
            run.terminate()
            assert run.wait(30) == OK
