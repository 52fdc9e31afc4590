"""The system calls of a real program: logged, or the one at which it is killed (strace 5.3 and later)."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.engines import debs
from tests.engines.cache import PROJECT, build_once, locked
from tests.engines.cache import cache as cache_directory

MUTATING = (
    *("openat", "open", "creat", "write", "writev", "pwrite64", "sendfile", "copy_file_range"),
    *("truncate", "ftruncate", "fallocate", "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown"),
    *("fchownat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat"),
    *("symlink", "symlinkat", "link", "linkat", "mknod", "mknodat"),
)
COPIES_AT_ONCE = 4  # the threads of a copy
SYNCING = ("fsync", "fdatasync", "sync", "syncfs")
SUITE = "trixie"  # that of bookworm ends with "stack smashing detected" at trixie's Python
_STARTED = re.compile(r"(\d+) +(\w+)\((.*)$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_ENDED = re.compile(r"(.*?)\)? += (-?\d+)(?:<[^>]*>)?(?: .*)?$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_NAMED_FD = re.compile(r"^(?:(\d+)|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that has ended, in the order of the ends: ``arguments`` as strace prints them with ``-xx -y``."""

    thread: int
    name: str
    arguments: str
    result: int

    @property
    def strings(self) -> tuple[bytes, ...]:
        """Return the arguments that are strings: paths, or what is written."""
        return tuple(_bytes(text) for text, _ in _STRING.findall(self.arguments))

    @property
    def directory(self) -> Path:
        """Return where the file or directory is that the first argument, a descriptor, is open on."""
        found = _NAMED_FD.match(self.arguments)
        assert found, self
        return Path(_bytes(found[2]).decode())


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@cache
def strace() -> tuple[str, ...]:
    """Return the command that is strace here: the machine's own, or Debian's, unpacked in the cache.

    Raises:
        RuntimeError: it cannot be had.
    """
    if own := shutil.which("strace"):
        return (own,)
    if lack := debs.needed():
        raise RuntimeError(f"strace is missing, and cannot be fetched: {lack}")

    def build(root: Path) -> None:
        debs.refresh([SUITE])
        debs.unpack(SUITE, debs.with_dependencies(SUITE, ["strace"]), root)

    with locked():
        root = build_once(cache_directory() / f"root-strace-{SUITE}", build)
    # Some packages lay their libraries below /lib and some below /usr/lib: a Debian has them merged.
    places = [root / under / place for under in ("", "usr") for place in ("lib", "lib64")]
    libraries = [path for place in places for path in place.glob("*-linux-gnu")]
    loader = next(path for place in places for path in place.glob("ld-linux-*"))
    return (str(loader), "--library-path", ":".join(map(str, libraries)), str(root / "usr/bin/strace"))


def log_calls(command: list[str], log: Path, names: tuple[str, ...] = (*MUTATING, *SYNCING)) -> list[Call]:
    """Run ``command`` to its end; return the calls of ``names``, whole.

    Raises:
        AssertionError: it did not end well.
    """
    calls = "--trace=" + ",".join(f"?{name}" for name in names)
    done = _run("-y", "-xx", "-s", "16777216", "-o", str(log), calls, *command)
    assert done.returncode == 0, done.stderr
    return list(_parse(log.read_text()))


def kill_at(command: list[str], name: str, number: int) -> int:
    """Run ``command`` and kill it as it enters its ``number``-th call of ``name``, before that does anything.

    Returns:
        The exit code; -9 if it was killed.
    """
    # Where the filter passes fewer calls than all, strace 6.1 delivers no signal.
    return _run("-o", "/dev/null", f"--inject={name}:signal=KILL:when={number}", *command).returncode


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(PROJECT),
        "PYTHONDONTWRITEBYTECODE": "1",  # the same calls each time
        "PYTHONHASHSEED": "0",
    }
    command = [*strace(), "-f", "--seccomp-bpf", "-qq", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def _parse(log: str) -> Iterator[Call]:
    started: dict[str, tuple[str, str]] = {}
    for line in log.splitlines():
        if found := _RESUMED.match(line):
            name, before = started.pop(found[1])
            text = before + found[3]
        elif found := _STARTED.match(line):
            name, text = found[2], found[3]
            if text.endswith("<unfinished ...>"):
                started[found[1]] = name, text.removesuffix("<unfinished ...>").rstrip()
                continue
        else:
            continue
        ended = _ENDED.match(text)
        if ended is None:  # the process ended in it
            continue
        yield Call(int(found[1]), name, ended[1], int(ended[2]))


def mutates(call: Call) -> bool:
    """Tell whether a call may change a file system: standard output and error are no files of ours."""
    if call.name in SYNCING:
        return False
    if call.name in {"openat", "open"}:
        return any(flag in call.arguments for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"))
    return not (call.name.startswith("write") and call.arguments.startswith(("1<", "2<")))


def kill_points(calls: list[Call]) -> list[tuple[str, int]]:
    """Return the names and numbers of the mutating calls, as strace counts them: by thread and by name.

    Which thread of the pool makes which call is chance. One of them makes a fair share at least, as long as
    all it makes of that name are mutating.
    """
    main = calls[0].thread
    seen: Counter[str] = Counter()
    pooled: Counter[str] = Counter()
    points = dict[tuple[str, int], None]()
    for call in calls:
        if call.thread == main:
            seen[call.name] += 1
            if mutates(call):
                points[call.name, seen[call.name]] = None
        elif mutates(call) and call.name != "openat":
            pooled[call.name] += 1
    for name, total in pooled.items():
        points |= {(name, number): None for number in range(1, -(-total // COPIES_AT_ONCE) + 1)}
    return list(points)
