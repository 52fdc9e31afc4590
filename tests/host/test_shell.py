"""The node's shell runs by itself, with what it links to and nothing else."""

import subprocess
from pathlib import Path, PurePosixPath

import pytest

from installer.engines.trial_containers import LOADER, SHELL, Tools, shell_of
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.inodes import watch_opens

HERE = Host.under(PurePosixPath("/"))


def test_the_shell_comes_with_its_loader_and_libraries_each_a_file_of_the_host() -> None:
    tools = shell_of(HERE)

    named = {inside: there for there, inside in tools.files}
    assert named[SHELL] == HERE.resolve(PurePosixPath("/bin/sh"))
    assert tools.loader == (LOADER in named)
    assert all(Path(there).is_file() and not Path(there).is_symlink() for there in named.values())


def test_what_it_links_to_is_enough_to_run_it(tmp_path: Path) -> None:
    for there, inside in shell_of(HERE).files:
        (tmp_path / inside.name).symlink_to(there)

    command = [str(tmp_path / "ld"), "--inhibit-cache", "--library-path", str(tmp_path), str(tmp_path / "sh")]
    done = subprocess.run([*command, "-c", "echo alive"], capture_output=True, text=True, check=False, env={})

    assert done.stdout == "alive\n", done.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, "is not there", id="absent"),
        pytest.param(b"#!/bin/other\n", "no program of 64 bits", id="a script"),
    ],
)
def test_a_shell_that_cannot_be_used_is_said_so(tmp_path: Path, content: bytes | None, reason: str) -> None:
    (tmp_path / "bin").mkdir()
    if content is not None:
        (tmp_path / "bin/sh").write_bytes(content)

    with pytest.raises(InstallerError, match=reason):
        shell_of(Host.under(PurePosixPath(tmp_path)))


def test_a_static_program_has_no_loader(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57))

    found = shell_of(Host.under(PurePosixPath(tmp_path)))

    assert found == Tools(((PurePosixPath("/bin/sh"), SHELL),), loader=False)


def test_a_program_that_is_started_was_opened_and_one_that_is_looked_at_was_not(tmp_path: Path) -> None:
    started, looked_at, absent = tmp_path / "started", tmp_path / "looked-at", tmp_path / "absent"
    for path in (started, looked_at):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    with watch_opens((started, looked_at, absent)) as watch:
        before = watch()
        subprocess.run([started], check=True)
        looked_at.stat()
        after = watch()

    assert (before, after) == (frozenset(), frozenset({started}))
