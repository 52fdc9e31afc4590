"""Show the whole cycle in a temporary root, with the real program as a child process."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from installer.errors import Exit, InstallerError
from installer.host import supervision
from installer.payload.files import LIBRARIES, REQUIRED, search_paths

WAIT_S: Final = 30.0
REPORT: Final = "report this as a bug"

CONFIGS: Final = {
    "etc/docker/daemon.json": """\
{
  "log-driver": "json-file",
  "log-opts": { "max-size": "100m", "max-file": "3" },
  "registry-mirrors": ["https://mirror.example.com"],
\t"default-ulimits": {"memlock": {"Name": "memlock", "Hard": 18446744073709551615, "Soft": -1}}
}""",
    "etc/containerd/config.toml": """\
# Written by the image build. Ask the platform team before you change it.
version = 2
root = '/var/lib/containerd'   # on the fast disk

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true  # kubelet uses the systemd driver
""",
    "etc/crio/crio.conf": """\
# The CRI-O configuration file specifies all of the available configuration options.
[crio.runtime]
default_runtime = "crun"
# pids_limit = 0

[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
""",
}


def demo() -> Exit:
    """Install on a temporary node, show the result, undo it, and prove the undo by hashes."""
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-demo-") as directory:
        root = Path(directory, "node")
        source = Path(directory, "artifacts")
        for name, text in CONFIGS.items():
            (root / name).parent.mkdir(parents=True)
            (root / name).touch(0o600)
            (root / name).write_text(text)
        make_toolkit(source)
        before = _hash(root)

        arguments = ["--host-root", str(root), "--toolkit-source", str(source), "--restart-mode", "none"]
        arguments += ["--runtime=docker", "--runtime=containerd", "--runtime=crio"]
        _show_title("A node with three container engines, each with an administrator's config")
        click.echo(f"  a temporary directory stands for the node: all paths below are inside {root}")
        _show_files(root)
        _show_title("toolkit-installer plan: what would change, and nothing is touched")
        _call("plan", arguments)
        if _hash(root) != before:
            raise InstallerError("plan without changing anything", remedy=REPORT, code="demo-failed")
        _show_title("toolkit-installer run: installs, configures, then waits")
        exit_code = _show_run(root, arguments)
        after = _hash(root)
    return _show_proof(before, after, exit_code)


def _show_run(root: Path, arguments: list[str]) -> int:
    """Show ``run`` until it waits, stop it, and return its exit code."""
    with supervision.unblocked_signals(), _start("run", [*arguments, "--log-format", "text"]) as child:
        try:
            _show_log(child, until="waiting for a signal")
            if child.poll() is not None:
                problem = f"run the demo (exit code {child.returncode})"
                raise InstallerError(problem, remedy=REPORT, code="demo-failed")
            click.echo('  "not verified", and "ready: no" below, are expected: the demo has no engines')
            _show_files(root)
            _call("status", arguments[:2])
            _show_title("SIGTERM: everything is undone")
            child.terminate()
            _show_log(child)
        finally:
            child.kill()
    return child.returncode


def _show_proof(before: dict[str, str], after: dict[str, str], exit_code: int) -> Exit:
    """Show the hashes of the configs before and after; return OK if the node is as before."""
    _show_title("The proof")
    same_count = 0
    for name in CONFIGS:
        word = "DIFFERENT"
        if before[name] == after.get(name):
            word = "same"
            same_count += 1
        click.echo(f"  {word}  sha256 {before[name].split()[1][:16]}  /{name}")
    left_behind = sorted(after.keys() - before.keys())
    for name in left_behind:
        click.echo(f"  LEFT  /{name}")
    same_files = f"{same_count} of {len(CONFIGS)} files came back byte for byte"
    click.echo(f"{same_files}, {len(left_behind)} left behind, exit code {exit_code}")
    return Exit.OK if before == after and exit_code == 0 else Exit.FAILED


def make_toolkit(source: Path) -> None:
    """Make a toolkit of files that do nothing, with real names and the ELF header of this machine."""
    head = Path(sys.executable).read_bytes()[:64]
    for name in REQUIRED:
        path = source / search_paths(name)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path
        mode = 0o755
        if name in LIBRARIES:
            file = path.with_name(f"{name}.99.0")
            mode = 0o644
        file.touch(mode)
        file.write_bytes(head + name.encode())
        if file != path:
            path.symlink_to(file.name)


def _start(verb: str, arguments: list[str]) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if "TOOLKIT_INSTALLER" not in name}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "installer", verb, *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _call(verb: str, arguments: list[str]) -> None:
    with _start(verb, arguments) as child:
        for line in child.communicate(timeout=WAIT_S)[0].splitlines():
            click.echo(f"  {line}")


def _show_log(child: "subprocess.Popen[str]", until: str = "\0") -> None:
    for line in child.stderr or ():
        click.echo(f"  {line.rstrip()}")
        if until in line:
            return
    child.wait(WAIT_S)


def _show_title(text: str) -> None:
    click.echo("\n" + click.style(f"== {text}", bold=True, fg="blue"))


def _show_files(root: Path) -> None:
    """Show the files below ``root``; of our own directory only their number."""
    inside_count = 0
    for path in sorted(root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        if ".toolkit-installer/" in str(path):
            inside_count += 1
            continue
        about = f"-> {path.readlink()}" if path.is_symlink() else f" {path.stat().st_size} bytes"
        click.echo(f"  /{path.relative_to(root)} {about}")
    if inside_count:
        text = f"{inside_count} files: the payload, the ledger, the originals"
        click.echo(f"  /usr/local/nvidia/.toolkit-installer/  {text}")


def _hash(root: Path) -> dict[str, str]:
    """Return the mode and the hash of the content of each path below ``root``, with the type in the mode."""
    hashes = {}
    for path in root.rglob("*"):
        content = b""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        hashes[str(path.relative_to(root))] = f"{path.lstat().st_mode:o} {digest}"
    return hashes
