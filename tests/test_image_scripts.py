"""The scripts of images/ without the arguments that they need."""

import subprocess

import pytest

from tests.documents import PROJECT

USAGES = {
    "fetch-payload": "usage: images/fetch-payload DIRECTORY amd64|arm64\n",
    "build": "usage: images/build ubuntu|ubi8 [arguments for the builder]\n",
}


def call(script: str, *words: str) -> tuple[int, str, str]:
    """Return the exit code and the output of a script."""
    done = subprocess.run([PROJECT / "images" / script, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("script", USAGES)
def test_a_script_shows_its_usage(script: str) -> None:
    assert call(script) == (2, "", USAGES[script])
    assert call(script, "--help") == (0, USAGES[script], "")


def test_a_payload_without_an_architecture_is_not_fetched() -> None:
    assert call("fetch-payload", "/nowhere") == (2, "", USAGES["fetch-payload"])
