"""Who else names the toolkit: where programs lead, which texts are searched, which other engines are read."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.observe import Node
from installer.change.references import is_removed
from installer.engines import ENGINES
from installer.engines.containers import SCRIPT_BYTES, leads_to
from installer.host.files import MOST_BYTES, Host
from installer.model.facts import (
    DeviceNode,
    EngineState,
    Facts,
    Record,
    Reference,
    ToolkitFacts,
)
from installer.model.files import File, Layout
from installer.model.options import Options

ROW, DOCKER = ENGINES["containerd"], ENGINES["docker"]
LAYOUT = Layout(PurePosixPath("/usr/local/nvidia"))
SITE, USUAL = PurePosixPath("/opt/site/bin"), PurePosixPath("/usr/bin")
PROGRAM = LAYOUT.toolkit / "nvidia-container-runtime"
VERSION = LAYOUT.versions / "1/nvidia-container-runtime"
HOOK = LAYOUT.toolkit / "nvidia-ctk"
SPEC = f'{{"hooks": [{{"path": "{HOOK}"}}]}}'
DAEMON = DOCKER.config


def put(root: Path, path: PurePosixPath | str, text: str = "") -> Path:
    place = root / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def node(
    host: Host,
    engines: tuple[EngineState, ...],
    contents: Mapping[PurePosixPath, File | None],
    held: Record = Record(),  # noqa: B008 - it is frozen
) -> Node:
    return Node(host, Options(), held, held, engines, contents)


def installed(root: Path) -> Host:
    """Put a toolkit at its place, behind its link."""
    put(root, VERSION, "ELF")
    put(root, LAYOUT.versions / "1/nvidia-ctk", "ELF")
    if not os.path.lexists(root / str(LAYOUT.toolkit)[1:]):
        (root / str(LAYOUT.toolkit)[1:]).symlink_to(".toolkit-installer/versions/1")
    return Host.under(PurePosixPath(root))


OTHER = "/usr/bin/other"
# The directories of PATH of each of two engines, of which an engine has one for each of its starts.
EACH_ITS_OWN = (((SITE,),), ((USUAL,),))


def links_of(host: Host, *values: str, paths: tuple[tuple[tuple[PurePosixPath, ...], ...], ...]) -> object:
    """Return where programs are that a text names, by the PATHs of each engine."""
    engines = (
        EngineState("containerd", ROW.config, None, None, (), ROW.socket, ROW.unit, paths=each)
        for each in paths
    )
    search = node(host, tuple(engines), {})
    return search.follow_links([Reference("a text names", each) for each in values])[0]


@pytest.mark.parametrize(
    ("links", "value", "paths", "leads"),
    [
        pytest.param({}, str(VERSION), EACH_ITS_OWN, None, id="a path that is what it says"),
        pytest.param({"opt/gpu": "/opt/gpu"}, "/opt/gpu", EACH_ITS_OWN, None, id="a link to itself"),
        pytest.param({"usr/bin/gpu": OTHER}, "gpu", (((SITE, USUAL),),), VERSION, id="ours is first"),
        pytest.param(
            {"usr/bin/gpu": OTHER}, "gpu", (((USUAL, SITE),),), PurePosixPath(OTHER), id="ours is second"
        ),
        pytest.param(
            {"usr/bin/gpu": OTHER}, "gpu", (((USUAL,), (SITE, USUAL)),), VERSION, id="ours at the next start"
        ),
    ],
)
def test_a_program_is_told_where_it_really_is_unless_it_is_what_it_says(
    tmp_path: Path,
    links: dict[str, str],
    value: str,
    paths: tuple[tuple[tuple[PurePosixPath, ...], ...], ...],
    leads: PurePosixPath | None,
) -> None:
    host = installed(tmp_path)
    put(tmp_path, OTHER)
    for name, target in {"opt/site/bin/gpu": str(VERSION), **links}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(target)

    assert links_of(host, value, paths=paths) == ({} if leads is None else {value: leads})


def test_an_install_dir_behind_a_link_is_known_by_both_names(tmp_path: Path) -> None:
    (tmp_path / "mnt/local").mkdir(parents=True)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/local").symlink_to("/mnt/local")

    found = links_of(Host.under(PurePosixPath(tmp_path)), paths=(((SITE, USUAL),),))

    assert found == {str(LAYOUT.install_dir): PurePosixPath("/mnt/local/nvidia")}


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        pytest.param(f"#!/bin/sh\nexec {PROGRAM}\n", True, id="a script names it"),
        pytest.param(f"#!/bin/sh\nexec {VERSION}\n", True, id="what its link leads to"),
        pytest.param(f"#!/bin/sh\n# exec {PROGRAM}\n", False, id="in a comment"),
        pytest.param("#!/bin/sh\nexec /usr/bin/1\n", False, id="through another script"),
        pytest.param(f"#!/bin/sh\n{'#' * SCRIPT_BYTES}\nexec {PROGRAM}\n", False, id="a long one"),
    ],
)
def test_a_script_leads_to_the_toolkit_that_it_names(tmp_path: Path, text: str, *, ours: bool) -> None:
    host = installed(tmp_path)
    put(tmp_path, USUAL / "0", text)
    put(tmp_path, USUAL / "1", f"#!/bin/sh\nexec {PROGRAM}\n")

    assert (leads_to(host, USUAL / "0", LAYOUT) is not None) is ours


def docker(unit: str, pid: int | None) -> EngineState:
    return EngineState("docker", DAEMON, None, None, (DAEMON,), DOCKER.socket, unit, pid=pid)


def texts(root: Path, *nodes: DeviceNode) -> list[tuple[str, str]]:
    """Return what texts name of the toolkit, and of device nodes that we have made."""
    engines = (docker("docker.service", None),)
    facts = Facts(engines, {}, {}, frozenset(), ToolkitFacts(), Record(nodes=nodes))
    return [(each.how, each.program) for each in searched(installed(root), facts).references]


def searched(host: Host, facts: Facts) -> Facts:
    """Return the facts with what names the toolkit."""
    search = node(host, facts.engines, facts.contents, facts.held)
    found = tuple(search.find_references())
    links, returning = search.follow_links(found)
    return replace(facts, references=found, links=links, returning=returning)


def test_each_file_is_read_once_also_by_two_names(tmp_path: Path) -> None:
    put(tmp_path, "/etc/cdi/a.json", SPEC)
    (tmp_path / "etc/cdi/b.json").symlink_to("a.json")
    (tmp_path / "etc/cdi/c.json").mkdir()

    assert texts(tmp_path) == [("/etc/cdi/a.json names", str(HOOK))]


def test_device_nodes_of_ours_that_a_text_names_are_told_too(tmp_path: Path) -> None:
    put(tmp_path, "/etc/cdi/a.json", '{"path": "/dev/nvidia0", "other": "/dev/nvidia01"}')
    node = DeviceNode(PurePosixPath("/dev/nvidia0"), "a boot:7")

    assert texts(tmp_path) == []
    assert texts(tmp_path, node)[0] == ("/etc/cdi/a.json names", "/dev/nvidia0")


CONFIG = f'{{"runtimes": {{"nvidia": {{"path": "{PROGRAM}"}}}}}}'


def process(root: Path, cmdline: str) -> None:
    """Put what the kernel tells of a dockerd with pid 50 below ``root``."""
    for pid in (1, 50):
        put(root, f"proc/{pid}/status", "Name:\tx\nUid:\t0\t0\t0\t0\n")
        (root / f"proc/{pid}/ns").mkdir()
        (root / f"proc/{pid}/ns/mnt").symlink_to("mnt:[4026531841]")
    put(root, "opt/dockerd", "ELF").chmod(0o755)
    put(root, "proc/50/comm", "dockerd\n")
    put(root, "proc/50/cmdline", cmdline.replace(" ", "\0") + "\0")
    put(root, "proc/50/cgroup", "0::/system.slice/other.service\n")
    (root / "proc/50/exe").symlink_to(root / "opt/dockerd")


def beside(root: Path, *engines: EngineState, read: bool = False) -> list[tuple[str, str]]:
    """Return what engines name that run beside these."""
    contents = {DAEMON: File(CONFIG.encode())} if read else {}
    known = Facts(engines, contents, {}, frozenset(), ToolkitFacts(), Record())
    found = searched(Host.under(PurePosixPath(root)), known)
    said = "Docker of other.service runs and "
    return [
        (each.how.removeprefix(said), each.remedy)
        for each in found.references
        if each.how.startswith(said) and is_removed(found, each.program, LAYOUT)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("its programs have to be root's")
    installed(tmp_path)
    return tmp_path


REMEDY = "correct that, stop or restart other.service"
READS = ("reads /srv/daemon.json, which names", REMEDY)


def test_a_flag_of_another_engine_names_the_toolkit(root: Path) -> None:
    process(root, f"dockerd --add-runtime gpu={PROGRAM}")

    assert beside(root) == [("was started with a flag for gpu, which starts", REMEDY)]


def test_a_config_without_end_names_nothing(root: Path) -> None:
    process(root, "dockerd --config-file=/srv/daemon.json")
    put(root, "srv/daemon.json", " " * MOST_BYTES + CONFIG)

    assert beside(root) == []


@pytest.mark.parametrize(
    ("engine", "known"),
    [
        pytest.param(docker("docker.service", 50), True, id="that process"),
        pytest.param(docker("docker.service", 51), False, id="another process"),
        pytest.param(docker("other.service", None), True, id="its unit, where no process is seen"),
        pytest.param(replace(docker("other.service", 50), name="containerd"), False, id="another engine"),
    ],
)
def test_an_engine_of_ours_is_no_other(root: Path, engine: EngineState, *, known: bool) -> None:
    process(root, "dockerd --config-file /srv/daemon.json")
    put(root, "srv/daemon.json", CONFIG)

    assert beside(root, engine) == ([] if known else [READS])


def test_a_config_that_is_judged_already_is_not_told_again(root: Path) -> None:
    process(root, "dockerd")
    put(root, "etc/docker/daemon.json", CONFIG)

    assert beside(root) == [("reads /etc/docker/daemon.json, which names", REMEDY)]
    assert beside(root, read=True) == []


def test_no_engine_beside_ours_is_spoken_to(root: Path) -> None:
    process(root, "dockerd")
    here = root / "run/nri/nri.sock"
    here.parent.mkdir(parents=True)
    (root / "proc/50/fd").mkdir()
    (root / "proc/50/fd/5").symlink_to("socket:[77]")
    put(root, "proc/50/net/unix", f"Num\n0000: 00000002 00000000 00010000 0001 01 77 {here}\n")
    directory = os.open(here.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{directory}/{here.name}")
        server.listen()
        server.settimeout(0)

        others = beside(root)

        with pytest.raises(BlockingIOError):
            server.accept()
    os.close(directory)
    assert others == []
