"""Laws of the real program for which a hand has to reach into it: they are no part of the frozen acceptance."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.site import PROJECT, Site

TOOLKIT = "usr/local/nvidia/toolkit"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_install_that_changes_nothing_loads_no_library_that_it_has_no_use_for(site: Site) -> None:
    assert site.call("install").returncode == 0
    code = "import os, sys; from installer.__main__ import main; heavy = sys.argv.pop(1).split(); end = os._exit\n"
    code += "os._exit = lambda code: (print([name for name in heavy if name in sys.modules], flush=True), end(code)); main()"
    heavy = "asyncio ssl structlog grpc docker requests psutil tarfile argparse installer.report.verify"
    heavy += " concurrent logging shutil tempfile ctypes tomlkit"

    words = site.command("install")[3:]
    done = subprocess.run(
        [sys.executable, "-c", code, heavy, *words], capture_output=True, text=True, check=True, cwd=PROJECT
    )

    assert "nothing changed" in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_payload_that_changes_while_it_is_copied_is_not_installed(site: Site) -> None:
    assert site.call("install").returncode == 0
    (site.root / TOOLKIT / "nvidia-ctk.real").unlink()
    code = (
        "import sys; from pathlib import Path; from installer.host import trees; from installer.cli.app import main\n"
        "put = trees._put\n"
        "def late(top, shipped, *rest):\n"
        "    if str(shipped.path) == 'nvidia-ctk.real':\n"
        "        source = Path(shipped.source); source.write_bytes(source.read_bytes()[:-1] + b'!')\n"
        "    put(top, shipped, *rest)\n"
        "trees._put = late; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *site.command("install")[3:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )

    assert done.returncode == 1
    assert "changed while it was copied" in done.stderr
