"""What must not be in the image is seen, in whatever layer it is; what a later layer takes away is not."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.image.archive import Image, problems, read

SITE = "opt/toolkit-installer/lib/python3.12/site-packages"
COMPILED = f"{SITE}/installer/__pycache__/app.cpython-312.pyc"
GOOD = frozenset(
    {
        *("usr/bin/sh", "usr/bin/python3", f"{SITE}/installer/app.py", COMPILED),
        *("opt/toolkit-installer/bin/toolkit-installer", "opt/toolkit-installer/bin/nvidia-toolkit"),
    }
)
CONFIG = {
    "config": {"Env": ["PATH=/opt/toolkit-installer/bin:/usr/bin"]},
    "created": "1970-01-01T00:01:40Z",
}


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("usr/bin/x86_64-linux-gnu-gcc-14", "is a compiler"),
        ("usr/share/python-wheels/pip-25.whl", "belongs to pip"),
        ("var/lib/apt/lists/archive_InRelease", "is a cache"),
        (f"{SITE}/installer/install.py", "is not compiled"),
    ],
)
def test_what_should_not_be_there_is_seen(file: str, problem: str) -> None:
    assert list(problems(Image(CONFIG, GOOD, "bash"))) == []
    assert list(problems(Image(CONFIG, GOOD | {file}, "bash"))) == [f"{file} {problem}"]


def test_what_should_be_there_is_missed() -> None:
    assert list(problems(Image(CONFIG, GOOD - {"usr/bin/sh"}, "bash"))) == ["usr/bin/sh is not there"]
    (shell,) = problems(Image(CONFIG, GOOD, "dash"))
    assert shell.startswith("usr/bin/sh is dash")
    (time,) = problems(Image(CONFIG, GOOD, "bash", frozenset({100, 101})))
    assert time.startswith("1 times of the build are in it")


def _tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def test_layers_lie_over_each_other_and_what_is_compiled_by_time_is_seen_above_the_base(
    tmp_path: Path,
) -> None:
    by_time = {f"x.cpython-31{kind}.pyc": b"\xcb\r\r\n" + bytes([kind, 0, 0, 0]) for kind in (0, 1, 3)}
    below = _tar({"usr/bin/sh": b"", "var/cache/apt/a": b"", "etc/a/b": b"", "base.pyc": bytes(8)})
    above = _tar({"var/cache/.wh.apt": b"", "etc/a/.wh..wh..opq": b"", "etc/a/d": b"", **by_time})
    said = [{"Config": "config", "Layers": ["below", "above"]}]
    texts = {"config": json.dumps(CONFIG).encode(), "manifest.json": json.dumps(said).encode()}
    (tmp_path / "image.tar").write_bytes(_tar({"below": below, "above": above} | texts))

    found = read(tmp_path / "image.tar")

    assert found.files == {"usr/bin/sh", "base.pyc", "etc/a/d", *by_time}
    assert found.times == {0}, "the time of the base is not ours to choose"
    assert found.by_time == {"x.cpython-310.pyc"}
    assert "x.cpython-310.pyc is compiled for a source of another time" in [*problems(found)]
