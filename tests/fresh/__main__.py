"""``make fresh``: the README's commands in Debians that have nothing else, entered as a machine of their own.

``make first-hour`` is as much of it as CI has time for: the older Debian, with the tests for which something is fetched.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.documents import starting
from tests.engines import debs
from tests.engines.cache import PROJECT, build_once, cache, key_of, locked
from tests.engines.conftest import missing
from tests.image import builder

PACKAGES = ("python3", "make", "git", "ca-certificates")  # as the README has them
HERE = "project"  # where the project lies in the root
# A pip keeps a cache of its own; everything else belongs below the project or is temporary.
OURS = (f"{HERE}/", "tmp/", "var/tmp/", "root/.cache/")
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
# Everything on the oldest Python that we support. The newer Debian has to show that what is fetched runs there too.
FETCHING = "tests/deploy tests/payload/test_wrapper.py tests/crash/test_power.py"
LINKED = "tests/observe/test_node_shell.py"  # another Debian links its shell in another way
COMMANDS = {
    "bookworm": ("make", "demo", "unit", "MARKS="),
    "trixie": ("make", "demo", "unit", "MARKS=", f"TESTS={FETCHING} {LINKED}"),
}
# Each kind of what is fetched (kubectl, Helm, busybox, strace) and each document, and no more than a few minutes.
FEW = (
    "tests/deploy tests/payload/test_wrapper.py tests/test_secrets.py tests/test_documents.py "
    "tests/test_command_line.py"
)
FIRST_HOUR = {"bookworm": ("make", "demo", "unit", f"TESTS={FEW}")}
# The README's host is that machine. No engine runs on it, and the toolkit is a stand-in; all else is as written.
HOST = {"TOOLKIT_INSTALLER_RUNTIME": "docker", "TOOLKIT_INSTALLER_RESTART_MODE": "none"}
STAND_IN = (
    "/opt/toolkit-installer/bin/python -B -c "
    "'from pathlib import Path; from tests.support.stand_in import stand_in_payload as put; put(Path(\"/opt/nvidia-toolkit\"))'"
)
# A user's clone of a program whose next version lacks a module, and that he may remove at the end.
CLONED = """\
set -ex
useradd --create-home user
chown --recursive user: .
as_user() { setpriv --reuid=user --regid=user --init-groups env HOME=/home/user "$@"; }
commit() { as_user git add --all; as_user git -c user.name=user -c user.email=user@example.com commit --quiet --message "$1"; }
origin=$PWD
gone=gone.py
as_user touch "installer/$gone"
as_user git init --quiet
commit first
as_user git clone --quiet "$origin" /home/user/clone
cd /home/user/clone
as_user make demo >/tmp/demo || { cat /tmp/demo; exit 1; }
grep "fetching pip" /tmp/demo
test ! -e .cache # package lists and the like are for make test
"""
UPGRADED = """\
cd "$origin"
as_user rm "installer/$gone"
as_user sed --in-place 's/^version = ".*"/version = "99.0"/' pyproject.toml
commit second
cd /home/user/clone
as_user git pull --quiet
"""
KEPT = """\
as_user make demo
test -z "$(find . ! -user user)"
test -z "$(as_user git status --porcelain)"
"""
NEWER = """\
toolkit-installer --version | grep 99.0
test -z "$(find /opt/toolkit-installer -name 'gone*')"
echo newer >>/opt/nvidia-toolkit/usr/local/sbin/nvidia-ctk
"""
# All of the machine but what is the user's, pip's or temporary.
LISTED = r'find / -xdev \( -path "$origin" -o -path /home/user -o -path /root/.cache -o -path /tmp \) -prune -o -print | sort'
REMOVED = """\
toolkit-installer uninstall
if toolkit-installer status; then exit 1; else [ $? = 3 ]; fi
"""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A root that only this run writes to: what it changed lies in ``work``/upper."""

    lower: Path
    work: Path

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> int:
        """Run a command in the project's directory there; return its exit code."""
        proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
        passed = {name: os.environ[name] for name in (*proxies, *WAYS_TO_THE_NETWORK) if name in os.environ}
        path = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        passed |= {"PATH": path, "HOME": "/root", "LC_ALL": "C.UTF-8", **(environment or {})}
        passed |= {"LOWER": str(self.lower), "WORK": str(self.work), "HERE": HERE}
        return subprocess.run([*CONTAIN, *command], env=passed, check=False).returncode

    def changed(self) -> list[str]:
        """Return what is not as it was outside of the places that are ours to write to."""
        upper = self.work / "upper"
        files = {str(path.relative_to(upper)) for path in upper.rglob("*") if not path.is_dir()}
        return sorted(file for file in files - {*MOUNTED} if not file.startswith(OURS))


def _prepared(suite: str, work: Path, log: Path) -> Fresh:
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
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=PROJECT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (PROJECT / name).is_symlink() or (PROJECT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, target / name, follow_symlinks=False)


def main(words: list[str]) -> int:
    """Run each suite's command; return 1 where one failed or changed the machine."""
    commands = FIRST_HOUR if words == ["first-hour"] else COMMANDS
    if lack := missing():
        print(f"no fresh machine is made here: {lack}", flush=True)
        return 1
    (PROJECT / "build").mkdir(exist_ok=True)
    failed = [suite for suite, command in commands.items() if not (_passes(suite, command) and _lives(suite))]
    return 1 if failed else 0


def _lives(suite: str) -> bool:
    """Clone, install, upgrade, uninstall and remove by the commands of the README; nothing stays behind."""
    packages, *setup = _as_root("apt-get", "python3 -m venv", "/opt/", "ln ")
    use = [f"{each} || [ $? = 10 ]" for each in _as_root("toolkit-installer")]
    upgrade = [each for each in setup if " install " in each]
    script = [CLONED, "apt-get update --quiet", packages, f"{LISTED} >/tmp/before", *setup, KEPT, STAND_IN]
    script += [*use, "toolkit-installer status", UPGRADED, *upgrade, KEPT, NEWER, *use]
    script += ["toolkit-installer status", REMOVED, *_as_root("rm "), "rm -r /opt/nvidia-toolkit"]
    script += [f"{LISTED} | diff /tmp/before -", "cd /", "as_user rm -r /home/user/clone"]
    with tempfile.TemporaryDirectory(dir=cache(), prefix="root-run-") as directory:
        fresh = _prepared(suite, Path(directory), PROJECT / "build" / "fresh.log")
        code = fresh.run("sh", "-c", "\n".join(script), environment=HOST)
    print(f"fresh {suite}: exit code {code} of a host's life by the README", flush=True)
    return code == 0


def _as_root(*words: str) -> list[str]:
    """Return the commands that begin with one of ``words``: the README's, and how docs/host.md ends."""
    found = (each for each in starting(*words) if each.document == "README.md" or words == ("rm ",))
    return [each.text.removeprefix("sudo ") for each in found]


def _passes(suite: str, command: tuple[str, ...]) -> bool:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache(), prefix="root-run-") as directory:
        fresh = _prepared(suite, Path(directory), PROJECT / "build" / "fresh.log")
        print(f"fresh {suite}: {' '.join(command)}", flush=True)
        code, changed = fresh.run(*command), fresh.changed()
    print(f"fresh {suite}: exit code {code} after {time.monotonic() - started:.0f} s")
    print(*(f"BAD changed on the machine: /{file}" for file in changed), sep="\n", flush=True)
    return code == 0 and not changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
