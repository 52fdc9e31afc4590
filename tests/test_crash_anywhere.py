"""The power is cut before each effect in turn; what then stands must work, and go back or go on.

Or a disk fails there: full, read-only, broken. One that could not be served says so and has changed nothing.
"""

import errno
import json
import os
import shutil
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from installer import daemon
from installer.decide.options import Options, RestartMode
from installer.decide.toolkit import EXECUTABLES
from installer.demo import CONFIGS, stand_in_payload
from tests.faults import KILLED, Fault, Verb, call
from tests.test_verbs import DAEMON_JSON, LEDGER

# Each point is a few forks; a run that has hours may take every one of them.
STRIDE = int(os.environ.get("CRASH_STRIDE", "4"))
FAULT_STRIDE = 4 * STRIDE + 1
LAST_FAULT = 100


def _options(root: Path, source: Path) -> Options:
    return Options(
        runtimes=("docker", "containerd", "crio"),
        toolkit_source=PurePosixPath(source),
        host_root=PurePosixPath(root),
        restart_mode=RestartMode.NONE,
        set_as_default=True,
    )


def _tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): _is(path) for path in sorted(root.rglob("*"))}


def _is(path: Path) -> str:
    content = str(path.readlink()) if path.is_symlink() else path.read_bytes().hex() if path.is_file() else ""
    return f"{path.lstat().st_mode:o} {content}"


def _assert_works(root: Path) -> None:
    """Each config parses and names only binaries that are there; the payload is complete or absent."""
    toolkit = root / "usr/local/nvidia/toolkit"
    json.loads((root / DAEMON_JSON).read_text())
    texts = [(root / name).read_text() for name in CONFIGS]
    texts += [path.read_text() for path in (root / "etc/crio/crio.conf.d").glob("*")]
    for text in texts[1:]:
        tomllib.loads(text)
    named = any("nvidia/toolkit/nvidia-container-runtime" in text for text in texts)
    assert toolkit.exists() or not toolkit.is_symlink(), "a link to nothing"
    assert toolkit.exists() or not named, "a config names a runtime that is not there"
    if toolkit.exists():
        assert all((toolkit / executable.name).is_file() for executable in EXECUTABLES)


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Return a directory with an untouched node, one installed, and two payloads."""
    for name, text in CONFIGS.items():
        (tmp_path / "untouched" / name).parent.mkdir(parents=True)
        (tmp_path / "untouched" / name).write_text(text)
    for version in ("one", "two"):
        stand_in_payload(tmp_path / version)
    program = tmp_path / "two/usr/local/sbin/nvidia-ctk"
    program.write_bytes(program.read_bytes() + b"newer")
    shutil.copytree(tmp_path / "untouched", tmp_path / "installed", symlinks=True)
    assert call(daemon.install, _options(tmp_path / "installed", tmp_path / "one")) == 0
    return tmp_path


SCENES: dict[str, tuple[str, Verb, str]] = {
    "install": ("untouched", daemon.install, "one"),
    "upgrade": ("installed", daemon.install, "two"),
    "undo": ("installed", daemon.uninstall, "one"),
}


@pytest.mark.parametrize("scene", SCENES)
def test_a_kill_at_any_effect_leaves_a_node_that_works_and_can_go_both_ways(
    scene: str, nodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, verb, source = SCENES[scene]
    before = _tree(nodes / "untouched")
    root = nodes / "node"
    options = _options(root, nodes / source)
    point = points = 0
    while True:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(nodes / start, root, symlinks=True)
        code = call(verb, options, Fault(point))
        if code != KILLED:
            assert code == 0
            break
        _assert_works(root)
        if points % 2:
            assert call(daemon.install, options) == 0, (scene, point)
            _assert_works(root)
            assert (root / LEDGER).exists()
        assert call(daemon.uninstall, options) == 0, (scene, point)
        assert _tree(root) == before, (scene, point)
        points += 1
        point += STRIDE

    with capsys.disabled():
        print(f"\n{scene}: killed at {points} of about {point} effects")  # noqa: T201 - the count is the result
    assert points > 5


FAULTS = [
    pytest.param(errno.ENOSPC, True, id="the disk is full from then on"),
    pytest.param(errno.EDQUOT, True, id="the quota is used up from then on"),
    pytest.param(errno.EROFS, True, id="the disk is read-only from then on"),
    pytest.param(errno.EIO, False, id="the disk fails once"),
    pytest.param(errno.EPERM, False, id="something is immutable"),
]


@pytest.mark.parametrize(("number", "stays"), FAULTS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_disk_that_fails_at_any_effect_costs_nobody_anything(
    scene: str, number: int, *, stays: bool, nodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, verb, source = SCENES[scene]
    untouched, root = _tree(nodes / "untouched"), nodes / "node"
    options = _options(root, nodes / source)
    codes: list[int] = []
    for point in range(0, LAST_FAULT, FAULT_STRIDE):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(nodes / start, root, symlinks=True)
        before = _tree(root)

        codes.append(call(verb, options, Fault(point, number, stays)))

        _assert_works(root)
        assert codes[-1] in {0, 1, 4}, point
        if codes[-1] == 1:
            assert _tree(root) == before, point
        assert call(daemon.uninstall, options) == 0, point
        assert _tree(root) == untouched, point

    told = f"{codes.count(1)} refused, {codes.count(4)} to be finished, of {len(codes)}"
    with capsys.disabled():
        print(f"\n{scene}, {errno.errorcode[number]}: {told}")  # noqa: T201 - the count is the result
    assert codes.count(1) + codes.count(4) > 0
