"""``make fresh``: the README's commands in Debians that have nothing else, entered as a machine of their own."""

import sys
import tempfile
import time
from pathlib import Path

from tests.engines.cache import PROJECT, cache
from tests.engines.conftest import missing, must_run
from tests.fresh.root import Fresh, prepared

# The whole on the oldest Python that we support; where it was seen, the newer Debian has to show that what
# is fetched runs there too: every test that fetches something, and the documents' commands.
FETCHING = (
    "tests/deploy tests/decide/test_wrapper.py tests/crash/test_system_calls.py tests/crash/test_power.py"
)
COMMANDS = {
    "bookworm": ("make", "demo", "unit"),
    "trixie": ("make", "demo", "unit", f"TESTS={FETCHING}"),
}


def main(suites: list[str]) -> int:
    """Run each suite's command; return 1 where one failed or changed the machine."""
    if lack := missing():
        print(f"no fresh machine is made here: {lack}")
        return 1 if must_run() else 0
    (PROJECT / "build").mkdir(exist_ok=True)
    failed = [suite for suite in suites or COMMANDS if not _passes(suite)]
    return 1 if failed else 0


def _passes(suite: str) -> bool:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache(), prefix="root-run-") as directory:
        fresh = prepared(suite, Path(directory), PROJECT / "build" / "fresh.log")
        print(f"fresh {suite}: {' '.join(COMMANDS[suite])}", flush=True)
        code = fresh.run(*COMMANDS[suite])
        changed = _told(fresh)
    print(f"fresh {suite}: exit code {code} after {time.monotonic() - started:.0f} s", flush=True)
    return code == 0 and not changed


def _told(fresh: Fresh) -> list[str]:
    fetched, changed = fresh.fetched(), fresh.changed()
    print(f"fetched into the project's own folder, {len(fetched)} packages:", *fetched)
    for file in changed:
        print(f"BAD changed on the machine: /{file}")
    return changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
