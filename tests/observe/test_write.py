"""A config is written and removed with the symbolic links that lead to it."""

from pathlib import Path, PurePosixPath

from installer.engines.config_files import write_config
from installer.host.files import Host
from installer.model.steps import WriteConfig, describe
from tests.support.tree import tree


def test_a_link_to_a_file_that_an_undo_needs_again_comes_back_with_it(tmp_path: Path) -> None:
    host = Host.under(PurePosixPath(tmp_path))
    path, link = PurePosixPath("/etc/crio/mine.conf"), "/srv/x.conf"
    (tmp_path / "srv").mkdir()
    (tmp_path / "etc/crio").mkdir(parents=True, exist_ok=True)
    (tmp_path / "srv/x.conf").write_text("[crio]\n")
    (tmp_path / "etc/crio/mine.conf").symlink_to(link)
    before = tree(tmp_path)
    step = WriteConfig("crio", path, host.read(path), None, link)

    write_config(host, step)

    assert not (tmp_path / "srv/x.conf").exists()
    assert not (tmp_path / "etc/crio/mine.conf").is_symlink()
    back = describe(step).undo
    assert isinstance(back, WriteConfig)
    write_config(host, back)
    assert tree(tmp_path) == before
