"""Print the table: ours beside the limit, in one run."""

import compileall
import sys

import installer
from benchmarks import big, fleet, node, nri, process, start, undo, wrapper


def main() -> None:
    """Measure everything that can be measured here and print it."""
    # As in the image: a node sees this tree read-only, and would compile all of it at each start.
    compileall.compile_dir(next(iter(installer.__path__)), quiet=1)
    rows = undo.measure()
    for name, part in (
        ("process", process.measure),
        ("starts", start.measure),
        ("wrapper", wrapper.measure),
        ("big nodes", big.measure),
        ("a fleet", fleet.measure),
    ):
        sys.stderr.write(f"measuring {name} ...\n")
        rows += part()
    sys.stderr.write("measuring a node ...\n")
    on_node, said = node.measure()
    rows += on_node
    sys.stderr.write("measuring the NRI plugin ...\n")
    of_nri, told = nri.measure()
    rows += of_nri
    width = max(len(row.name) for row in rows)
    print(f"{'':<{width}}  {'ours':>10}  {'limit':>10}         NVIDIA v1.20.0")
    for row in rows:
        verdict = "ok " if row.within else "OVER"
        print(
            f"{row.name:<{width}}  {row.ours:>10.2f}  {row.limit:>10.2f} {row.unit:<5} {verdict} {row.theirs}"
        )
    print(said)
    print(told)


main()
