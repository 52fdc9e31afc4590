"""The last sentence of a verb stands where Kubernetes looks why a container has ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from installer.host import events
from tests.support.site import DAEMON_JSON, PROJECT, Site, sentence

# Only /dev is another one: the rest is the program's own way in.
PROGRAM = """
import sys
from pathlib import Path
from installer.host import events
events.TERMINATION_LOG = Path(sys.argv.pop(1))
{entry}
"""
OURS = PROGRAM.format(entry="from installer.__main__ import main; main()")
NVIDIAS = PROGRAM.format(entry="from installer.cli.nvidia import main; main()")


def call(
    log: Path, site: Site, verb: str, *more: str, entry: str = OURS
) -> "subprocess.CompletedProcess[str]":
    """Run a verb with ``log`` as the termination log."""
    words = site.command(verb, *more)[3:] if verb else [*more]
    return subprocess.run(
        [sys.executable, "-c", entry, str(log), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.defpath, "PYTHONPATH": str(PROJECT)},
    )


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


def test_nvidias_entry_point_ends_with_a_sentence_in_its_own_words(site: Site, log: Path) -> None:
    words = ("--no-daemon", "--runtime", "nonsense", "--root", "/usr/local/nvidia")

    done = call(log, site, "", *words, entry=NVIDIAS)

    assert done.returncode == 1
    assert (
        log.read_text() == "cannot configure the runtime 'nonsense'; give one of containerd, crio, docker\n"
    )


def test_what_only_looks_leaves_the_sentence_of_the_one_that_a_pod_is_for(site: Site, log: Path) -> None:
    (site.root / DAEMON_JSON).write_text("{")

    assert call(log, site, "plan").returncode == 1
    assert call(log, site, "", "doctor", "--host-root", str(site.root / "nowhere")).returncode == 1
    assert log.read_text() == "x" * 5000


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
