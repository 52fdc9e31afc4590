"""``make fresh``: the README's commands in Debians that have nothing else, entered as a machine of their own.

``make first-hour`` is as much of it as CI has time for: the older Debian, with the tests for which something is fetched.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.documents import Command, starting
from tests.engines.cache import PROJECT, cache
from tests.engines.conftest import missing
from tests.fresh.root import Fresh, prepared

# Everything on the oldest Python that we support. The newer Debian has to show that what is fetched runs there too.
FETCHING = (
    "tests/deploy tests/decide/test_wrapper.py tests/crash/test_system_calls.py tests/crash/test_power.py"
)
COMMANDS = {
    "bookworm": ("make", "demo", "unit", "MARKS="),
    "trixie": ("make", "demo", "unit", "MARKS=", f"TESTS={FETCHING}"),
}
# Each kind of what is fetched (kubectl, Helm, busybox, strace) and each document, and no more than a few minutes.
FEW = (
    "tests/deploy tests/decide/test_wrapper.py tests/crash/test_strace.py tests/test_documents.py "
    "tests/test_command_line.py"
)
FIRST_HOUR = {"bookworm": ("make", "demo", "unit", f"TESTS={FEW}")}
# The README's host is that machine. No engine runs on it, and the toolkit is a stand-in; all else is as written.
HOST = {"TOOLKIT_INSTALLER_RUNTIME": "docker", "TOOLKIT_INSTALLER_RESTART_MODE": "none"}
STAND_IN = (
    "/opt/toolkit-installer/bin/python -c "
    "'from pathlib import Path; from tests.support.stand_in import stand_in_payload as put; put(Path(\"/opt/nvidia-toolkit\"))'"
)


def main(words: list[str]) -> int:
    """Run each suite's command; return 1 where one failed or changed the machine."""
    commands = FIRST_HOUR if words == ["first-hour"] else COMMANDS
    if lack := missing():
        print(f"no fresh machine is made here: {lack}", flush=True)
        return 1
    (PROJECT / "build").mkdir(exist_ok=True)
    failed = [
        suite for suite, command in commands.items() if not (_passes(suite, command) and _installs(suite))
    ]
    return 1 if failed else 0


def _installs(suite: str) -> bool:
    """Install the program on the machine itself, use and remove it, by the commands of the README."""
    setup = [each for each in starting("apt-get", "python3 -m venv", "/opt/", "ln ") if _in_readme(each)]
    use = [each for each in starting("toolkit-installer") if _in_readme(each)]
    script = [
        "set -ex",
        "apt-get update --quiet",
        *(each.text.removeprefix("sudo ") for each in setup),
        STAND_IN,
    ]
    script += [f"{each.text.removeprefix('sudo ')} || [ $? = 10 ]" for each in use]
    script += ["toolkit-installer status", "toolkit-installer uninstall", "! toolkit-installer status"]
    script += [each.text.removeprefix("sudo ") for each in starting("rm ")]
    script += ["! command -v toolkit-installer", "! test -e /opt/toolkit-installer"]
    with tempfile.TemporaryDirectory(dir=cache(), prefix="root-run-") as directory:
        fresh = prepared(suite, Path(directory), PROJECT / "build" / "fresh.log")
        code = fresh.run("sh", "-c", "\n".join(script), environment=HOST)
    print(f"fresh {suite}: exit code {code} of the README's commands for a host", flush=True)
    return code == 0


def _in_readme(command: Command) -> bool:
    return command.document == "README.md"


def _passes(suite: str, command: tuple[str, ...]) -> bool:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache(), prefix="root-run-") as directory:
        fresh = prepared(suite, Path(directory), PROJECT / "build" / "fresh.log")
        print(f"fresh {suite}: {' '.join(command)}", flush=True)
        code = fresh.run(*command)
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
