"""What must not be in the image is seen, in whatever layer it is; what a later layer takes away is not."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.image.archive import Image, problems, read, tables

GOOD = frozenset(
    {
        "usr/bin/sh",
        "usr/bin/python3",
        "opt/toolkit-installer/bin/toolkit-installer",
        "opt/toolkit-installer/bin/nvidia-toolkit",
        "opt/toolkit-installer/lib/python3.12/site-packages/installer/cli/app.py",
        "opt/toolkit-installer/lib/python3.12/site-packages/installer/cli/__pycache__/app.cpython-312.pyc",
        "opt/toolkit-installer/lib/python3.12/site-packages/click/cache.py",
        "opt/toolkit-installer/lib/python3.12/site-packages/click/__pycache__/cache.cpython-312.pyc",
    }
)
CONFIG = {
    "config": {"Env": ["PATH=/opt/toolkit-installer/bin:/usr/bin"]},
    "created": "1970-01-01T00:01:40Z",
}


def test_a_good_image_has_no_problem() -> None:
    assert list(problems(Image(CONFIG, (), GOOD, "bash"))) == []


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("usr/bin/gcc", "is a compiler"),
        ("usr/bin/x86_64-linux-gnu-gcc-14", "is a compiler"),
        ("usr/bin/pip3", "belongs to pip"),
        ("usr/share/python-wheels/pip-25.whl", "belongs to pip"),
        ("var/lib/apt/lists/archive_InRelease", "is a cache"),
        ("root/.cache/pip/http/a", "is a cache"),
        (
            "opt/toolkit-installer/lib/python3.12/site-packages/installer/lifecycle/install.py",
            "is not compiled",
        ),
    ],
)
def test_what_should_not_be_there_is_seen(file: str, problem: str) -> None:
    assert list(problems(Image(CONFIG, (), GOOD | {file}, "bash"))) == [f"{file} {problem}"]


def test_what_should_be_there_is_missed() -> None:
    image = Image(CONFIG, (), GOOD - {"usr/bin/sh"}, "bash")
    assert list(problems(image)) == ["usr/bin/sh is not there"]

    (shell,) = problems(Image(CONFIG, (), GOOD, "dash"))
    assert shell.startswith("usr/bin/sh is dash")
    (time,) = problems(Image(CONFIG, (), GOOD, "bash", frozenset({100, 101})))
    assert time.startswith("1 times of the build are in it")


def _tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def saved(directory: Path, config: object, below: bytes, above: bytes) -> Image:
    """Return what is read of an image of two layers, as ``docker save`` writes one."""
    manifest = [{"Config": "config", "Layers": ["below", "above"]}]
    texts = {"config": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    (directory / "image.tar").write_bytes(_tar({"below": below, "above": above} | texts))
    return read(directory / "image.tar")


def test_layers_lie_over_each_other_and_are_weighed(tmp_path: Path) -> None:
    below = _tar({"usr/bin/sh": b"", "var/cache/apt/a": b"12345", "etc/a/b": b"", "etc/c": b""})
    above = _tar({"var/cache/.wh.apt": b"", "etc/a/.wh..wh..opq": b"", "etc/a/d": b"123"})
    no_layer = {"created_by": "ENV", "empty_layer": True}

    found = saved(
        tmp_path, {"history": [{"created_by": "base"}, no_layer, {"created_by": "ours"}]}, below, above
    )

    assert found.files == {"usr/bin/sh", "etc/a/d", "etc/c"}
    assert [(layer.made_by, layer.content) for layer in found.layers] == [("base", 5), ("ours", 3)]
    assert found.times == {0}, "the time of the base is not ours to choose"
    assert found.layers[0].compressed == len(gzip.compress(below, compresslevel=6))
    assert list(tables(found))[-1].split()[:3] == ["0.0", "0.0", "ours"]


@pytest.mark.parametrize(
    ("kind", "found"), [(0, True), (1, False), (3, False)], ids=["by time", "never", "by text"]
)
def test_what_is_compiled_for_a_source_of_one_time_is_seen_above_the_base(
    tmp_path: Path, kind: int, *, found: bool
) -> None:
    content = b"\xcb\r\r\n" + bytes([kind, 0, 0, 0]) + bytes(8)
    compiled = {"usr/lib/python3/__pycache__/x.cpython-313.pyc": content}

    history = {"history": [{"created_by": "base"}, {"created_by": "ours"}]}
    image = saved(tmp_path, history | CONFIG, _tar(compiled), _tar({"usr/bin/sh": b""} | compiled))

    assert image.by_time == (frozenset(compiled) if found else frozenset())
    assert any("compiled for a source of another time" in each for each in problems(image)) is found
