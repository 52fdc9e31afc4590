"""What doctor reads: root's processes and programs only, any bytes, what engines answer, and without leaving a trace."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.host.files import Host
from installer.host.processes import HostProcess, is_written_by_root, list_root_processes
from installer.host.programs import run_in
from installer.host.sockets import is_listened_on
from installer.model.options import Options, Places
from installer.report.doctor import read
from installer.report.doctor.model import EngineExam
from installer.report.doctor.verb import judge_node
from tests.doctor import golden
from tests.host.servers import hang, serving
from tests.support.files import put
from tests.support.live import SOCKET, Live, live
from tests.support.waiting import until

HOST = Host.under(PurePosixPath("/"))
SHIM = "containerd-shim-runc-v2"


def _until_named(pid: int, name: str) -> None:
    """Wait until a process has the name of its program: an exec closes files a moment before it gives that."""
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == f"{name}\n")


@contextmanager
def shim(directory: Path, *, marked: bool) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program with the name of a shim; behind its last section lies what a linker's table would hold."""
    program = directory / SHIM
    shutil.copyfile("/bin/sleep", program)
    with program.open("ab") as file:
        file.write(b"\0proc." + read.NIL_POINTER + b"\0" if marked else b"\0proc.(*execProcess).pid\0")
    program.chmod(0o755)
    with subprocess.Popen([program, "60"]) as child:
        try:
            _until_named(child.pid, "containerd-shim")
            yield child
        finally:
            child.kill()


def seen(pid: int) -> HostProcess:
    return next(each for each in list_root_processes(HOST) if each.pid == pid)


@pytest.mark.parametrize("marked", [True, False])
def test_a_running_shim_is_known_by_its_program_though_the_file_was_replaced(
    tmp_path: Path, *, marked: bool
) -> None:
    with shim(tmp_path, marked=marked) as child:
        (tmp_path / SHIM).unlink()
        shutil.copyfile("/bin/true", tmp_path / SHIM)

        (found,) = read.ask_processes(HOST, [replace(seen(child.pid), of_host=True)])

    assert (found.name, found.program) == ("containerd-shim", str(tmp_path / SHIM))
    assert (found.deleted, found.nil_pointer) == (True, marked)


@contextmanager
def waiting(program: Path) -> Iterator[HostProcess]:
    """Yield a shell that has the name of an engine, and waits."""
    with subprocess.Popen([program, "-c", "read word"], stdin=subprocess.PIPE) as child:
        _until_named(child.pid, program.name)
        # These tests may run in a container, whose files are not those of the host.
        yield replace(seen(child.pid), of_host=True, file=(child.pid, 0))
        child.communicate()


def test_an_engine_that_runs_is_asked_for_its_version(tmp_path: Path) -> None:
    shutil.copy("/bin/bash", tmp_path / "containerd")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/containerd").symlink_to("/bin/bash")

    with (
        waiting(tmp_path / "containerd") as engine,
        waiting(tmp_path / "linked/containerd") as linked,
        waiting(Path("/bin/bash")) as stranger,
    ):
        found = read.ask_processes(HOST, [engine, stranger, linked])
        (unasked,) = read.ask_processes(HOST, [replace(engine, of_host=False)])

    assert [each.pid for each in found] == [engine.pid, linked.pid]
    assert re.fullmatch(r"containerd 5\.\d+\.\d+\S*", found[0].label)
    assert unasked.label == "", "a container's program is not started on the host"
    assert found[1].label == "", "what it runs has another name: nobody knows how to ask that"


def test_a_program_is_believed_where_root_alone_wrote_it_and_it_ends_well(tmp_path: Path) -> None:
    scripts = {"says": "echo $1 1.2.3", "fails": "echo 1.2.3; exit 1", "anybodys": "echo 1.2.3"}
    put(tmp_path, {name: f"#!/bin/sh\n{words}\n" for name, words in scripts.items()}, 0o755)
    (tmp_path / "anybodys").chmod(0o777)

    told = {name: read.ask_version(HOST, PurePosixPath(tmp_path, name)) for name in (*scripts, "gone", "")}

    assert told == {"says": "--version 1.2.3\n", **dict.fromkeys(("fails", "anybodys", "gone", ""), "")}


def process(
    root: Path, pid: int, uid: int, namespace: str = "mnt:[4026531841]", name: str = "containerd"
) -> None:
    status = f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
    said = {"status": status, "comm": "containerd\n", "cmdline": "containerd\0"}
    put(root, {f"proc/{pid}/{file}": text for file, text in said.items()})
    golden.link(root, f"/proc/{pid}/exe", str(root / "usr/bin/kubelet"))
    golden.link(root, f"/proc/{pid}/ns/mnt", namespace)


def test_only_roots_processes_are_seen_and_started_if_root_wrote_the_program_among_the_hosts_files(
    tmp_path: Path,
) -> None:
    root = golden.lay(tmp_path)
    process(root, 50, 65534)
    process(root, 51, 0)
    process(root, 52, 0, namespace="mnt:[4026539999]")  # of a container
    # Anybody may call himself so, and psutil takes that for uids.
    process(root, 53, 65534, name="Uid:\t0\t0\t0")
    host = Host.under(PurePosixPath(root))

    found = {each.pid: each for each in list_root_processes(host)}
    before = {pid: each.of_host for pid, each in found.items()}
    (root / "usr/bin/kubelet").chmod(0o777)
    after = {each.pid: each.of_host for each in list_root_processes(host)}

    assert before == {51: True, 52: False, 900: True}
    assert found[52].file == (0, 0), "that of a container may lie on a file system that hangs"
    assert after[51] is False
    assert not is_written_by_root(host, PurePosixPath("/usr/bin/kubelet"))


def test_a_kubelet_is_one_of_the_hosts_own_not_what_a_pod_calls_so(tmp_path: Path) -> None:
    root = golden.lay(tmp_path)
    golden.link(root, "/proc/900/ns/mnt", "mnt:[4026539999]")  # of a container

    assert golden.read(root).system.kubelet_cgroups == ""


def test_a_dead_socket_is_told_from_one_that_answers(tmp_path: Path) -> None:
    found = [is_listened_on(tmp_path / "socket")]
    with serving(tmp_path / "socket", hang):
        found.append(is_listened_on(tmp_path / "socket"))

    assert [*found, is_listened_on(tmp_path / "socket")] == [None, True, False]


@pytest.mark.parametrize("spoil", [Path.mkdir, os.mkfifo, Path.write_bytes], ids=lambda each: each.__name__)
def test_whatever_is_in_the_place_of_a_file_is_no_obstacle(
    tmp_path: Path, spoil: Callable[..., object]
) -> None:
    # What names or is a toolkit is asked for its version, and nobody puts a pipe into /proc.
    asked = {golden.CONFIG, golden.RUNTIME, f"{golden.TOOLKIT}/nvidia-container-cli"}
    content = (b"\xff\0\n- a: [" + bytes(range(256)) * 40,) if spoil is Path.write_bytes else ()
    for turn, path in enumerate(golden.FILES):
        if path not in asked and not (spoil is os.mkfifo and path.startswith("/proc/")):
            root = golden.lay(tmp_path / str(turn))
            (root / path[1:]).unlink()
            spoil(root / path[1:], *content)
            assert [*judge_node(golden.read(root))]


def test_a_program_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path, {"runc": f"#!/bin/sh\nsleep 60\ntouch {tmp_path}/ended\n"}, 0o755)

    assert run_in(Path("/"), [f"{tmp_path}/runc", "--version"], timeout_s=0.2) is None
    assert not (tmp_path / "ended").exists()


# Engines that run

PROCESS = HostProcess(7, "containerd", "/usr/bin/containerd", False, (1, 2), of_host=True)


def exams(node: Live, *seen: HostProcess, socket: PurePosixPath = SOCKET) -> list[EngineExam]:
    places = {"containerd": Places(socket=socket)}
    return [*read.read_engines(node.host, Options(places=places), seen)]


def test_an_engine_without_a_process_or_a_socket_is_not_asked(tmp_path: Path) -> None:
    """Nor one of two whose socket answers, where it is in no unit of theirs that does."""
    with live(tmp_path) as node:
        assert exams(node) == []
        assert exams(node, replace(PROCESS, name="dockerd")) == []
        assert exams(node, PROCESS, socket=PurePosixPath("/gone.sock")) == []
        assert node.asked == []
        places = {name: Places(socket=SOCKET) for name in ("k3s", "rke2")}
        seen = [replace(PROCESS, name=ENGINES["k3s"].process)]
        assert [*read.read_engines(node.host, Options(places=places), seen)] == []
