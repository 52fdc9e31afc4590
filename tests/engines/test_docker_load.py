"""What dockerd refuses only when it reloads or starts: no reload of ours runs into it."""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.ask import parse_version
from installer.engines.docker.next_start import find_start_errors, is_cdi_on
from installer.model.engine import EngineState, HostReader, LoadInput
from installer.model.files import Kind
from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.dockerds import Dockerd, dockerd_of
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.roots import Roots
from tests.engines.told import but_the_ledger, sentence, served, snapshot
from tests.engines.versions import EngineSet
from tests.support.waiting import until

REGISTRIES: Final = (
    *("a b", "-x", "x-", "http://x", "HTTP://x", "https://x:5000", "ftp://x", "10.0.0.0/8", "10.0.0.0/99"),
    *("::1", "[::1]", "[::1]:5000", "x:70000", "x:y", "x:", "a_b", "a_b.c", "x/y", "", "a..b", ".x", "x."),
    *("reg.example.com:5000", "\u00e9", "fe80::/10", "1.2.3.4", "1.2.3.4:5000", "x:0", " x"),
)
URLS: Final = (
    *("x", "ftp://x", "http://x", "https://x/", "https://x/y", "https://x/y/", "https://x?z", "https://x#z"),
    *("https://u:p@x", "https://u@x", "https://", "https://x:70000", "https://[::1]:5000", "https://a b"),
    *("HTTPS://x", "https://x:y", "https://x/?", "", " https://x"),
)
MIRRORS: Final = "registry-mirrors"
KEYS: Final = {
    "insecure-registries": REGISTRIES,
    MIRRORS: URLS,
    "allow-nondistributable-artifacts": REGISTRIES,
}
BAD: Final = {"insecure-registries": ["reg.example.com:5000", "a b"]}


# By name: keys with which dockerd dies at its start only, and others with which it starts.
DEATHS: Final[dict[str, dict[str, Any]]] = {
    "storage driver": {"storage-driver": "nope"},
    "file as data-root": {"data-root": "/etc/passwd"},
    "data-root below a file": {"data-root": "/etc/passwd/x"},
    "file as exec-root": {"exec-root": "/etc/passwd"},
    "seccomp profile": {"seccomp-profile": "/etc/nope.json"},
    "cgroup driver": {"exec-opts": ["native.cgroupdriver=nope"]},
    "pool": {"default-address-pools": [{"base": "10.0.0.0/8", "size": 4}]},
}
STARTS: Final[dict[str, dict[str, Any]]] = {
    "usual": json.loads(DAEMON_JSON),
    "storage driver": {"storage-driver": "vfs"},
    "data-root": {"data-root": "/srv/docker"},
    "cgroup driver": {"exec-opts": ["native.cgroupdriver=cgroupfs"]},
    "pools": {"default-address-pools": [{"base": "10.0.0.0/8", "size": 24}]},
    "snapshotter": {"features": {"containerd-snapshotter": True}},
}

CDI_DIRECTORY: Final = "/etc/docker/cdi"
SPECIFICATION: Final = "cdiVersion: 0.5.0\nkind: vendor.com/x\ndevices: []\n"
CDI_ON: Final[dict[str, Any]] = {"features": {"cdi": True}, "cdi-spec-dirs": [CDI_DIRECTORY]}
CDI_OFF: Final[dict[str, Any]] = {"features": {"cdi": False}, "cdi-spec-dirs": [CDI_DIRECTORY]}


class _Debian(HostReader):
    """A host with the files of the node on which dockerd is tried."""

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        del last
        if path == PurePosixPath("/etc/passwd"):
            return Kind.FILE
        return Kind.DIRECTORY if path in {PurePosixPath("/"), PurePosixPath("/etc")} else Kind.ABSENT

    def read(self, path: PurePosixPath) -> None:
        del path

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        del path
        return ()

    def is_program(self, path: PurePosixPath) -> bool:
        del path
        return False

    def is_dead(self, path: PurePosixPath) -> bool:
        del path
        return True


@pytest.fixture
def dockerd(docker_engines: EngineSet, roots: Roots) -> Iterator[Dockerd]:
    """Return a dockerd of each release, not started."""
    with dockerd_of(roots.suites[docker_engines.suite]) as daemon:
        yield daemon


def _is_told(tree: dict[str, Any], version: str) -> bool:
    kind = ENGINES["docker"]
    state = replace(EngineState.usual(kind), version=parse_version(version))
    errors = [*kind.find_load_errors(LoadInput(state, {PurePosixPath(DOCKER): tree}, "", (), {}, _Debian()))]
    return bool(errors)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.sampled(16)
def test_a_registry_that_dockerd_refuses_at_a_reload_is_told_and_no_other(
    dockerd: Dockerd, docker_engines: EngineSet, key: str
) -> None:
    version = docker_engines.docker or ""
    dockerd.start(b"{}")
    # The --validate of 28 reads mirrors.
    is_validated = key == MIRRORS and version.startswith("28.")
    unlike = []

    for value in KEYS[key]:
        tree = {key: [value]}
        outcome = dockerd.reload(json.dumps(tree).encode())
        is_refused = outcome == "refused" and not is_validated
        if _is_told(tree, version) != is_refused:
            unlike.append((value, outcome))

    assert unlike == []


@pytest.mark.sampled(16)
def test_what_dockerd_dies_of_at_its_start_is_told_and_nothing_else(dockerd: Dockerd) -> None:
    unlike = []

    for tree in (*DEATHS.values(), *STARTS.values()):
        starts = dockerd.start(json.dumps(tree).encode()) is not None
        if bool([*find_start_errors(tree, _Debian())]) == starts:
            unlike.append((tree, starts))

    assert unlike == []


@pytest.mark.sampled(16)
def test_a_cdi_specification_of_one_letter_ends_dockerd_at_its_start_and_at_no_reload(
    dockerd: Dockerd, docker_engines: EngineSet
) -> None:
    version = parse_version(docker_engines.docker or "")
    if version < (25,):  # the first release with CDI
        return
    flag = f"--cdi-spec-dir={CDI_DIRECTORY}"
    starts: list[tuple[dict[str, Any], tuple[str, ...]]] = [(CDI_ON, ()), (CDI_OFF, ()), ({}, (flag,))]
    if version >= (28,):
        starts += [({}, (flag, "--feature=cdi=true")), ({}, (flag, "--feature", "cdi=false"))]
    dockerd.start(json.dumps(CDI_OFF).encode())
    specification = dockerd.config.with_name("cdi") / "x.yaml"
    specification.parent.mkdir()
    specification.write_text(SPECIFICATION)
    assert dockerd.reload(json.dumps(CDI_ON).encode()) == "taken"

    unlike = []
    for tree, flags in starts:
        is_started = dockerd.start(json.dumps(tree).encode(), *flags) is not None
        if is_cdi_on(flags, tree, version) == is_started:
            unlike.append((tree, flags, is_started))

    assert unlike == []


@pytest.mark.any_version
def test_no_reload_of_ours_meets_a_registry_that_dockerd_refuses(docker_node: Node) -> None:
    node, before = docker_node, served(docker_node)
    words = f"{DOCKER} has in insecure-registries an entry that dockerd refuses, number 2"
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), **BAD}, indent=4))
    files = snapshot(node)

    planned, refused = node.installer("plan", *SOURCE), node.installer("install", *SOURCE)

    assert (planned.returncode, refused.returncode) == (1, 1), refused.stderr
    assert words in planned.stdout
    assert words in sentence(refused.stderr)
    assert f"correct insecure-registries in {DOCKER}" in sentence(refused.stderr)
    assert (snapshot(node), served(node)) == (files, before)

    # The same after the install: the undo changes nothing until it is corrected.
    node.write(DOCKER, DAEMON_JSON)
    node.installer("install", *SOURCE, check=True)
    installed = node.read(DOCKER)
    node.write(DOCKER, json.dumps({**json.loads(installed), **BAD}))
    files = snapshot(node)
    left, status = node.installer("uninstall"), node.installer("status")
    assert (left.returncode, status.returncode) == (4, 1), left.stderr
    assert words in sentence(left.stderr)
    assert words in " ".join(status.stdout.split())
    assert but_the_ledger(snapshot(node)) == but_the_ledger(files)
    assert served(node)[0] == before[0] | OURS
    node.write(DOCKER, installed)
    node.installer("uninstall", check=True)
    assert (served(node), node.read(DOCKER)) == (before, DAEMON_JSON)


HOME: Final = "/usr/local/nvidia/.toolkit-installer"
PROXY: Final = {**json.loads(DAEMON_JSON), "userland-proxy": True}
SCRIPTS: Final = (
    "/var/lib/docker/runtimes"  # where dockerd from 23 on writes a script for a runtime with arguments
)
WITH_ARGUMENTS: Final = {"site": {"path": "/usr/sbin/runc", "runtimeArgs": ["--debug"]}}


def _block_reloads(node: Node) -> None:
    """Have dockerd refuse each reload with a runtime that has arguments, for a reason in no config."""
    node.run(["rm", "-r", SCRIPTS])
    node.write(SCRIPTS, "")


def _takes_all_reloads(node: Node) -> bool:
    """Tell whether this dockerd is 20.10, which takes the reloads up that the later refuse; an install succeeds."""
    if not (node.docker_version or "").startswith("20."):
        return False
    node.installer("install", *SOURCE, check=True)
    return True


def _unblock_reloads(node: Node) -> None:
    node.run(["rm", SCRIPTS])
    node.run(["mkdir", SCRIPTS])


@pytest.mark.any_version
def test_a_userland_proxy_without_a_path_by_which_dockerd_refuses_each_reload_is_told_before_a_write(
    docker_node: Node,
) -> None:
    node = docker_node
    node.write(DOCKER, json.dumps(PROXY, indent=4))
    node.restart("docker")
    files, before = snapshot(node), served(node)
    if _takes_all_reloads(node):
        return

    planned, refused = node.installer("plan", *SOURCE), node.installer("install", *SOURCE)

    assert (planned.returncode, refused.returncode) == (1, 1), refused.stderr
    words = "dockerd would refuse it: userland-proxy is enabled, but userland-proxy-path is not set"
    assert words in planned.stdout
    assert words in sentence(refused.stderr)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.any_version
def test_a_reload_that_dockerd_refuses_for_an_unknown_reason_leaves_nothing_of_ours(
    docker_node: Node,
) -> None:
    node = docker_node
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "runtimes": WITH_ARGUMENTS}, indent=4))
    node.restart("docker")
    _block_reloads(node)
    files, before = snapshot(node), served(node)
    if _takes_all_reloads(node):
        return

    failed = node.installer("install", *SOURCE, "--timeout", "5")

    assert failed.returncode == 1, failed.stderr
    assert "it has completed no reload since its signal" in sentence(failed.stderr)
    # The ledger remembers the plan that failed, and no more.
    new = {path for path, what in snapshot(node).items() if files.get(path) != what}
    assert new == {"/usr/local/nvidia", HOME, f"{HOME}/ledger", f"{HOME}/lock"}
    assert (files.keys() - snapshot(node).keys(), served(node)) == (set(), before)

    # The same after the install: the undo puts our keys back, for dockerd still serves our runtimes.
    _unblock_reloads(node)
    node.installer("install", *SOURCE, check=True)
    _block_reloads(node)
    files, installed = snapshot(node), served(node)
    left = node.installer("uninstall", "--timeout", "5")
    assert left.returncode == 4, left.stderr
    assert "it does not take up its config without them" in sentence(left.stderr)
    assert but_the_ledger(snapshot(node)) == but_the_ledger(files)
    assert served(node) == installed
    _unblock_reloads(node)
    node.installer("uninstall", check=True)
    assert served(node) == before


@pytest.mark.any_version
def test_an_undo_of_a_reload_that_dockerd_refused_needs_no_reload(docker_node: Node) -> None:
    node = docker_node
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "runtimes": WITH_ARGUMENTS}, indent=4))
    node.restart("docker")
    _block_reloads(node)
    files, before = snapshot(node), served(node)
    if _takes_all_reloads(node):
        return
    install = node.start_installer("install", *SOURCE, "--timeout", "60")
    until(lambda: "nvidia" in node.read(DOCKER), lambda: install.log)
    install.kill()
    install.wait()

    undone = node.installer("uninstall", "--timeout", "5")

    assert undone.returncode == 0, undone.stderr
    assert "reload refused by the engine" in undone.stderr
    assert (snapshot(node), served(node)) == (files, before)
