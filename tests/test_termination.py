"""The last sentence of a verb stands where Kubernetes looks why a container has ended."""

import os
from pathlib import Path

import pytest

from installer.host import events
from tests.support.preloaded import Done
from tests.support.program import patched
from tests.support.site import DAEMON_JSON, Site, sentence

# Only /dev is another one: the rest is the program's own way in.
ANOTHER = """
import sys
from pathlib import Path
from installer.host import events
events.TERMINATION_LOG = Path(sys.argv.pop(1))
"""


def call(log: Path, site: Site, verb: str, *more: str) -> Done:
    """Run a verb with ``log`` as the termination log."""
    return patched(ANOTHER, str(log), *site.command(verb, *more)[3:])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    found = tmp_path / "termination-log"
    found.write_text("x" * 5000)
    return found


def test_an_install_and_its_undo_end_with_a_sentence(site: Site, log: Path) -> None:
    said = []
    for verb in ("install", "install", "uninstall", "uninstall"):
        assert call(log, site, verb).returncode == 0
        said.append(log.read_text())

    assert said == [
        "installed, and configured containerd, crio, docker\n",
        "nothing changed: containerd, crio, docker had everything in place\n",
        "undo complete: nothing of ours is left on this node\n",
        "nothing to undo: nothing of ours is in /usr/local/nvidia on this node\n",
    ]


@pytest.mark.parametrize(
    ("verb", "more", "code"),
    [("install", (), 1), ("uninstall", (), 4), ("run", ("--install-dir", "here"), 2)],
)
def test_what_fails_ends_with_its_sentence_and_its_remedy(
    installed: Site, log: Path, verb: str, more: tuple[str, ...], code: int
) -> None:
    installed.write(DAEMON_JSON, "{")

    done = call(log, installed, verb, *more)

    said = sentence(done) if code != 2 else "cannot use the path here; give an absolute path without .."
    assert (done.returncode, log.read_text()) == (code, f"{said}\n")


def test_what_is_not_the_file_that_kubernetes_has_mounted_is_left(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(log)

    for name in ("pipe", "link", "absent"):
        monkeypatch.setattr(events, "TERMINATION_LOG", tmp_path / name)
        events.write_termination_log("said")

    assert log.read_text() == "x" * 5000
    assert not (tmp_path / "absent").exists()


def test_a_long_sentence_is_cut_between_characters(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "TERMINATION_LOG", log)

    events.write_termination_log("é" * 3000)

    assert log.read_bytes() == "é".encode() * 2047 + b"\n"
