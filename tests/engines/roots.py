"""A root file system per Debian suite: bookworm's systemd and runc under that suite's engines."""

import platform
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.engines import debs
from tests.engines.cache import PROJECT, build_once, cache, key_of, sweep
from tests.engines.images import ARCHIVE, write_image
from tests.engines.payload import ARTIFACTS, MARK, STAND_IN, mark_payload
from tests.engines.versions import BASE, Today
from tests.support.waiting import HANGS_S

# nspawn mounts cgroup v1 controllers read-only; the wrappers look for the driver in /sys/module.
PREPARE = """\
[Unit]
Description=Make the cgroup v1 controllers writable, pretend that the NVIDIA driver is loaded
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
ExecStart=-/bin/mount -o remount,rw /sys
ExecStart=-/bin/mkdir -p /sys/module/nvidia
ExecStart=/bin/sh -c '[ ! -d /sys/fs/cgroup/memory ] || { mount -o remount,rw /sys/fs/cgroup; \
for c in /sys/fs/cgroup/*/; do mount -o remount,rw,bind $$c; done; }'
"""
# Given as flags, as the package's own file of defaults invites to; no test owns these keys in daemon.json.
DOCKER_DEFAULTS = 'DOCKER_OPTS="--bridge=none --iptables=false --ip6tables=false"\n'


@dataclass(frozen=True, slots=True)
class Roots:
    """What a node is booted from; ``suites`` maps a suite to its root."""

    base: Path
    suites: dict[str, Path]
    site: Path
    python: str  # such as "python3.11", the node's own


def prepared(today: Today) -> Roots:
    """Build what the cache does not hold yet. Hold the lock."""
    key = key_of([*today.base], "roots.py", "debs.py", "payload.py", "stand_in.c", "images.py")
    base = build_once(cache() / f"root-{key}", lambda root: _build_base(root, today.base))
    suites = {suite: _engine_root(suite, pins, base, key) for suite, pins in today.engines.items()}
    python = next((base / "usr/lib").glob("python3.*")).name
    site = _site_packages(base, python)
    sweep()
    return Roots(base, suites, site, python)


def _build_base(root: Path, pins: tuple[str, ...]) -> None:
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for folder in ("var", "run/lock", "opt", "usr/local/lib"):
        (root / folder).mkdir(parents=True)
    for folder in ("run", "run/lock"):  # relative links: files are unpacked through them
        (root / "var" / Path(folder).name).symlink_to(f"../{folder}")
    debs.unpack(BASE, pins, root)
    _configure(root)
    _inside(root, "systemd-sysusers")
    _inside(root, "ldconfig")
    _inside(
        root, "python3", "-m", "compileall", "-q", "/usr/lib", check=False
    )  # lib2to3 carries broken files
    for stamp in ("etc/.updated", "var/.updated"):  # so that the first boot does not do all of this again
        (root / stamp).touch()
    shutil.copy(Path(__file__).with_name("stand_in.c"), root)
    _inside(root, "tcc", f'-DMARK="{MARK}"', "-o", STAND_IN, "/stand_in.c")
    (root / "stand_in.c").unlink()
    mark_payload(root / ARTIFACTS.lstrip("/"), root / STAND_IN.lstrip("/"))
    write_image(root / "usr/bin/busybox", root / ARCHIVE.lstrip("/"), platform.machine())


def _configure(root: Path) -> None:
    """Do what the packages' own scripts would do, as far as a node needs it."""
    etc = root / "etc"
    for name in ("passwd", "group"):
        (etc / name).write_text((root / f"usr/share/base-passwd/{name}.master").read_text())
    with (etc / "group").open("a") as groups:
        groups.write("docker:x:900:\n")  # docker.socket belongs to it
    (etc / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (etc / "resolv.conf").touch()  # containerd copies both into a pod
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    (etc / "default").mkdir(exist_ok=True)
    units = etc / "systemd/system"
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    (units / "prepare.service").write_text(PREPARE)
    (units / "sysinit.target.wants").mkdir()
    (units / "sysinit.target.wants/prepare.service").symlink_to("../prepare.service")


def _engine_root(suite: str, pins: tuple[str, ...], base: Path, key: str) -> Path:
    def build(root: Path) -> None:
        # Hard links: tar unlinks what it replaces, and a node only ever sees the tree through an overlay.
        _run(["cp", "-al", f"{base}/.", str(root)])
        debs.unpack(suite, pins, root)
        (root / "etc/default/docker").unlink()
        (root / "etc/default/docker").write_text(DOCKER_DEFAULTS)

    return build_once(cache() / f"root-{suite}-{key_of([key, *pins])}", build)


def _site_packages(base: Path, python: str) -> Path:
    """Return the project's dependencies as the node's Python wants them, with a path to the project.

    The stand-ins of engines serve gRPC with grpcio, which only the tests need.
    """
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = [*project["dependencies"]]
    wanted += [name for name in project["optional-dependencies"]["dev"] if name.startswith("grpcio==")]

    def build(site: Path) -> None:
        platforms = [f"manylinux_2_{minor}_{platform.machine()}" for minor in range(17, 37)]
        platforms += [f"manylinux2014_{platform.machine()}"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
        pip += ["--only-binary=:all:", "--python-version", python.removeprefix("python")]
        pip += [f"--platform={name}" for name in platforms]
        _run([*pip, *wanted])
        own = {"PYTHONHOME": str(base / "usr")}
        _run([*with_own_loader(base, "usr/bin/python3"), "-m", "compileall", "-q", str(site)], env=own)
        (site / "project.pth").write_text(f"{PROJECT}\n")

    return build_once(cache() / f"site-{key_of([*wanted, python, str(PROJECT)], 'roots.py')}", build)


def _inside(root: Path, *args: str, check: bool = True) -> None:
    _run(["chroot", str(root), *args], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, check=check)


def _run(command: list[str], *, env: dict[str, str] | None = None, check: bool = True) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS_S, check=False)
    if check and done.returncode:
        raise RuntimeError(f"cannot {' '.join(command)}: {done.stderr.strip()}")


def with_own_loader(root: Path, program: str) -> list[str]:
    """Return how to start a program of ``root`` outside of it, with its own libraries."""
    loader = next(root.glob("lib*/ld-linux*.so.*"))
    triplet = next(
        path.name for path in (root / "usr/lib").iterdir() if re.fullmatch(r"\w+-linux-gnu", path.name)
    )
    libraries = root / "usr/lib" / triplet
    return [str(loader), "--library-path", f"{libraries}:{libraries}/systemd", str(root / program)]
