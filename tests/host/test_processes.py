import errno
import os
import signal as signals
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.errors import InstallerError
from installer.host.processes import (
    HTTP_PING,
    NotServing,
    Peer,
    Silent,
    Unseen,
    peer_of,
    signal,
    started_of,
    unit_in,
)
from installer.host.programs import Ran, run_until_stopped
from tests.host.servers import answer, hang, hang_up, serving
from tests.support.neighbours import NOBODY, only_as_root

DOCKERD = """
import os, signal, socket, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may stand above us
open("/proc/self/comm", "w").write("dockerd")
os.setresuid(*[int(sys.argv[2])] * 3)
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = listener.accept()
    with connection:
        connection.recv(100)
        connection.sendall(b"HTTP/1.0 200 OK")
"""


STRANGE = (os.fsdecode(b"\xff \x85"), "\x0b\u2028")


@contextmanager
def dockerd(path: Path, uid: int = os.geteuid()) -> Iterator[subprocess.Popen[bytes]]:
    """Run a stand-in under socket activation: we listen, it answers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        command = [sys.executable, "-c", DOCKERD, str(listener.fileno()), str(uid), *STRANGE]
        engine = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield engine
        finally:
            engine.kill()
            engine.wait()


def seen(path: Path) -> Peer:
    peer = peer_of(path, greeting=HTTP_PING, timeout_s=5)
    assert isinstance(peer, Peer)
    return peer


def test_the_peer_is_who_answers_not_who_listens(tmp_path: Path) -> None:
    with dockerd(tmp_path / "docker.sock") as engine:
        peer = seen(tmp_path / "docker.sock")

    assert (peer.pid, peer.name, peer.exe) == (engine.pid, "dockerd", str(Path(sys.executable).resolve()))
    assert peer.cmdline[1] == "-c"
    assert peer.cmdline[-2:] == STRANGE, "any bytes"


@only_as_root
def test_only_a_process_of_root_is_believed_to_be_an_engine(tmp_path: Path) -> None:
    with dockerd(tmp_path / "docker.sock", NOBODY):
        peer = peer_of(tmp_path / "docker.sock", greeting=HTTP_PING, timeout_s=5)

    assert isinstance(peer, Silent)
    assert f"a process of uid {NOBODY} answers" in peer.reason


def test_a_listener_without_an_answer_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    for behave, reason in (
        (hang, "no answer within 0.2 s"),
        (hang_up, "the connection was closed without an answer"),
    ):
        with serving(path, behave):
            assert peer_of(path, greeting=HTTP_PING, timeout_s=0.2) == Silent(reason)
        path.unlink()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)  # it accepts nobody
        waiting.connect(str(path))
        assert isinstance(peer_of(path, greeting=HTTP_PING, timeout_s=0.2), Silent)

    for left_behind in (path, tmp_path / "absent.sock"):
        assert peer_of(left_behind, greeting=HTTP_PING, timeout_s=1) == NotServing()


def test_a_peer_is_unseen_where_proc_shows_another_pid_namespace(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(str(os.getpid() + 1))
    (tmp_path / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")

    with serving(tmp_path / "engine.sock", answer(b"HTTP/1.0 200 OK")) as engine:
        assert peer_of(engine, proc=tmp_path, greeting=HTTP_PING, timeout_s=1) == Unseen()


def without_pidfd(_: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("pidfd_open", [os.pidfd_open, without_pidfd])
def test_the_proven_engine_gets_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pidfd_open: Callable[[int], int]
) -> None:
    with dockerd(tmp_path / "docker.sock") as engine:
        peer = seen(tmp_path / "docker.sock")
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)

        signal(peer, signals.SIGHUP, expected=frozenset({"dockerd"}))

        assert engine.wait(timeout=60) == -signals.SIGHUP


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        pytest.param({}, {"containerd"}, "dockerd, not the containerd that was seen", id="another engine"),
        pytest.param({"started": 1.0}, {"dockerd"}, "signal pid", id="a later process"),
        pytest.param({"pid": 0}, {"dockerd"}, "cannot signal pid 0; .*hostPID", id="our own group"),
        pytest.param({"pid": 1}, {"dockerd"}, "signal pid 1; ", id="init"),
        pytest.param({"pid": 2**22 + 1}, {"dockerd"}, "send SIGHUP to dockerd", id="gone"),
    ],
)
def test_no_other_process_is_ever_signalled(
    tmp_path: Path, change: dict[str, int], expected: set[str], words: str
) -> None:
    with dockerd(tmp_path / "docker.sock") as engine:
        peer = replace(seen(tmp_path / "docker.sock"), **change)

        with pytest.raises(InstallerError, match=words):
            signal(peer, signals.SIGHUP, expected=frozenset(expected))

        assert engine.poll() is None


def test_a_start_is_counted_in_seconds_from_boot_and_a_zombie_has_none(tmp_path: Path) -> None:
    with dockerd(tmp_path / "docker.sock") as engine:
        peer = seen(tmp_path / "docker.sock")
        before, now = started_of(peer.pid, Path("/proc")), time.clock_gettime(time.CLOCK_BOOTTIME)
        engine.kill()
        os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
        as_zombie = started_of(peer.pid, Path("/proc"))

    assert (before, as_zombie) == (peer.started, None)
    assert now - 60 < peer.started < now + 1


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("9:memory:/\n1:name=systemd:/system.slice/crio.service\n0::/\n", "crio.service"),  # version 1
        ("0::/system.slice/k3s.service/init", "k3s.service"),  # delegated
        ("0::/machine.slice/systemd-nspawn@a.service/payload/system.slice/docker.service", "docker.service"),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope", None),
        ("0::/system.slice/containerd.service/kubepods-pod1.slice:cri:2", None),  # a pod's, by cgroupfs
        ("0::/system.slice/docker.service/docker-1.scope", None),
        ("0::/system.slice/a\x85b\u2028\udcff.service\n", "a\x85b\u2028\udcff.service"),
        ("garbage\n\n0::/\n", None),
    ],
)
def test_the_unit_is_the_innermost_service(cgroup: str, unit: str | None) -> None:
    assert unit_in(cgroup) == unit


def test_a_program_that_takes_its_time_is_given_its_text_once_and_whole(tmp_path: Path) -> None:
    program, text = tmp_path / "slow", "specification\n" * 20_000  # more than a pipe holds
    program.write_text("#!/bin/sh\nsleep 0.5\nexec cat\n")
    program.chmod(0o755)

    assert run_until_stopped(PurePosixPath(program), (), text, timeout_s=60) == Ran(0, text, "")
