"""Print the table: ours beside the limit, in one run. Say ``python -m benchmarks [PART...]``.

It ends with 1 where a row is over its limit.
"""

import compileall
import sys
from collections.abc import Callable

import installer
from benchmarks import big, fleet, node, nri, process, start, undo, wrapper
from benchmarks.rows import Row

Part = Callable[[], tuple[list[Row], str]]


def main() -> int:
    """Measure the parts that are named, or everything that can be measured here; print rows and notes."""
    # As in the image: a node sees this tree read-only, and would compile all of it at each start.
    compileall.compile_dir(next(iter(installer.__path__)), quiet=1)
    parts: dict[str, Part] = {
        "undo": _without_note(undo.measure),
        "process": _without_note(process.measure),
        "start": _without_note(start.measure),
        "wrapper": _without_note(wrapper.measure),
        "big": _without_note(big.measure),
        "fleet": _without_note(fleet.measure),
        "node": node.measure,
        "nri": nri.measure,
    }
    names = sys.argv[1:] or [*parts]
    if unknown := set(names) - parts.keys():
        sys.exit(f"no part is called {', '.join(sorted(unknown))}; take some of {', '.join(parts)}")
    rows: list[Row] = []
    notes: list[str] = []
    for name in names:
        sys.stderr.write(f"measuring {name} ...\n")
        measured, note = parts[name]()
        for row in measured:  # what was measured stays where a later part fails
            sys.stderr.write(f"  {row.name}: {row.ours:.2f} of {row.limit:.2f} {row.unit}\n")
        rows += measured
        notes.append(note)
    width = max((len(row.name) for row in rows), default=0)
    print(f"{'':<{width}}  {'ours':>10}  {'limit':>10}         NVIDIA v1.20.0")
    for row in rows:
        verdict = "ok " if row.within else "OVER"
        print(
            f"{row.name:<{width}}  {row.ours:>10.2f}  {row.limit:>10.2f} {row.unit:<5} {verdict} {row.theirs}"
        )
    print(*filter(None, notes), sep="\n")
    return int(not all(row.within for row in rows))


def _without_note(measure: Callable[[], list[Row]]) -> Part:
    return lambda: (measure(), "")


sys.exit(main())
