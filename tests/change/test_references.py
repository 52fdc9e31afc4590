"""Who else names the toolkit: where programs lead, which texts are searched, which other engines are read."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change import reference_search
from installer.change.reference_search import ReferenceSearch
from installer.change.references import find_named_in_toolkit, find_references, remember_named
from installer.engines import ENGINES
from installer.host import processes
from installer.host.files import Host
from installer.model.engine import EngineState, Started
from installer.model.facts import (
    ConfigRow,
    DeviceNode,
    EngineRow,
    Facts,
    Record,
    Reference,
    ToolkitFacts,
    ToolkitRow,
)
from installer.model.files import VERSIONS, File, Kind, Layout
from installer.model.options import Options
from tests.change.golden import NOTHING
from tests.support.files import put

ROW = ENGINES["containerd"]
LAYOUT = Layout(PurePosixPath("/usr/local/nvidia"))
SITE, USUAL = PurePosixPath("/opt/site/bin"), PurePosixPath("/usr/bin")
PROGRAM = LAYOUT.toolkit / "nvidia-container-runtime"
VERSION = LAYOUT.versions / "1/nvidia-container-runtime"


def node(host: Host, *engines: EngineState, held: Record = NOTHING) -> ReferenceSearch:
    return ReferenceSearch(host, Options().layout, held, engines, {})


def installed(root: Path) -> Host:
    """Put a toolkit at its place, behind its link."""
    host = put(root, {VERSION: "ELF", VERSION.with_name("nvidia-ctk"): "ELF"})
    host.link(LAYOUT.toolkit, ".toolkit-installer/versions/1")
    return host


OTHER = PurePosixPath("/usr/bin/other")


def links_of(host: Host, value: str, *starts: tuple[PurePosixPath, ...]) -> dict[str, PurePosixPath]:
    """Return where a program is that a text names, by the PATH of each start of an engine."""
    engine = EngineState(ROW, ROW.config, None, None, (), ROW.socket, ROW.unit, paths=starts)
    return dict(node(host, engine).follow_links([Reference("a text names", value)]).links)


@pytest.mark.parametrize(
    ("value", "starts", "leads"),
    [
        (str(VERSION), ((SITE,),), None),
        ("/opt/gpu", ((SITE,),), None),
        ("gpu", ((SITE, USUAL),), VERSION),
        ("gpu", ((USUAL, SITE),), OTHER),
        ("gpu", ((USUAL,), (SITE, USUAL)), VERSION),
    ],
    ids=["what it says", "a link to itself", "ours is first", "ours is second", "ours at the next start"],
)
def test_a_program_is_told_where_it_really_is_unless_it_is_what_it_says(
    tmp_path: Path, value: str, starts: tuple[tuple[PurePosixPath, ...], ...], leads: PurePosixPath | None
) -> None:
    host = installed(tmp_path)
    put(tmp_path, {OTHER: "", SITE / "none": ""})
    for name, target in ((SITE / "gpu", VERSION), (USUAL / "gpu", OTHER), ("/opt/gpu", "/opt/gpu")):
        (tmp_path / str(name)[1:]).symlink_to(target)

    assert links_of(host, value, *starts) == ({} if leads is None else {value: leads})


def test_an_install_dir_behind_a_link_is_known_by_both_names(tmp_path: Path) -> None:
    (tmp_path / "mnt/local").mkdir(parents=True)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/local").symlink_to("/mnt/local")

    found = links_of(Host.under(PurePosixPath(tmp_path)), "none", (SITE,))

    assert found == {str(LAYOUT.install_dir): PurePosixPath("/mnt/local/nvidia")}


def test_device_nodes_of_ours_that_a_text_names_are_told_too(tmp_path: Path) -> None:
    host = put(tmp_path, {"/etc/cdi/a.json": '{"path": "/dev/nvidia0"}'})
    born = (DeviceNode(PurePosixPath("/dev/nvidia0"), "a boot:7"),)
    docker = EngineState.usual(ENGINES["docker"])

    (found,) = node(host, docker, held=Record(nodes=born)).search()

    assert [*node(host, docker).search()] == []
    assert (found.how, found.program) == ("/etc/cdi/a.json names", "/dev/nvidia0")


@pytest.mark.parametrize(
    "place",
    [
        "/etc/cdi/site.yaml",
        "/var/run/cdi/site.json",
        "/usr/share/containers/oci/hooks.d/site.json",
        "/etc/containers/oci/hooks.d/site.json",
        "/etc/containers/containers.conf",
        "/etc/containers/containers.conf.d/site.conf",
        "/usr/share/containers/containers.conf",
        "/usr/share/containers/containers.conf.d/site.conf",
        "/etc/systemd/system/site.service",
        "/etc/systemd/system/docker.service.d/site.conf",
        "/run/systemd/system/docker.service.d/site.conf",
        "/usr/local/lib/systemd/system/site.service",
        "/usr/lib/systemd/system/site.service",
        "/lib/systemd/system/docker.service.d/site.conf",
        "/etc/docker/site.json",
        "/etc/containerd/conf.d/site.toml",
        "/etc/crio/crio.conf.d/site.conf",
    ],
)
def test_a_text_where_others_keep_theirs_is_searched(tmp_path: Path, place: str) -> None:
    host = put(tmp_path, {place: f'runs = "{PROGRAM}"\n'})

    found = [*node(host, EngineState.usual(ENGINES["docker"])).search()]

    assert [(each.how, each.program) for each in found] == [(f"{place} names", str(PROGRAM))]


def test_a_text_behind_a_link_is_searched_and_told_once(tmp_path: Path) -> None:
    unit = "usr/lib/systemd/system/site.service"
    host = put(tmp_path, {unit: f"ExecStart={PROGRAM}\n", "srv/more.d/site.conf": f"ExecStart={PROGRAM}\n"})
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/alias.service").symlink_to(f"/{unit}")
    (tmp_path / "etc/systemd/system/site.service.d").symlink_to("/srv/more.d")

    found = [*node(host, EngineState.usual(ENGINES["docker"])).search()]

    assert sorted(each.how for each in found) == [
        "/etc/systemd/system/alias.service names",
        "/etc/systemd/system/site.service.d/site.conf names",
    ]


def _stat(state: str, ticks: int) -> str:
    """Return what the kernel tells of a dockerd that has begun so many ticks after the boot."""
    return f"50 (dockerd) {state}{' 0' * 18} {ticks}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a node on which a dockerd runs beside ours, as the kernel tells of it."""
    if os.geteuid() != 0:
        pytest.skip("its programs have to be root's")
    installed(tmp_path)
    words = ("dockerd", f"--add-runtime=gpu={PROGRAM}", "--config-file", "/srv/daemon.json")
    put(
        tmp_path,
        {f"proc/{pid}/status": "Name:\tx\nUid:\t0\t0\t0\t0\n" for pid in (1, 50)}
        | {
            "proc/50/comm": "dockerd\n",
            "proc/50/stat": _stat("S", 10**12),  # later than all its files
            "proc/50/cmdline": "".join(f"{word}\0" for word in words),
            "proc/50/cgroup": "0::/system.slice/other.service\n",
            "srv/daemon.json": f'{{"runtimes": {{"nvidia": {{"path": "{PROGRAM}"}}}}}}',
        },
    )
    put(tmp_path, {"opt/dockerd": "ELF"}, 0o755)
    (tmp_path / "proc/50/exe").symlink_to(tmp_path / "opt/dockerd")
    for pid in (1, 50):
        (tmp_path / f"proc/{pid}/ns").mkdir()
        (tmp_path / f"proc/{pid}/ns/mnt").symlink_to("mnt:[4026531841]")
    return tmp_path


def beside(root: Path, *engines: EngineState) -> list[str]:
    """Return what engines name that run beside these."""
    said = "Docker of other.service runs and "
    found = node(Host.under(PurePosixPath(root)), *engines).search()
    return [each.how.removeprefix(said) for each in found if each.how.startswith(said)]


FLAG, READS = "was started with a flag for gpu, which starts", "reads /srv/daemon.json, which names"


@pytest.mark.parametrize(
    ("name", "unit", "pid", "known"),
    [
        ("docker", "docker.service", 50, True),
        ("docker", "docker.service", 51, False),
        ("docker", "other.service", None, True),  # where no process is seen
        ("containerd", "other.service", 50, False),
    ],
)
def test_an_engine_beside_ours_names_the_toolkit_by_its_config_and_its_flags_and_ours_is_no_other(
    root: Path, name: str, unit: str, pid: int | None, *, known: bool
) -> None:
    engine = replace(EngineState.usual(ENGINES[name]), unit=unit, pid=pid)

    assert sorted(beside(root, engine)) == ([] if known else [READS, FLAG])


def test_a_zombie_is_no_engine(root: Path) -> None:
    put(root, {"proc/50/stat": _stat("Z", 10**12)})

    assert beside(root) == []


def starts_silently(root: Path, config: str) -> None:
    """Have the dockerd beside ours start now, with a config; nothing listens on a socket of it."""
    time.sleep(0.05)  # a start is known to 0.01 s
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    put(root, {"proc/50/stat": _stat("S", ticks), "proc/50/cmdline": f"dockerd\0--config-file\0{config}\0"})
    time.sleep(0.05)


def move_a_link(srv: Path) -> None:
    (srv / "cur").unlink()
    (srv / "cur").symlink_to("v2")


def move_the_directory(srv: Path) -> None:
    (srv / "v1").rename(srv / "gone")
    (srv / "v2").rename(srv / "v1")


def write_the_config(srv: Path) -> None:
    (srv / "v1/daemon.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(move_a_link, "/srv/cur", id="a link above"),
        pytest.param(move_the_directory, "/srv/v1", id="its directory"),
        pytest.param(write_the_config, "/srv/cur/daemon.json", id="the config"),
        pytest.param(lambda srv: (srv / "v1/certs.d").mkdir(), "", id="a directory beside it"),
        pytest.param(lambda srv: (srv / "other").write_text(""), "", id="a file beside a link"),
    ],
)
def test_a_silent_engine_has_not_read_what_came_to_the_place_of_its_config_since_its_start(
    root: Path, change: Callable[[Path], object], told: str
) -> None:
    put(root, {"srv/v1/daemon.json": "{}", "srv/v2/daemon.json": "{}"})
    (root / "srv/cur").symlink_to("v1")
    starts_silently(root, "/srv/cur/daemon.json")

    change(root / "srv")

    unread = [each.how for each in node(Host.under(PurePosixPath(root))).search()]
    assert [f"has not read {told} since" in how for how in unread] == ([True] if told else [])


def test_a_silent_engine_whose_config_cannot_be_found_may_start_our_programs(root: Path) -> None:
    (root / "srv/loop.json").symlink_to("loop.json")
    starts_silently(root, "/srv/loop.json")

    (found,) = node(Host.under(PurePosixPath(root))).search()

    assert found.program == str(PROGRAM)
    assert "its config is unknown (follow /srv/loop.json (its links go round in a circle))" in found.how
    assert found.remedy == "correct the links, and restart other.service"


CONMON = ("conmon", "-c", "3f6c", "-n", "trainer", "-r", str(PROGRAM), "--exit-command", "/usr/bin/podman")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (CONMON, ["Podman runs the container trainer with"]),
        (CONMON[:-2], []),
        ((*CONMON[:-1], "/usr/bin/crio"), []),
    ],
    ids=["of Podman", "of CRI-O", "of another"],
)
def test_a_container_that_podman_runs_on_ours_is_told(
    root: Path, words: tuple[str, ...], told: list[str]
) -> None:
    put(root, {"proc/50/comm": "conmon\n", "proc/50/cmdline": "".join(f"{word}\0" for word in words)})

    found = node(Host.under(PurePosixPath(root))).search()

    assert [each.how for each in found if each.program == str(PROGRAM)] == told


def test_processes_that_cannot_be_looked_at_in_time_may_need_the_toolkit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_S", -1.0)

    (found,) = node(Host.under(PurePosixPath(root))).search()

    assert found.program == str(PROGRAM)
    assert found.how.startswith("not all processes can be looked at")


def test_processes_of_other_users_are_passed_over_without_their_status(root: Path) -> None:
    """Anyone may run ten thousands: what is read of each decides how many can be looked at in time."""
    status = root / "proc/40/status"
    put(root, {"proc/40/status": "Name:\tx\nUid:\t0\t0\t0\t0\n", "proc/40/comm": "dockerd\n"})
    os.utime(status, (0, 0))
    os.chown(status.parent, 65534, 65534)

    assert len(beside(root)) == 2

    assert status.stat().st_atime == 0


def test_processes_of_a_container_are_passed_over_without_their_status(root: Path) -> None:
    status = root / "proc/40/status"
    put(root, {"proc/40/status": "Name:\tx\nUid:\t0\t0\t0\t0\n", "proc/40/comm": "dockerd\n"})
    (root / "proc/40/exe").symlink_to(root / "opt/dockerd")
    (root / "proc/40/ns").mkdir()
    (root / "proc/40/ns/mnt").symlink_to("mnt:[4026540000]")
    os.utime(status, (0, 0))

    assert len(beside(root)) == 2

    assert status.stat().st_atime == 0


@pytest.mark.parametrize(
    ("cgroup", "of_root", "told"),
    [
        pytest.param("/system.slice/other.service", "", 2, id="PrivateTmp=yes"),
        pytest.param("/system.slice/other.service", "opt", 0, id="RootDirectory="),
        pytest.param("/other.service", "", 2, id="Slice=-.slice"),
        pytest.param("/system.slice/docker-a1b2.scope", "", 0, id="a container"),
    ],
)
def test_an_engine_with_mounts_of_its_own_is_the_hosts_by_service_and_root(
    root: Path, cgroup: str, of_root: str, told: int
) -> None:
    mounts = root / "proc/50/ns/mnt"
    mounts.unlink()
    mounts.symlink_to("mnt:[4026540000]")
    put(root, {"proc/50/cgroup": f"0::{cgroup}\n"})
    (root / "proc/1/root").symlink_to(root)
    (root / "proc/50/root").symlink_to(root / of_root)

    assert len(beside(root)) == told


@pytest.mark.parametrize(
    ("cgroup", "told"),
    [
        ("/system.slice/other.service", 2),
        ("/../../../system.slice/other.service", 2),
        ("/other.service", 2),
        ("/system.slice/docker-a1b2.scope", 0),
        ("/docker/a1b2/system.slice/other.service", 0),
        ("/../a1b2/system.slice/other.service", 0),
        ("/kubepods.slice/a.slice/cri-containerd-a.scope/system.slice/other.service", 0),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/other.service", 0),
    ],
)
def test_an_engine_that_may_not_be_looked_at_is_known_by_its_service(
    root: Path, cgroup: str, told: int
) -> None:
    """In our pod the kernel tells neither the program nor the namespaces of the host's processes."""
    (root / "proc/50/exe").unlink()
    (root / "proc/50/ns/mnt").unlink()
    put(root, {"proc/50/cgroup": f"0::{cgroup}\n"})

    found = [*node(Host.under(PurePosixPath(root))).search()]

    assert len(found) == told, found


def test_files_beyond_the_most_that_are_read_may_need_the_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_search, "MOST_FILES", 2)
    host = put(tmp_path, {f"etc/containerd/conf.d/{number}.toml": "" for number in range(3)})

    (found,) = node(host).search()

    assert found.program == str(PROGRAM)
    assert "only 2 files" in found.how


def test_no_engine_beside_ours_is_spoken_to(root: Path) -> None:
    here = root / "run/nri/nri.sock"
    here.parent.mkdir(parents=True)
    put(root, {"proc/50/net/unix": f"Num\n0000: 00000002 00000000 00010000 0001 01 77 {here}\n"})
    (root / "proc/50/fd").mkdir()
    (root / "proc/50/fd/5").symlink_to("socket:[77]")
    directory = os.open(here.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{directory}/{here.name}")
        server.listen()
        server.settimeout(0)

        beside(root)

        with pytest.raises(BlockingIOError):
            server.accept()
    os.close(directory)


@pytest.mark.parametrize(
    ("served", "named"), [((), (str(PROGRAM),)), (("docker",), ()), (("containerd",), ())]
)
def test_a_config_is_known_to_name_the_toolkit_before_us_only_if_no_engine_had_us(
    served: tuple[str, ...], named: tuple[str, ...]
) -> None:
    """Its owner may name the toolkit of containerd's install before Docker gets our runtimes."""
    config = PurePosixPath("/etc/docker/daemon.json")
    text = File(f'{{"runtimes": {{"mine": {{"path": "{PROGRAM}"}}}}}}'.encode())
    engines = tuple(EngineRow(name, ENGINES[name].socket, ENGINES[name].unit, {}) for name in served)
    facts = Facts((), {config: text}, {}, frozenset(), ToolkitFacts(), Record(engines=engines))
    row = ConfigRow("docker", config, syntax=None, original=None, ours=(), edits=())

    (remembered,) = remember_named([row], facts, LAYOUT)

    assert remembered.named == named


OWNERS = LAYOUT.versions / "1/own/file"
NAMED = LAYOUT.toolkit / "own/file"
AT_START = "the command line of Docker names"


@pytest.mark.parametrize(
    ("now", "later", "config", "how"),
    [
        pytest.param(("--seccomp-profile", str(NAMED)), (), "", AT_START, id="a flag"),
        pytest.param((f"--userland-proxy-path={NAMED}",), (), "", AT_START, id="behind an equals sign"),
        pytest.param((), (f"--init-path={NAMED}",), "", AT_START, id="at the next start"),
        pytest.param((), (), str(NAMED), "an engine reads", id="a config that is read"),
    ],
)
def test_a_file_of_an_owner_in_the_toolkit_is_named_by_an_engines_start(
    tmp_path: Path, now: tuple[str, ...], later: tuple[str, ...], config: str, how: str
) -> None:
    host = installed(tmp_path)
    put(tmp_path, {OWNERS: "{}"})
    usual = EngineState.usual(ENGINES["docker"])
    engine = replace(usual, started=Started(now), next_start=Started((*now, *later)))
    contents = {PurePosixPath(config): File(b"{}")} if config else {}
    search = ReferenceSearch(host, LAYOUT, NOTHING, (engine,), contents)

    named = search.follow_links(())

    toolkit = ToolkitFacts(Kind.LINK, f"{VERSIONS}1")
    facts = Facts((engine,), contents, {}, frozenset(), toolkit, NOTHING, in_toolkit=named.in_toolkit)
    assert list(named.portable) == [PurePosixPath("own/file")]
    found = find_named_in_toolkit(facts, ())
    assert [(each.how, each.program) for each in found[PurePosixPath("own/file")]] == [(how, str(NAMED))]
    kept = [each.problem for each in find_references(facts, (), Options())]
    assert kept == ([] if config else [f"remove the toolkit ({how} {NAMED})"])


@pytest.mark.parametrize(
    ("toolkit", "record", "is_kept"),
    [
        pytest.param(ToolkitFacts(Kind.DIRECTORY), Record(), False, id="the owner's directory"),
        pytest.param(ToolkitFacts(Kind.LINK, "/opt/theirs"), Record(), False, id="the owner's link"),
        pytest.param(ToolkitFacts(Kind.LINK, f"{VERSIONS}1"), Record(), True, id="our link"),
        pytest.param(
            ToolkitFacts(Kind.LINK, "/opt"),
            Record(toolkit=ToolkitRow("1", None, "")),
            True,
            id="our toolkit behind another link",
        ),
    ],
)
def test_an_undo_removes_nothing_of_an_owner_after_an_install_that_was_rolled_back(
    toolkit: ToolkitFacts, record: Record, *, is_kept: bool
) -> None:
    """The first install has failed: the ledger knows only the failure, and a config names an owner's program."""
    config = PurePosixPath("/etc/docker/daemon.json")
    text = File(f'{{"runtimes": {{"mine": {{"path": "{NAMED}"}}}}}}'.encode())
    facts = Facts((), {config: text}, {}, frozenset(), toolkit, record)

    kept = [each.problem for each in find_references(facts, (), Options())]

    assert kept == ([f"remove the toolkit ({config} names {NAMED})"] if is_kept else [])
