"""A Debian that has nothing but what the README asks for, and this project in it: made, entered, read."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.engines import debs
from tests.engines.cache import PROJECT, build_once, cache, key_of, locked
from tests.image import builder

PACKAGES = ("python3", "make", "git", "ca-certificates")  # as the README has them
HERE = "project"  # where the project lies in the root
# A pip keeps a cache of its own; everything else belongs below the project or is temporary.
OURS = (HERE, "tmp", "var/tmp", "root/.cache")
MOUNTED = ("proc", "sys", "dev", "run", "etc/ssl/certs", "etc/resolv.conf", "etc/hosts")

# The root becomes /, with a process tree and mounts of its own; the machine's is not there any more.
ENTER = """\
set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$WORK/upper,workdir=$WORK/work" "$WORK/root"
for file in etc/resolv.conf etc/hosts; do [ -e "$WORK/root/$file" ] || : >"$WORK/root/$file"; done
for tree in sys dev etc/ssl/certs etc/resolv.conf etc/hosts; do mount --rbind "/$tree" "$WORK/root/$tree"; done
mount -t proc proc "$WORK/root/proc"
mount -t tmpfs tmpfs "$WORK/root/run"
cd "$WORK/root" && pivot_root . . && umount --lazy .
cd "/$HERE" && exec "$@"
"""
CONTAIN = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
    *("sh", "-c", ENTER, "enter"),
)
WAYS_TO_THE_NETWORK = ("PIP_CERT", "PIP_INDEX_URL")  # and proxies


@dataclass(frozen=True, slots=True)
class Fresh:
    """A root that only this run writes to: what it changed lies in ``work``/upper."""

    lower: Path
    work: Path

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> int:
        """Run a command in the project's directory there; return its exit code."""
        passed = {
            name: value
            for name, value in os.environ.items()
            if name.lower().endswith("_proxy") or name in WAYS_TO_THE_NETWORK
        }
        path = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        passed |= {"PATH": path, "HOME": "/root", "LC_ALL": "C.UTF-8", **(environment or {})}
        passed |= {"LOWER": str(self.lower), "WORK": str(self.work), "HERE": HERE}
        return subprocess.run([*CONTAIN, *command], env=passed, check=False).returncode

    def fetched(self) -> list[str]:
        """Return what the project has fetched into its own folder: packages of Debian, and of Python's index."""
        own = self.work / "upper" / HERE
        debs_ = [deb.name for deb in (own / ".cache").rglob("*.deb")]
        wheels = [each.stem for each in (own / ".venv").glob("lib/python3*/site-packages/*.dist-info")]
        return [*sorted(debs_), *sorted(wheels)]

    def changed(self) -> list[str]:
        """Return what is not as it was outside of the places that are ours to write to."""
        upper = self.work / "upper"
        files = (path.relative_to(upper) for path in upper.rglob("*") if not path.is_dir())
        return sorted(
            str(file)
            for file in files
            if str(file) not in MOUNTED and not any(file.is_relative_to(own) for own in OURS)
        )


def prepared(suite: str, work: Path, log: Path) -> Fresh:
    """Return a root of ``suite`` with a copy of the working tree, built if the cache lacks it."""
    ready = builder.prepared(log)
    key = key_of([suite, *PACKAGES])

    def build(given: Path) -> None:
        include = f"--include={','.join(PACKAGES)}"
        words = ["--variant=minbase", include, suite, "/given/root", debs.mirror() or ""]
        ready.run(given, "debootstrap", *words, log=log)

    with locked():
        lower = build_once(cache() / f"root-fresh-{suite}-{key}", build) / "root"
    for folder in ("upper", "work", "root"):
        (work / folder).mkdir()
    _copy_of_the_project(work / "upper" / HERE)
    return Fresh(lower, work)


def _copy_of_the_project(target: Path) -> None:
    """Copy what git would have in a clone, with what is not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        file = PROJECT / name
        if file.is_symlink() or file.exists():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():
                copy.symlink_to(file.readlink())
            else:
                copy.write_bytes(file.read_bytes())
                copy.chmod(file.stat().st_mode)
