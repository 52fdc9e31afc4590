"""The whole cycle in a throw-away root, with the real program as a child process."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from installer.errors import Exit, InstallerError
from installer.host import signals
from installer.payload.files import LIBRARIES, REQUIRED, search_paths

WAIT_S: Final = 30.0

DAEMON_JSON: Final = """\
{
  "log-driver": "json-file",
  "log-opts": { "max-size": "100m", "max-file": "3" },
  "registry-mirrors": ["https://mirror.example.com"],
\t"default-ulimits": {"memlock": {"Name": "memlock", "Hard": 18446744073709551615, "Soft": -1}}
}"""

CONTAINERD_TOML: Final = """\
# Written by the image build. Ask the platform team before you change it.
version = 2
root = '/var/lib/containerd'   # on the fast disk

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true  # kubelet uses the systemd driver
"""

CRIO_CONF: Final = """\
# The CRI-O configuration file specifies all of the available configuration options.
[crio.runtime]
default_runtime = "crun"
# pids_limit = 0

[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
"""

# How the lines of a plan are shown, by what they begin with: the first that fits counts.
STYLES: Final[dict[str, dict[str, Any]]] = {
    "---": {"bold": True},
    "+++": {"bold": True},
    "@@": {"fg": "cyan"},
    "+": {"fg": "green"},
    "-": {"fg": "red"},
    "*": {"dim": True},
    "!": {"dim": True},
}
CONFIGS: Final = {
    "etc/docker/daemon.json": DAEMON_JSON,
    "etc/containerd/config.toml": CONTAINERD_TOML,
    "etc/crio/crio.conf": CRIO_CONF,
}


def demo() -> Exit:
    """Install into a throw-away node, show it, give it all back, and prove that with hashes.

    Raises:
        InstallerError: the program did not do what it promises.
    """
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-demo-") as directory:
        root, source = Path(directory, "node"), Path(directory, "artifacts")
        for name, text in CONFIGS.items():
            (root / name).parent.mkdir(parents=True)
            (root / name).touch(0o600)
            (root / name).write_text(text)
        stand_in_payload(source)
        before = _hashes(root)
        arguments = ["--host-root", str(root), "--toolkit-source", str(source), "--restart-mode", "none"]
        arguments += [word for name in ("docker", "containerd", "crio") for word in ("--runtime", name)]
        _title("A node with three container engines, each with a config that somebody cares about")
        _tree(root)
        _title("toolkit-installer plan: what would change, and nothing is touched")
        _call("plan", arguments)
        if _hashes(root) != before:
            raise InstallerError(
                "plan without changing anything", remedy="report this as a bug", code="demo-failed"
            )
        _title("toolkit-installer run: installs, configures, then waits")
        with _run(arguments) as child:
            _tree(root)
            _call("status", arguments[:2])
            _title("SIGTERM: everything is undone")
            child.send_signal(signal.SIGTERM)
            code = child.wait(WAIT_S)
        return _verdict(before, _hashes(root), code)


def stand_in_payload(source: Path) -> None:
    """Make a toolkit whose files carry true names and ELF headers of this machine, and do nothing."""
    with Path(sys.executable).open("rb") as file:
        head = file.read(64)
    for name in REQUIRED:
        path = source / search_paths(name)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in LIBRARIES:
            real = path.with_name(f"{name}.99.0")
            real.write_bytes(head + name.encode())
            path.symlink_to(real.name)
        else:
            path.touch(0o755)
            path.write_bytes(head + name.encode())


def _start(verb: str, arguments: list[str]) -> "subprocess.Popen[str]":
    kept = {name: value for name, value in os.environ.items() if "TOOLKIT_INSTALLER" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "installer", verb, *arguments],
        env=kept | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _call(verb: str, arguments: list[str]) -> None:
    with _start(verb, arguments) as child:
        for line in child.communicate(timeout=WAIT_S)[0].splitlines():
            click.echo(f"  {_colour(line)}")


def _colour(line: str) -> str:
    for prefix, style in STYLES.items():
        if line.startswith(prefix):
            return click.style(line, **style)
    return line


@contextmanager
def _run(arguments: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """Run the real program as a child, from the moment it waits until the block is left."""
    with signals.unblocked(), _start("run", [*arguments, "--log-format", "text"]) as child:
        try:
            if not _echo(child, until="waiting for a signal"):
                raise InstallerError(
                    f"run the demo (exit code {child.wait(WAIT_S)})",
                    remedy="report this as a bug",
                    code="demo-failed",
                )
            yield child
            _echo(child)
        finally:
            child.kill()


def _echo(child: "subprocess.Popen[str]", until: str = "\0") -> bool:
    for line in child.stderr or ():
        click.echo(f"  {line.rstrip()}")
        if until in line:
            return True
    return False


def _title(text: str) -> None:
    click.echo()
    click.secho(f"== {text}", bold=True, fg="blue")


def _tree(root: Path) -> None:
    paths = [path for path in sorted(root.rglob("*")) if path.is_symlink() or not path.is_dir()]
    shown = [path for path in paths if ".toolkit-installer/" not in str(path)]
    for path in shown:
        about = f"-> {path.readlink()}" if path.is_symlink() else f" {path.stat().st_size} bytes"
        click.echo(f"  /{path.relative_to(root)} {about}")
    if inside := len(paths) - len(shown):
        click.echo(
            f"  /usr/local/nvidia/.toolkit-installer/  {inside} files: the payload, the ledger, the originals"
        )


def _hashes(root: Path) -> dict[str, str]:
    """Return what each path below ``root`` is: type and mode, and the hash of a file."""
    found = {}
    for path in sorted(root.rglob("*")):
        kind = f"{path.lstat().st_mode:o}"
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(root))] = f"{kind} {hashlib.sha256(content).hexdigest()}"
    return found


def _verdict(before: dict[str, str], after: dict[str, str], code: int) -> Exit:
    _title("The proof")
    same = 0
    for name in CONFIGS:
        back = before[name] == after.get(name)
        word = click.style("same" if back else "DIFFERENT", fg="green" if back else "red")
        click.echo(f"  {word}  sha256 {before[name].split()[1][:16]}  /{name}")
        same += back
    left = sorted(after.keys() - before.keys())
    for name in left:
        click.echo(f"  {click.style('LEFT', fg='red')}  /{name}")
    click.echo(
        f"{same} of {len(CONFIGS)} files came back byte for byte, {len(left)} left behind, exit code {code}"
    )
    return Exit.OK if before == after and code == 0 else Exit.FAILED
