"""The command of a unit as its files say it, by the order in which systemd reads them."""

from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import Host
from installer.record.unit_files import command_of

UNIT = "x.service"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({}, (), id="no file"),
        pytest.param({"lib": "ExecStart=/bin/a"}, ("/bin/a",), id="a command"),
        pytest.param({"lib": "ExecStart=@-+/bin/a --b"}, ("/bin/a", "--b"), id="prefixes"),
        pytest.param({"lib": "ExecStart = '/bin/a b' c"}, ("/bin/a b", "c"), id="quotes"),
        pytest.param({"lib": "ExecStart=/bin/a \\\n  --b"}, ("/bin/a", "--b"), id="on two lines"),
        pytest.param({"lib": "ExecStart\nExecStartPre=/bin/p\nExecStop=/bin/s"}, (), id="no such setting"),
        pytest.param({"lib": "ExecStart=/bin/a\nExecStart='open"}, ("/bin/a",), id="an open quote"),
        pytest.param({"lib": "ExecStart=/bin/a\nExecStart="}, (), id="taken back"),
        pytest.param({"lib": "ExecStart=/a", "etc": "ExecStart=/b"}, ("/b",), id="the first place wins"),
        pytest.param({"lib": "ExecStart=/a", "run": "ExecStart=/b"}, ("/b",), id="so at run time"),
        pytest.param(
            {"lib": "ExecStart=/a", "etc.d/1.conf": "ExecStart=\nExecStart=/b"}, ("/b",), id="a drop-in"
        ),
        pytest.param(
            {"lib": "ExecStart=/a", "etc.d/1.txt": "ExecStart=/b"}, ("/a",), id="none of its suffix"
        ),
        pytest.param(
            {"lib": "", "lib.d/2.conf": "ExecStart=/b", "etc.d/1.conf": "ExecStart=/c"},
            ("/b",),
            id="drop-ins by name, wherever they are",
        ),
        pytest.param(
            {"lib": "", "lib.d/1.conf": "ExecStart=/b", "etc.d/1.conf": "ExecStart=/c"},
            ("/c",),
            id="of one name the first place's",
        ),
    ],
)
def test_the_command_of_a_unit(tmp_path: Path, files: dict[str, str], words: tuple[str, ...]) -> None:
    places = {"etc": "etc/systemd/system", "run": "run/systemd/system", "lib": "usr/lib/systemd/system"}
    for name, text in files.items():
        place, _, drop_in = name.partition(".d/")
        path = tmp_path / places[place] / (f"{UNIT}.d/{drop_in}" if drop_in else UNIT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Service]\n{text}\n")

    assert command_of(Host.under(PurePosixPath(tmp_path)), UNIT) == words


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "etc/systemd/system" / UNIT).mkdir(parents=True)
    (tmp_path / f"etc/systemd/system/{UNIT}.d").write_text("no directory")
    (tmp_path / f"usr/lib/systemd/system/{UNIT}.d").mkdir(parents=True)
    (tmp_path / f"usr/lib/systemd/system/{UNIT}.d/1.conf").write_text("ExecStart=/a")

    assert command_of(Host.under(PurePosixPath(tmp_path)), UNIT) == ("/a",)
