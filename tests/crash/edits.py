"""What others do to an engine's config, on a node and on a copy of it that never saw us."""

import shutil
from collections.abc import Callable
from pathlib import Path

CONFIG = {
    "docker": "etc/docker/daemon.json",
    "containerd": "etc/containerd/config.toml",
    "crio": "etc/crio/crio.conf",
}
Act = Callable[[Path, str, int], None]


def _adds_a_key(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    if not path.exists():
        return
    text = path.read_text()
    if engine == "docker":
        path.write_text(text.replace("{", f'{{"mine-{turn}": {turn}, ', 1) if text.strip() else "")
    else:
        path.write_text(f"{text}# mine {turn}\n")


def _replaces_the_inode(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    if path.exists():
        copy = path.with_name(f"copy-{turn}")
        shutil.copy(path, copy)
        copy.rename(path)


def _changes_the_mode(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    if path.exists():
        path.chmod((0o600, 0o644, 0o640)[turn % 3])


def starts_again(root: Path, engine: str, turn: int) -> None:
    path = root / CONFIG[engine]
    path.write_text(f'{{"fresh": {turn}}}\n' if engine == "docker" else f"# fresh {turn}\nversion = 2\n")


def _adds_a_neighbour(root: Path, engine: str, turn: int) -> None:
    (root / CONFIG[engine]).with_name(f"neighbour-{turn}").write_text("1\n")


ACTS: tuple[Act, ...] = (
    _adds_a_key,
    _adds_a_key,
    _replaces_the_inode,
    _changes_the_mode,
    starts_again,
    _adds_a_neighbour,
)
