"""Whole directories, as they are while they are made."""

import hashlib
import os
import stat
import sys
from pathlib import Path, PurePosixPath

import pytest

from installer.errors import InstallerError, StoppedError
from installer.host.files import Host
from installer.host.trees import digest_of, install_tree
from installer.model.files import Copy, Text


def files_of(source: Path) -> list[Copy]:
    size_bytes, digest = source.stat().st_size, digest_of(str(source))
    return [
        Copy(PurePosixPath(name), PurePosixPath(source), size_bytes, digest, 0o755) for name in ("one", "two")
    ]


@pytest.mark.parametrize("earlier", [True, False], ids=["over an earlier one", "where nothing was"])
def test_a_payload_gets_its_name_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, earlier: bool
) -> None:
    host, path, there = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/payload"), tmp_path / "payload"
    if earlier:
        install_tree(host, path, [Text(PurePosixPath("earlier"), "whole\n", 0o644)])
    (tmp_path / "source").write_text("a program\n")
    seen: list[list[str]] = []
    sendfile = os.sendfile

    def watched(*arguments: int) -> int:
        seen.append(sorted(each.name for each in there.iterdir()) if there.exists() else [])
        return sendfile(*arguments)

    monkeypatch.setattr(os, "sendfile", watched)
    install_tree(host, path, files_of(tmp_path / "source"))

    assert seen == [["earlier"] if earlier else []] * 2
    assert sorted(each.name for each in there.iterdir()) == ["one", "two"]


def test_a_payload_that_cannot_be_completed_leaves_what_was_there(tmp_path: Path) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/payload")
    install_tree(host, path, [Text(PurePosixPath("earlier"), "whole\n", 0o644)])
    (tmp_path / "source").write_text("a program\n")
    files = files_of(tmp_path / "source")
    (tmp_path / "source").write_text("something else\n")

    with pytest.raises(InstallerError, match="changed while it was copied"):
        install_tree(host, path, files)

    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == [
        *("payload", "payload/earlier", "source")
    ]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_program_is_for_root_alone_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    source = Path(sys.executable).resolve()
    seen: list[int] = []
    sendfile = os.sendfile

    def watched(out: int, *arguments: int) -> int:
        seen.append(stat.S_IMODE(os.fstat(out).st_mode))
        return sendfile(out, *arguments)

    monkeypatch.setattr(os, "sendfile", watched)
    path, size_bytes = PurePosixPath("bin/program"), source.stat().st_size
    before = os.umask(umask)
    copy = Copy(path, PurePosixPath(source), size_bytes, digest_of(str(source)), 0o755)
    install_tree(Host.under(PurePosixPath(tmp_path)), PurePosixPath("/new"), [copy])
    os.umask(before)

    assert set(seen) == {0o600}
    assert stat.S_IMODE((tmp_path / "new/bin/program").stat().st_mode) == 0o755
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new", tmp_path / "new/bin")} == {0o755}


def test_a_stop_is_heard_between_two_blocks_of_a_large_file(tmp_path: Path) -> None:
    large, asked = tmp_path / "large", list[int]()
    large.write_bytes(bytes(5 << 20))

    def stop() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        digest_of(str(large), check=stop)

    assert digest_of(str(large)) == hashlib.sha256(large.read_bytes()).hexdigest()
