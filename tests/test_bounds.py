"""What a neighbour makes large is read within the memory of the pod, and costs no more than its length."""

import ast
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from jeepney import DBusAddress, new_signal  # type: ignore[import-untyped]  # ships no types

from tests.host.servers import FakeSystemd, serving
from tests.support.limits import CPU_S, POD_BYTES, limited, limited_script
from tests.support.neighbours import enlarged, only_as_root
from tests.support.preloaded import ENVIRONMENT
from tests.support.raw_api import answering, head
from tests.support.site import PROJECT, Site, ended, waits

LARGE = 1 << 30  # bytes; of zeros, which are not there
NAMES = ("containerd", "containerd-shim", "conmon", "kubelet", "dockerd")

LOOK_AT_PROCESSES = """
import sys
from pathlib import Path, PurePosixPath
from installer.engines import startup
from installer.host import processes
from installer.host.files import Host
host = Host.under(PurePosixPath("/"))
pids = set(map(int, sys.argv[1:]))
seen = [each for each in processes.list_root_processes(host, unread=True) if each.pid in pids]
assert {each.pid for each in seen} == pids, seen
words = [processes.read_command_line(host, each) for each in seen]
words += [processes.read_monitor(host, pid) for pid in pids]
words += [startup._strings(Path(f"/proc/{pid}/cmdline")) for pid in pids]
assert not any(words), [len(each) for each in words]
for pid in pids:
    processes.monitors_in_unit_of(Path(f"/proc/{pid}"))
    processes._describe(pid, Path("/proc"))
processes._service_in = lambda cgroup: "/one.service"  # of all processes
for pid in pids:
    assert "python" in str([*processes.list_words_in_unit_of(Path(f"/proc/{pid}"))])
"""


@only_as_root
def test_a_command_line_of_gigabytes_is_not_read() -> None:
    with ExitStack() as stack:
        pids = [stack.enter_context(enlarged(name, LARGE)).pid for name in NAMES]
        limited_script(LOOK_AT_PROCESSES, *pids)


@only_as_root
def test_doctor_passes_over_command_lines_of_gigabytes() -> None:
    with ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(enlarged(name, LARGE))
        done = limited([sys.executable, "-m", "installer", "doctor", "--json"])

    assert done.returncode in {0, 1}, done.stderr
    assert '"checks"' in done.stdout


def _show_processes(site: Site, processes: Iterable["subprocess.Popen[str]"]) -> None:
    """Show processes of this machine in the node's /proc; the first one there is this process."""
    proc = site.root / "proc"
    proc.mkdir()
    (proc / "1").symlink_to(f"/proc/{os.getpid()}")
    for process in processes:
        (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")


@only_as_root
def test_an_uninstall_ends_beside_command_lines_of_gigabytes(site: Site) -> None:
    before = site.tree()
    with ExitStack() as stack:
        # They began before the install, and have nothing of ours in force.
        processes = [stack.enter_context(enlarged(name, LARGE)) for name in NAMES]
        site.install()
        _show_processes(site, processes)
        done = limited(site.command("uninstall"))

    assert done.returncode == 0, done.stderr
    shutil.rmtree(site.root / "proc")
    assert site.tree() == before


@only_as_root
def test_a_run_that_is_stopped_undoes_all_beside_command_lines_of_gigabytes(site: Site) -> None:
    before = site.tree()
    command = ["prlimit", f"--as={POD_BYTES}", f"--cpu={CPU_S}", *site.command("run")]
    with ExitStack() as stack:
        processes = [stack.enter_context(enlarged(name, LARGE)) for name in NAMES]
        run = stack.enter_context(
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=PROJECT)
        )
        waits(run)
        _show_processes(site, processes)
        ended(run)

    shutil.rmtree(site.root / "proc")
    assert site.tree() == before


# All that is read whole: what root alone writes, the program itself, or the kernel in a known length.
READ_WHOLE = {
    "cli/demo.py: Path(sys.executable)",
    "cli/demo.py: path",
    "cli/nvidia_flags.py: files('installer.cli').joinpath('nvidia.toml')",
    "cli/program.py: Path(options_file)",
    "fleet/own_pod.py: api.account / 'token'",
    "host/inodes.py: Path(f'/proc/self/fdinfo/{fd}')",
    "host/kernel.py: Path('/proc/sys/kernel/random/boot_id')",
    "host/kubernetes.py: self.account / 'namespace'",
    "host/kubernetes.py: self.account / 'token'",
    "host/own_version.py: package / COMMIT",
    "lifecycle/handover.py: supervision.current_run().options",
    "metrics/listening.py: self.path",
    "report/doctor/verb.py: files(__package__).joinpath('checks.toml')",
    "supervisor.py: file",
}


def test_no_other_file_is_read_without_a_bound() -> None:
    found = set()
    for path in (PROJECT / "installer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            method = node.func.attr
            if method in {"read_text", "read_bytes"} or (method == "read" and not node.args):
                found.add(f"{path.relative_to(PROJECT / 'installer')}: {ast.unparse(node.func.value)}")

    assert found == READ_WHOLE


OPENER = """
import os, resource, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
fd = os.open("/dev/null", os.O_RDONLY)
for _ in range(500_000):
    try:
        os.dup(fd)
    except OSError:
        break
print("open", flush=True)
time.sleep(600)
"""
COUNT_FILES = """
import sys
from pathlib import Path, PurePosixPath
from installer.host import kernel, processes, sockets
from installer.host.files import Host
files = 0
for file in kernel.list_open_files(Path(sys.argv[1])):
    files += 1
assert files == kernel.OPEN_FILES, files
sockets.list_listening(Path(sys.argv[1]))
processes.inotify_instances(Host.under(PurePosixPath("/")))
"""


@contextmanager
def ready(script: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a script of Python that prints a line when it is ready, and end it."""
    command = [sys.executable, "-I", "-S", "-c", script, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


@only_as_root
def test_of_many_open_files_the_first_ones_are_looked_at() -> None:
    with ready(OPENER) as process:
        limited_script(COUNT_FILES, f"/proc/{process.pid}")


TABLES = """
import sys
from pathlib import Path
from installer.host import kernel, locks, sockets
proc = Path(sys.argv[1])
count = 0
for point, _ in kernel.list_mounts(proc / "1/mountinfo"):
    count += point == "/mnt/last"
for path, _ in sockets._listeners(proc / "1"):
    count += path == "/run/last.sock"
for pid, _ in locks._read_flocks(proc):
    count += pid == 7
print(count)
"""


def test_tables_of_the_kernel_are_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "1/net").mkdir(parents=True)
    long = "/" + "x" * 16_000
    with (tmp_path / "1/mountinfo").open("w") as file:
        file.writelines(f"36 35 98:0 {long} {long} rw - fuse /dev/x rw\n" for _ in range(2_000))
        file.write("36 35 98:0 /" + "x" * 1_000_000 + " /mnt/last rw - fuse /dev/x rw\n")
        file.write("36 35 98:0 / /mnt/last rw - fuse /dev/x rw\n")
    with (tmp_path / "1/net/unix").open("w") as file:
        row = "ffff: 00000003 00000000 00010000 0001 01 {} {}\n"
        file.writelines(row.format(number, f"@{number}") for number in range(50_000))
        file.write(row.format(1, "/run/last.sock"))
    with (tmp_path / "locks").open("w") as file:
        row = "{}: FLOCK  ADVISORY  WRITE {} 00:19:{} 0 EOF\n"
        file.writelines(row.format(number, 8, number) for number in range(50_000))
        file.write(row.format(1, 7, 1))

    assert limited_script(TABLES, tmp_path) == "3\n"


ASK_SYSTEMD = """
import sys
from pathlib import Path
from installer.host.systemd import system_state
print(system_state([Path(sys.argv[1])], timeout_s=float(sys.argv[2])))
"""
MANAGER = DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager")


def large_signal(size: int) -> Any:
    return new_signal(MANAGER, "JobRemoved", "s", ("x" * size,))


def test_signals_of_30_mb_on_the_bus_are_dropped_unread(tmp_path: Path) -> None:
    systemd = FakeSystemd(strangers=lambda _: [large_signal(30 << 20)] * 3)

    with serving(tmp_path / "bus", systemd):
        assert limited_script(ASK_SYSTEMD, tmp_path / "bus", 60) == "running\n"


class Numbers:
    """A signal of 30 MB of small numbers, which take seconds to unpack."""

    def __init__(self) -> None:
        self._signal = new_signal(MANAGER, "JobRemoved", "ay", (bytes(30 << 20),))
        self.header = self._signal.header

    def serialise(self, serial: int) -> bytes:
        content: bytes = self._signal.serialise(serial=serial)
        start, signature, body = content.partition(b"\x02ay\0")
        assert signature
        return start + b"\x02aq\0" + body


def test_signals_without_an_end_do_not_move_the_deadline(tmp_path: Path) -> None:
    def without_end(member: str) -> Iterator[Any]:
        signal = Numbers()
        while member == "Get":
            yield signal

    with serving(tmp_path / "bus", FakeSystemd(strangers=without_end)):
        words = [sys.executable, "-c", ASK_SYSTEMD, str(tmp_path / "bus"), "1"]
        done = limited(words, memory=1 << 30, cpu_s=4)

    assert "PendingError" in done.stderr, (done.returncode, done.stderr[-500:])


def test_an_answer_of_systemd_has_a_bound(tmp_path: Path) -> None:
    systemd = FakeSystemd(state="x" * (30 << 20))

    with serving(tmp_path / "bus", systemd):
        done = limited([sys.executable, "-c", ASK_SYSTEMD, str(tmp_path / "bus"), "60"])

    assert "what answers is not systemd" in done.stderr, done.stderr[-500:]


UNPACK = """
import sys
from installer.engines.cri import SANDBOXES
from installer.model.protobuf import unpack
content = bytes.fromhex(sys.argv[1]) * int(sys.argv[2])
try:
    unpack(SANDBOXES, content)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        pytest.param("0a00", "more than 32768 objects", id="empty sandboxes"),
        pytest.param("0a021200", "more than 32768 objects", id="empty metadata"),
        pytest.param("7801", "more than 262144 fields", id="unknown numbers"),
        pytest.param("7a00", "more than 262144 fields", id="unknown texts"),
    ],
)
def test_an_answer_of_cri_with_millions_of_fields_is_refused(field: str, reason: str) -> None:
    count = (8 << 20) // len(field)

    assert limited_script(UNPACK, field, count) == f"{reason}\n"


SYNCHRONIZE = """
from installer.model.nri import Identity
from installer.model.protobuf import pack
from installer.nri import session
plugin = session.Session(Identity(), ())
LONG = {"nvidia.cdi.k8s.io": "\U0001f600" + "x" * (256 << 10)}
missed = 0
for number in range(110):
    pod = {"id": str(number), "name": f"p{number}", "namespace": "a", "annotations": LONG}
    container = {"pod": str(number), "name": "0001", "state": 3, "annotations": {}}
    asked = {"pods": [pod], "containers": [container], "more": number < 109}
    payload = pack(session.SYNCHRONIZE, asked)
    words = {"service": session.PLUGIN_SERVICE, "method": "Synchronize", "payload": payload}
    request = session.Message(session.PLUGIN, 1, session.REQUEST, pack(session.ASKED, words))
    for _, news in plugin.hear(session.encoded(request)):
        if news is not None:
            missed = len(news.missed)
print(missed)
"""


def test_annotations_of_all_pods_of_a_node_are_not_kept_at_synchronize() -> None:
    assert limited_script(SYNCHRONIZE) == "110\n"


READ_SPECIFICATIONS = """
import sys
from pathlib import PurePosixPath
from installer.host.files import Host
from installer.report.doctor import read
specs = [*read.read_specifications(Host.under(PurePosixPath(sys.argv[1])))]
print(len(specs), sum(bool(spec.read_error) for spec in specs))
"""
DEAD_FILE_SYSTEM = """
import ctypes
import os
import sys
import time
fd = os.open("/dev/fuse", os.O_RDWR)
words = f"fd={fd},rootmode=40000,user_id=65534,group_id=65534,allow_other"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead", os.fsencode(sys.argv[1]), b"fuse", 0, words.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
time.sleep(600)
"""


@only_as_root
def test_doctor_does_not_wait_for_a_file_system_that_does_not_answer(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    directory = tmp_path / "etc/cdi"
    directory.mkdir(parents=True)
    (directory / "a.json").write_text('{"hostPath": "/gone"}')
    (directory / "b.json").write_text('{"hostPath": "/dead/file"}')
    script = READ_SPECIFICATIONS.replace("print(len", "print([spec.missing_paths for spec in specs], len")

    try:
        with ready(DEAD_FILE_SYSTEM, str(dead)):
            assert limited_script(script, tmp_path) == "[('/gone',), ()] 2 0\n"
    finally:  # once its server has ended, the file system answers with an error
        subprocess.run(["umount", dead], check=True)


RUN = """
import sys
from pathlib import Path
from installer.host.programs import run_in
print(run_in(Path("/"), sys.argv[1:], timeout_s=60))
"""


@pytest.mark.parametrize("output", ["1", "2"])
def test_a_program_that_writes_without_end_is_ended(output: str) -> None:
    began = time.monotonic()

    assert limited_script(RUN, "sh", "-c", f"cat /dev/zero >&{output}") == "None\n"
    assert time.monotonic() - began < 30


def test_a_program_that_writes_nothing_and_does_not_end_is_ended() -> None:
    assert limited_script(RUN.replace("60", "0.5"), "sleep", "600") == "None\n"
    assert limited_script(RUN.replace("60", "0.5"), "sh", "-c", "exec >&- 2>&-; sleep 600") == "None\n"


WRITE_TEXTS = """
import os
from pathlib import Path, PurePosixPath
from installer.host.programs import private_directory
with private_directory({PurePosixPath("a/b.conf"): "x" * 9000}) as texts:
    print(Path(texts.name, "a/b.conf").stat().st_size, oct(os.fstat(texts.fd).st_mode & 0o777))
"""
FULL = "mount -t tmpfs -o size=8k,mode=1777 none /dev/shm && exec"


@only_as_root
def test_texts_for_a_program_have_room_where_a_user_has_filled_the_shared_memory() -> None:
    words = ["unshare", "--mount", "sh", "-c", f'{FULL} "$@"', "sh", sys.executable, "-c", WRITE_TEXTS]
    done = limited(words)

    assert done.stdout == "9000 0o700\n", done.stderr[-1000:]


FIND_OURS = """
import sys
from pathlib import Path
from installer.host import kernel
def refuse(event, _):
    if event in {"os.listdir", "os.scandir"}:
        raise RuntimeError(event)
sys.addaudithook(refuse)
print(kernel.find_pid_beside_us(Path("/proc")))
"""


@only_as_root
def test_the_process_beside_us_is_found_without_a_list_of_all_processes() -> None:
    # Another pid namespace, in which /proc still shows the outer one, as a host's does in a pod.
    script = f"{sys.executable} -c '{FIND_OURS.replace(chr(39), chr(34))}'; sleep 1"
    with subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as unshared:
        assert unshared.stdout is not None
        found = unshared.stdout.readline().strip()
        # unshare(1) itself has the new mount namespace, and waits outside the new pid namespace.
        assert found == str(unshared.pid)


NO_END = """
import sys
from pathlib import Path
from installer.host.kubernetes import Api
account = Path(sys.argv[2])
api = Api("127.0.0.1", int(sys.argv[1]), account, account / "ready")
api.ask("GET", "/x") if sys.argv[3] == "ask" else [*api.watch("/x")]
"""


def never_end(client: ssl.SSLSocket) -> None:
    client.sendall(head())
    while True:
        client.sendall(b"x" * (64 << 10))


@pytest.mark.parametrize("way", ["ask", "watch"])
def test_an_answer_of_the_kubernetes_api_without_end_is_left(way: str, tmp_path: Path) -> None:
    with answering(never_end, tmp_path) as api:
        done = limited([sys.executable, "-c", NO_END, str(api.port), str(tmp_path), way])

    assert "an answer of more than 2 MB" in done.stderr, done.stderr[-500:]


def test_doctor_keeps_no_text_of_a_cdi_specification(tmp_path: Path) -> None:
    directory = tmp_path / "etc/cdi"
    directory.mkdir(parents=True)
    for number in range(300):
        with (directory / f"{number:03}.yaml").open("wb") as file:
            file.truncate(16 << 20 if number < 10 else 1 << 20)

    # Ten are too long, and the directory has more than are looked at.
    assert limited_script(READ_SPECIFICATIONS, tmp_path) == "257 11\n"
