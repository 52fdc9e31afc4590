"""Programs of the node, asked for their versions: only those that root alone can have written are started."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from installer.decide.doctor.facts import Process, Version
from installer.decide.engines import ENGINES
from installer.host.files import Host
from installer.host.process_table import Seen, holds, root_wrote
from installer.host.programs import run_in
from installer.host.threads import each as at_once
from installer.record.started import PATH
from installer.record.texts import is_file

ASK_S: Final = 2.0
ROOT: Final = PurePosixPath("/")
SHIM: Final = "containerd-shim"
NIL_POINTER: Final = (
    b"(*execProcess).pidv"  # the function that the shim of containerd 1.2.1 and 1.2.2 dies in
)
# By the name of the process, which the kernel cuts after 15 letters: names of the program, and how to ask it.
ASKED: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    SHIM: (frozenset({SHIM, f"{SHIM}-runc-v1", f"{SHIM}-runc-v2"}), "-v"),
    **{engine.process: (frozenset({engine.process}), "--version") for engine in ENGINES.values()},
    "nv-fabricmanage": (frozenset({"nv-fabricmanager"}), "--version"),
}
_SAYS: Final = re.compile(r"(?<![\w.])v?((\d{1,5}(?:\.\d{1,5}){1,3})[^\s,]{0,40})")


def version_in(text: str) -> tuple[Version, str]:
    """Return the first version in a text: as numbers, and as it is spelled; () and "" without one."""
    found = _SAYS.search(text[:2000])
    return (tuple(int(part) for part in found[2].split(".")), found[1]) if found else ((), "")


def says(host: Host, program: PurePosixPath, word: str) -> str:
    """Return what a program of the host's says when it is given one word; "" where it may not be run."""
    if not is_file(host, program) or not root_wrote(host, program):
        return ""
    ran = run_in(host.local_path(ROOT), [str(program), word], timeout_s=ASK_S)
    return ran.stdout if ran is not None and ran.returncode == 0 else ""


def asked_processes(host: Host, seen: Sequence[Seen]) -> tuple[Process, ...]:
    """Return the processes that count here, each program asked once, whatever it was replaced by since."""
    wanted = [each for each in seen if each.name in ASKED]
    files = {each.file: each for each in wanted}
    answers = dict(zip(files, at_once(partial(_asked, host), files.values()), strict=True))
    return tuple(
        Process(
            each.pid,
            each.name,
            program=each.program,
            deleted=each.deleted,
            cmdline=each.cmdline,
            version=answers[each.file][0],
            said=answers[each.file][1],
            nil_pointer=answers[each.file][2],
        )
        for each in wanted
    )


def _asked(host: Host, process: Seen) -> tuple[Version, str, bool]:
    names, word = ASKED[process.name]
    said = ""
    if process.of_host and PurePosixPath(process.program).name in names:
        # By its process and not by its path: that may lead to a later program by now.
        ran = run_in(host.local_path(ROOT), [f"/proc/{process.pid}/exe", word], timeout_s=ASK_S)
        said = ran.stdout if ran is not None and ran.returncode == 0 else ""
    version, spelled = version_in(said)
    # The shim of containerd 1.2 has no word for its version.
    dying = process.name == SHIM and holds(host, process.pid, NIL_POINTER)
    return version, f"{process.name} {spelled}" if spelled else "", dying


def asked_runc(host: Host) -> dict[str, tuple[Version, str]]:
    """Return what each runc and crun of the node says, by path."""
    named = (place / name for name in ("runc", "crun") for place in PATH)
    paths = {host.resolve(path): None for path in named if is_file(host, path)}
    found = {}
    for path in paths:
        version, spelled = version_in(says(host, path, "--version"))
        found[str(path)] = (version, f"{path.name} {spelled}" if spelled else "")
    return found
