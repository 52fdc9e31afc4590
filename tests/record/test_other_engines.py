"""Engines beside ours: which processes are such, and what they name of the toolkit."""

import os
import socket
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.facts import EngineFacts, Facts, ToolkitFacts
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.rows import Record
from installer.host.files import MOST_BYTES, Host
from installer.host.process_table import Seen
from installer.record.other_engines import row_of, with_other_engines

LAYOUT = Layout()
OURS = LAYOUT.toolkit / "nvidia-container-runtime"
CONFIG = f'{{"runtimes": {{"nvidia": {{"path": "{OURS}"}}}}}}'
INIT = "mnt:[4026531841]"


@pytest.mark.parametrize(
    ("name", "program", "cmdline", "row"),
    [
        ("dockerd", "/usr/bin/dockerd", ("dockerd",), "docker"),
        ("containerd", "/usr/bin/containerd", ("containerd",), "containerd"),
        ("crio", "/usr/bin/crio", ("crio",), "crio"),
        ("x", "/opt/dockerd-gpu", ("x",), "docker"),
        ("docker-containe", "/usr/bin/docker-containerd", (), "containerd"),
        ("containerd", "/opt/dockerd-gpu", (), "containerd"),  # the whole name counts first
        ("sleep", "/bin/sleep", ("sleep", "dockerd"), ""),
        ("containerd-shim", "/usr/bin/containerd-shim-runc-v2", (), ""),
        ("ctr", "/usr/bin/ctr", ("ctr", "containerd"), ""),
        ("cri-dockerd", "/usr/bin/cri-dockerd", (), ""),
        ("dockerd-rootles", "/usr/bin/dockerd-rootless.sh", (), ""),
        ("ld-linux-x86-64", "/lib64/ld-linux-x86-64.so.2", ("ld", "--argv0", "/opt/dockerd"), "docker"),
        ("ld-linux-x86-64", "/lib64/ld-linux-x86-64.so.2", ("/opt/dockerd", "-x", "/bin/true"), ""),
        ("ld-linux-x86-64", "/lib64/ld-linux-x86-64.so.2", ("ld", "--dockerd"), ""),
    ],
)
def test_a_process_is_read_as_the_engine_whose_name_it_or_its_program_has(
    name: str, program: str, cmdline: tuple[str, ...], row: str
) -> None:
    seen = Seen(7, name, program, deleted=False, cmdline=cmdline, file=(1, 1), of_host=True)

    found = row_of(seen)

    assert (found.name if found else "") == row


def put(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def process(root: Path, cmdline: str, cgroup: str = "0::/system.slice/other.service\n") -> None:
    """Put what the kernel tells of pid 50, dockerd, below ``root``."""
    for pid in (1, 50):
        put(root, f"proc/{pid}/status", "Name:\tx\nUid:\t0\t0\t0\t0\n")
        (root / f"proc/{pid}/ns").mkdir()
        (root / f"proc/{pid}/ns/mnt").symlink_to(INIT)
    put(root, "usr/bin/dockerd", "ELF")
    (root / "usr/bin/dockerd").chmod(0o755)
    put(root, "proc/50/comm", "dockerd\n")
    put(root, "proc/50/cmdline", cmdline.replace(" ", "\0") + "\0")
    put(root, "proc/50/cgroup", cgroup)
    (root / "proc/50/exe").symlink_to(root / "usr/bin/dockerd")
    (root / "proc/50/root").symlink_to(root)
    (root / "proc/50/cwd").symlink_to("/srv")


def docker(unit: str, pid: int | None) -> EngineFacts:
    row = ENGINES["docker"]
    return EngineFacts("docker", row.config, None, None, (row.config,), row.socket, unit, pid=pid)


def found(root: Path, *engines: EngineFacts, read: bool = False) -> list[tuple[str, tuple[str, ...]]]:
    config = ENGINES["docker"].config
    contents = {config: File(CONFIG.encode())} if read else {}
    facts = Facts(engines, contents, {}, frozenset(), (), ToolkitFacts(), Record())
    others = with_other_engines(Host.under(PurePosixPath(root)), facts, LAYOUT).other_engines
    assert {each.name for each in others} <= {"docker"}
    return [(each.unit, each.named) for each in others]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("its programs have to be root's")
    put(tmp_path, str(OURS)[1:], "ELF")
    return tmp_path


READS = f"reads /srv/daemon.json, which names {OURS}"
USUAL = f"reads /etc/docker/daemon.json, which names {OURS}"


@pytest.mark.parametrize(
    ("cmdline", "files", "named"),
    [
        pytest.param("dockerd", {}, (), id="nothing"),
        pytest.param("dockerd", {"etc/docker/daemon.json": CONFIG}, (USUAL,), id="by its usual config"),
        pytest.param(
            "dockerd", {"etc/docker/daemon.json": " " * MOST_BYTES + CONFIG}, (), id="by one without end"
        ),
        pytest.param(
            "dockerd --config-file /srv/daemon.json", {"srv/daemon.json": CONFIG}, (READS,), id="by another"
        ),
        pytest.param(
            "dockerd --config-file=daemon.json", {"srv/daemon.json": CONFIG}, (READS,), id="where it runs"
        ),
        pytest.param(
            "dockerd --config-file /srv/daemon.json", {"etc/docker/daemon.json": CONFIG}, (), id="not read"
        ),
        pytest.param(
            f"dockerd --add-runtime gpu={OURS}",
            {},
            (f"was started with a flag for gpu, which starts {OURS}",),
            id="by a flag",
        ),
        pytest.param(
            "dockerd",
            {"etc/docker/daemon.json": CONFIG.replace(str(OURS), "/usr/bin/runc")},
            (),
            id="of others",
        ),
    ],
)
def test_what_an_engine_names_of_the_toolkit(
    root: Path, cmdline: str, files: dict[str, str], named: tuple[str, ...]
) -> None:
    process(root, cmdline)
    for name, text in files.items():
        put(root, name, text)

    assert found(root) == ([("other.service", named)] if named else [])


@pytest.mark.parametrize(
    ("engine", "known"),
    [
        pytest.param(docker("docker.service", 50), True, id="that process"),
        pytest.param(docker("docker.service", 51), False, id="another process"),
        pytest.param(docker("other.service", None), True, id="its unit, where no process is seen"),
        pytest.param(docker("docker.service", None), False, id="another unit"),
        pytest.param(replace(docker("other.service", 50), name="containerd"), False, id="another engine"),
    ],
)
def test_an_engine_of_ours_is_no_other(root: Path, engine: EngineFacts, *, known: bool) -> None:
    process(root, "dockerd --config-file /srv/daemon.json")
    put(root, "srv/daemon.json", CONFIG)

    assert found(root, engine) == ([] if known else [("other.service", (READS,))])


def test_a_config_that_is_judged_already_is_not_told_again(root: Path) -> None:
    process(root, "dockerd", cgroup="0::/\n")
    put(root, "etc/docker/daemon.json", CONFIG)

    assert found(root) == [("pid 50", (USUAL,))]
    assert found(root, read=True) == []


@pytest.mark.parametrize("of_host", [True, False], ids=["as the host has it", "as its container has it"])
def test_an_engine_reads_the_files_that_it_sees(root: Path, *, of_host: bool) -> None:
    process(root, "dockerd")
    (root / "its").mkdir()
    if not of_host:
        (root / "proc/50/ns/mnt").unlink()
        (root / "proc/50/ns/mnt").symlink_to("mnt:[4026539999]")
    (root / "proc/50/root").unlink()
    (root / "proc/50/root").symlink_to(root / "its")
    put(root / "its", "etc/docker/daemon.json", "{}" if of_host else CONFIG)
    (root / "its" / str(OURS)[1:]).parent.mkdir(parents=True)
    (root / "its" / str(OURS)[1:]).hardlink_to(root / str(OURS)[1:])
    put(root, "etc/docker/daemon.json", CONFIG if of_host else "{}")

    assert found(root) == [("other.service", (USUAL,))]
    # What is judged is the host's file of that name.
    assert found(root, read=True) == ([] if of_host else [("other.service", (USUAL,))])


@pytest.mark.parametrize("name", ["run/nri/nri.sock", "run/containerd/containerd.sock"])
def test_no_engine_beside_ours_is_spoken_to(root: Path, name: str) -> None:
    process(root, "dockerd")
    (root / name).parent.mkdir(parents=True)
    (root / "proc/50/fd").mkdir()
    (root / "proc/50/fd/5").symlink_to("socket:[77]")
    here = root / name
    put(root, "proc/50/net/unix", f"Num\n0000: 00000002 00000000 00010000 0001 01 77 {here}\n")
    directory = os.open(here.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{directory}/{here.name}")
        server.listen()
        server.settimeout(0)

        others = found(root)

        with pytest.raises(BlockingIOError):
            server.accept()
    os.close(directory)
    assert others == []
