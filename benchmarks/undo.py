"""How many configs come back byte for byte: all golden cases that are accepted."""

from benchmarks.rows import Row
from installer.change.plan import plan_undo
from tests.change.golden import cases, installed, undo_facts, written


def measure() -> list[Row]:
    """Return the number of cases whose files did not come back."""
    lost = total = 0
    for engine in ("docker", "containerd", "crio"):
        for case in cases(engine):
            if case.said.get("refused"):
                continue
            total += 1
            _, after, held = installed(case)
            back = plan_undo(undo_facts(case, after, held), case.options)
            lost += written(after, back) != case.before
    return [Row(f"configs not restored byte for byte, of {total}", lost, 0, "files", "167 of 167 rewritten")]
