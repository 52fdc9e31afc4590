"""The scripts of images/ without the arguments and the programs that they need."""

import os
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.documents import PROJECT

USAGES = {
    "fetch-payload": "usage: images/fetch-payload DIRECTORY amd64|arm64\n",
    "build": "usage: images/build ubuntu|ubi8 [arguments for the builder]\n",
}


def call(script: str, *words: str, path: str = os.defpath) -> tuple[int, str, str]:
    """Return the exit code and the output of a script; ``path`` has the programs that it finds."""
    command = [str(PROJECT / "images" / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": path})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("script", USAGES)
def test_a_script_shows_its_usage(script: str) -> None:
    assert call(script) == (2, "", USAGES[script])
    assert call(script, "--help") == (0, USAGES[script], "")


def test_a_machine_without_curl_learns_what_to_install(tmp_path: Path) -> None:
    for program in ("dirname", "readlink", "gpg"):
        place = which(program)
        assert place, program
        (tmp_path / program).symlink_to(place)

    code, _, said = call("fetch-payload", str(tmp_path / "made"), "amd64", path=str(tmp_path))

    assert code == 1
    assert "not on this machine: apt-get curl dpkg-deb gpgv xmllint rpm2cpio cpio)" in said
    assert "apt-get install ca-certificates cpio curl " in said
    assert "docs/host.md" in said
    assert not (tmp_path / "made").exists()


def test_a_payload_without_an_architecture_is_not_fetched() -> None:
    assert call("fetch-payload", "/nowhere") == (2, "", USAGES["fetch-payload"])
