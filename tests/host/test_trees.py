"""Whole directories, as they are while they are made."""

import os
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.errors import InstallerError
from installer.decide.toolkit import Copy, Text
from installer.host.digests import digest_of
from installer.host.files import Host
from installer.host.trees import install_tree


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
