"""Nodes to be crashed: what stands on them, which verb meets which, and what must hold whatever happens."""

import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash.faults import KILLED, Fault, call, effects
from tests.support.stand_in import CONFIGS, stand_in_payload
from tests.support.tree import tree

INSTALL_DIR = "usr/local/nvidia"
LEDGER = f"{INSTALL_DIR}/.toolkit-installer/ledger"
DAEMON_JSON = "etc/docker/daemon.json"
TEXTFILE = "/var/lib/node_exporter/toolkit-installer.prom"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/toolkit-installer"
DROP_INS = "etc/crio/crio.conf.d"
ENGINES = {
    "docker": ("docker",),
    "containerd": ("containerd",),
    "crio": ("crio",),
    "all three": ("docker", "containerd", "crio"),
    "k0s and MicroK8s": ("k0s", "microk8s"),
    "with figures": ("docker",),
}
# What stands on a node of these, besides the configs of the demo.
GOLDEN = Path(__file__).parent.parent / "golden"
MORE = {
    "k0s": GOLDEN / "k0s/136-default-asked-for-beside-drop-ins-of-others/before",
    "microk8s": GOLDEN / "microk8s/as-the-snap-ships-it/before",
}
NAMES_OF_K0S = {path.name for path in (MORE["k0s"] / "etc/k0s/containerd.d").iterdir()}


@dataclass(frozen=True, slots=True)
class Scene:
    """A verb and the node it meets; ``source`` is the payload of an install."""

    start: str
    verb: str
    source: str = "one"


SCENES = {
    "install": Scene("untouched", "install"),
    "upgrade": Scene("installed", "install", "two"),
    "undo": Scene("installed", "uninstall"),
    "interrupted undo": Scene("half undone", "uninstall"),
}


@dataclass(frozen=True, slots=True)
class Ward:
    """Nodes in every state that a scene starts from, below one directory."""

    directory: Path
    engines: tuple[str, ...]
    tells: bool  # metrics and labels
    payloads: list[dict[str, str]]  # as they are when they are whole

    @property
    def root(self) -> Path:
        """Return where the node of the moment is."""
        return self.directory / "node"

    def words(self, verb: str, source: str = "one", root: Path | None = None) -> list[str]:
        """Return what a shell would tell the program."""
        where = ["--host-root", str(root or self.root), "--toolkit-source", str(self.directory / source)]
        engines = [word for name in self.engines for word in ("--runtime", name)]
        figures = ["--metrics-textfile", TEXTFILE, "--nfd-features", FEATURES] if self.tells else []
        return [verb, *where, *engines, "--restart-mode", "none", "--set-as-default", *figures]

    def start(self, scene: Scene) -> list[str]:
        """Put the node of the moment into the state that a scene starts from."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.directory / scene.start, self.root, symlinks=True)
        return self.words(scene.verb, scene.source)

    def play(self, scene: Scene, fault: Fault) -> int:
        """Let a scene go wrong; return how its verb ended."""
        return call(self.start(scene), fault)

    def effects(self, scene: Scene) -> int:
        """Return how many effects a scene has that nothing disturbs."""
        assert call(self.start(scene)) == 0
        return effects()

    def untouched(self) -> dict[str, str]:
        return tree(self.directory / "untouched")


@contextmanager
def ward(directory: Path, engines: str) -> Iterator[Ward]:
    """Make the nodes of these engines, and remove them."""
    made = Ward(directory, ENGINES[engines], engines == "with figures", [])
    untouched, installed, half = (directory / name for name in ("untouched", "installed", "half undone"))
    for name, text in CONFIGS.items():
        (untouched / name).parent.mkdir(parents=True)
        (untouched / name).write_text(text)
    for engine in MORE.keys() & {*made.engines}:
        shutil.copytree(MORE[engine], untouched, dirs_exist_ok=True)
    for path in (TEXTFILE, FEATURES) if made.tells else ():
        (untouched / path.lstrip("/")).parent.mkdir(parents=True)
    put_payloads(directory)
    for version in ("two", "one"):
        shutil.rmtree(installed, ignore_errors=True)
        shutil.copytree(untouched, installed, symlinks=True)
        assert call(made.words("install", version, installed)) == 0
        made.payloads.append(_payload(installed / INSTALL_DIR / "toolkit"))
    middle = made.effects(SCENES["undo"]) // 2
    shutil.copytree(installed, half, symlinks=True)
    assert call(made.words("uninstall", root=half), Fault(middle)) == KILLED
    yield made
    shutil.rmtree(directory)


def put_payloads(directory: Path) -> None:
    """Put two toolkits below a directory, the second of which is newer."""
    for version in ("one", "two"):
        stand_in_payload(directory / version)
    program = directory / "two/usr/local/sbin/nvidia-ctk"
    program.write_bytes(program.read_bytes() + b"newer")


def assert_works(ward: Ward) -> None:
    """Each config parses and names only binaries that are there; the payload is whole or absent.

    What tells of the node stands in the ledger, so that an undo without any flag finds it.
    """
    root, toolkit = ward.root, ward.root / INSTALL_DIR / "toolkit"
    trees = [json.loads((root / DAEMON_JSON).read_text())]
    drop_ins = sorted((root / DROP_INS).iterdir()) if (root / DROP_INS).is_dir() else []
    assert {path.name for path in drop_ins} <= {"99-nvidia.toml"}, "CRI-O reads whatever is there"
    watched = root / "etc/k0s/containerd.d"
    names = {path.name for path in watched.iterdir()} if watched.is_dir() else set()
    assert names <= {*NAMES_OF_K0S, "nvidia.toml"}, "k0s restarts containerd for whatever appears there"
    texts = sorted(path for place in ("etc", "var") for path in (root / place).rglob("*.toml"))
    trees += [tomllib.loads(path.read_text()) for path in texts]
    assert toolkit.exists() or not toolkit.is_symlink(), "a link to nothing"
    assert not toolkit.exists() or _payload(toolkit) in ward.payloads, "an incomplete payload"
    for path in (path for each in trees for path in _binaries(each)):
        assert (root / path.lstrip("/")).is_file(), f"a config names {path}, which is not there"
    if (root / TEXTFILE.lstrip("/")).exists():
        assert TEXTFILE in json.loads((root / LEDGER).read_text())["published"]


def _payload(toolkit: Path) -> dict[str, str]:
    """Return what is installed, without what an install leaves there for the next one."""
    found = tree(toolkit.resolve())
    for name in (".config/unchanged", ".config/.unchanged.toolkit-installer"):
        found.pop(name, None)
    return found


def _binaries(tree: object) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key.lower() in {"path", "binaryname", "runtime_path", "monitor_path"} and isinstance(
                value, str
            ):
                if value.startswith(f"/{INSTALL_DIR}/"):
                    yield value
            else:
                yield from _binaries(value)
    elif isinstance(tree, list):
        for each in tree:
            yield from _binaries(each)


def assert_goes_on(ward: Ward, scene: Scene) -> None:
    """One run completes the install."""
    assert call(ward.words("install", scene.source)) == 0
    assert_works(ward)
    assert (ward.root / LEDGER).exists()


def assert_goes_back(ward: Ward) -> None:
    """One uninstall restores what was before us, by the ledger alone where somebody was told of the node."""
    by_ledger = ["uninstall", "--host-root", str(ward.root), "--restart-mode", "none"]
    assert call(by_ledger if ward.tells else ward.words("uninstall")) == 0
    assert tree(ward.root) == ward.untouched()


def command(nodes: Ward, scene: Scene) -> list[str]:
    """Return what a shell would be told to play the scene."""
    return [sys.executable, "-m", "installer", *nodes.words(scene.verb, scene.source)]
