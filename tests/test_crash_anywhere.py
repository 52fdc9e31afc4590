"""The power is cut before each effect in turn; what then stands must work, and go back or go on.

A child process is forked for every point and leaves by ``os._exit`` at the n-th audited call
that would change the disk: nothing is cleaned up behind it, as after SIGKILL.
"""

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from installer import daemon, signals
from installer.decide.errors import InstallerError
from installer.decide.options import Options, RestartMode
from installer.decide.toolkit import EXECUTABLES
from installer.demo import CONFIGS, stand_in_payload
from tests.test_verbs import DAEMON_JSON, LEDGER

EFFECTS = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}
)
KILLED = 77
# Each point is a few forks; a run that has hours may take every one of them.
STRIDE = int(os.environ.get("CRASH_STRIDE", "4"))
Verb = Callable[[Options], object]

_countdown = -1


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    global _countdown  # noqa: PLW0603 - an audit hook cannot be given a state of its own
    if _countdown < 0:
        return
    changes = event in EFFECTS or (event == "open" and _writes(arguments[2]))
    if event == "ctypes.call_function" or changes:
        if _countdown == 0:
            os._exit(KILLED)
        _countdown -= 1


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


sys.addaudithook(_audit)


def _call(verb: Verb, options: Options, *, kill_at: int = -1) -> int:
    """Run a verb in a child; return its exit code, ``KILLED`` if it was killed at its n-th effect."""
    global _countdown  # noqa: PLW0603 - as above
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signals.block()
        _countdown = kill_at
        verb(options)
        code = 0
    except InstallerError as error:
        code = error.exit
    finally:
        _countdown = -1
        os._exit(code)


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
    assert _call(daemon.install, _options(tmp_path / "installed", tmp_path / "one")) == 0
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
        code = _call(verb, options, kill_at=point)
        if code != KILLED:
            assert code == 0
            break
        _assert_works(root)
        if points % 2:
            assert _call(daemon.install, options) == 0, (scene, point)
            _assert_works(root)
            assert (root / LEDGER).exists()
        assert _call(daemon.uninstall, options) == 0, (scene, point)
        assert _tree(root) == before, (scene, point)
        points += 1
        point += STRIDE

    with capsys.disabled():
        print(f"\n{scene}: killed at {points} of about {point} effects")  # noqa: T201 - the count is the result
    assert points > 5
