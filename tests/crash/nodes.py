"""Nodes to be crashed: what stands on them, which verb meets which, and what must hold whatever happens."""

import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        """Put the node of the moment into the state that a scene starts from; return the words of its verb."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.directory / scene.start, self.root, symlinks=True)
        return self.words(scene.verb, scene.source)

    def command(self, scene: Scene) -> list[str]:
        """Do so, and return what a shell would be told."""
        return [sys.executable, "-m", "installer", *self.start(scene)]

    def play(self, scene: Scene, fault: Fault) -> int:
        """Let a scene go wrong; return how its verb ended."""
        return call(self.start(scene), fault)

    def effects(self, scene: Scene) -> int:
        """Return how many effects a scene has that nothing disturbs."""
        assert call(self.start(scene)) == 0
        return effects()

    def untouched(self) -> dict[str, str]:
        return tree(self.directory / "untouched")

    def held(self) -> dict[str, Any]:
        """Return what the ledger says."""
        ledger = self.root / LEDGER
        return dict(json.loads(ledger.read_text())) if ledger.exists() else {"configs": [], "published": []}

    def saved(self) -> dict[str, bool]:
        """Return the configs of which the ledger names the text before us, and of each whether its copy is there."""
        rows = [row for row in self.held()["configs"] if row["original"]]
        backups = self.root / LEDGER.replace("ledger", "backups")
        return {row["path"]: (backups / row["original"]["digest"]).is_file() for row in rows}


@contextmanager
def ward(directory: Path, engines: str) -> Iterator[Ward]:
    """Make the nodes of these engines, and remove them."""
    made = Ward(directory, ENGINES[engines], engines == "with figures", [])
    untouched, installed, half = (directory / name for name in ("untouched", "installed", "half undone"))
    put_configs(untouched)
    for engine in MORE.keys() & {*made.engines}:
        shutil.copytree(MORE[engine], untouched, dirs_exist_ok=True)
    for path in (TEXTFILE, FEATURES) if made.tells else ():
        (untouched / path.lstrip("/")).parent.mkdir(parents=True)
    put_payloads(directory)
    for version in ("two", "one"):
        shutil.rmtree(installed, ignore_errors=True)
        shutil.copytree(untouched, installed, symlinks=True)
        assert call(made.words("install", version, installed)) == 0
        made.payloads.append(tree((installed / INSTALL_DIR / "toolkit").resolve()))
    middle = made.effects(SCENES["undo"]) // 2
    shutil.copytree(installed, half, symlinks=True)
    assert call(made.words("uninstall", root=half), Fault(middle)) == KILLED
    yield made
    shutil.rmtree(directory)


def put_configs(root: Path) -> None:
    for name, text in CONFIGS.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)


def put_payloads(directory: Path) -> None:
    """Put two toolkits below a directory, the second of which is newer."""
    for version in ("one", "two"):
        stand_in_payload(directory / version)
    program = directory / "two/usr/local/sbin/nvidia-ctk"
    program.write_bytes(program.read_bytes() + b"newer")


def assert_works(ward: Ward) -> None:
    """Each config parses and names only binaries that are there; the payload is whole or absent.

    The ledger names what tells of the node, so that an undo without any flag finds it, and only copies that are there.
    """
    root, toolkit = ward.root, ward.root / INSTALL_DIR / "toolkit"
    drop_ins = {path.name for path in (root / DROP_INS).glob("*")}
    assert drop_ins <= {"99-nvidia.toml"}, "CRI-O reads whatever is there"
    watched = {path.name for path in (root / "etc/k0s/containerd.d").glob("*")}
    assert watched <= {*NAMES_OF_K0S, "nvidia.toml"}, "k0s restarts containerd for whatever appears there"
    texts = [path for place in ("etc", "var") for path in (root / place).rglob("*.toml")]
    trees = [
        json.loads((root / DAEMON_JSON).read_text()),
        *(tomllib.loads(each.read_text()) for each in texts),
    ]
    assert toolkit.exists() or not toolkit.is_symlink(), "a link to nothing"
    assert not toolkit.exists() or tree(toolkit.resolve()) in ward.payloads, "an incomplete payload"
    for path in _binaries(trees):
        assert (root / path.lstrip("/")).is_file(), f"a config names {path}, which is not there"
    assert not (root / TEXTFILE.lstrip("/")).exists() or TEXTFILE in ward.held()["published"]
    assert all(ward.saved().values()), "a copy that the ledger names"


def _binaries(tree: object) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            named = key.lower() in {"path", "binaryname", "runtime_path", "monitor_path"}
            if named and isinstance(value, str) and value.startswith(f"/{INSTALL_DIR}/"):
                yield value
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
