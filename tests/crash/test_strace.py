"""The strace that is fetched where the machine has none."""

import re
import subprocess

from tests.crash.strace import fetched


def test_a_fetched_strace_brings_all_its_libraries() -> None:
    loader, *libraries, program = fetched()

    listed = subprocess.run(
        [loader, *libraries, "--list", program], capture_output=True, text=True, timeout=60, check=True
    )

    found = re.findall(r"=> (\S+) \(", listed.stdout)
    root = program.removesuffix("/usr/bin/strace")
    assert found
    assert [library for library in found if not library.startswith(root)] == []
