"""Random lives of a node: install, upgrade, edits by others, kills, uninstall; in the end only the edits are left.

Each foreign act is done to the node and to a copy that never saw us. When we are gone the two must be the same.
"""

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.crash.conftest import Covered
from tests.crash.edits import ACTS, CONFIG
from tests.crash.faults import KILLED, NEVER, Fault, call
from tests.crash.nodes import put_payloads
from tests.support.stand_in import CONFIGS
from tests.support.tree import tree

SEQUENCES = int(os.environ.get("SEQUENCES", "12"))
SEED = int(os.environ.get("SEED", "20261121"))
STEPS = (3, 9)
LAST_EFFECT = 110


@pytest.mark.parametrize("engine", CONFIG)
def test_random_history_then_uninstall_leaves_only_foreign_edits(
    engine: str, tmp_path: Path, covered: Covered
) -> None:
    put_payloads(tmp_path)
    kills = acts = verbs = 0
    for sequence in range(SEQUENCES):
        chance = random.Random(f"{SEED} {engine} {sequence}")  # noqa: S311 - lives, not secrets
        node, pure = tmp_path / "node", tmp_path / "pure"
        for root in (node, pure):
            shutil.rmtree(root, ignore_errors=True)
            for name, text in CONFIGS.items():
                (root / name).parent.mkdir(parents=True)
                (root / name).write_text(text)
        story: list[str] = []
        for turn in range(chance.randint(*STEPS)):
            if chance.random() < 0.4:
                act = chance.choice(ACTS)
                for root in (node, pure):
                    act(root, engine, turn)
                story.append(act.__name__)
                acts += 1
                continue
            where = ["--host-root", str(node), "--restart-mode", "none"]
            source = ["--toolkit-source", str(tmp_path / chance.choice(["one", "two"]))]
            default = ["--set-as-default"] if chance.random() < 0.5 else []
            verb = chance.choice(["install", "install", "uninstall"])
            fault = Fault(chance.randrange(LAST_EFFECT)) if chance.random() < 0.5 else NEVER
            code = call([verb, *where, *source, *default, "--runtime", engine], fault)
            story.append(f"{verb} {code}")
            assert code in ({0} if fault is NEVER else {0, KILLED}), story
            verbs += 1
            kills += code == KILLED

        done = call(["uninstall", "--host-root", str(node), "--restart-mode", "none"])

        assert done == 0, story
        left, wanted = tree(node), tree(pure)
        differs = {name: (left.get(name), wanted.get(name)) for name in {*left, *wanted}}
        assert {name: pair for name, pair in differs.items() if pair[0] != pair[1]} == {}, story
    covered(f"random lives, seed {SEED}", engine, SEQUENCES, SEQUENCES)
    covered("random lives: verbs that were killed", engine, kills, verbs)
    covered("random lives: acts of others", engine, acts, acts)
