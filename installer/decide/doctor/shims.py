"""Checks of containerd's shims as they run: an upgrade of the package leaves old ones alive."""

from typing import Final

from installer.decide.doctor.engines import each_engine
from installer.decide.doctor.facts import Node, Process
from installer.decide.doctor.model import Check, Level, Verdict, bad, dotted, listed, none, ok, warn
from installer.decide.engines.containerd import CONTAINERD

GROUP: Final = "Shims"
SHIM: Final = "containerd-shim"
# The commit that brought the nil pointer is in these two only; 1.2.0 and 1.2.3 are without it.
NIL_POINTER: Final = frozenset({(1, 2, 1), (1, 2, 2)})
EXEC_FIXED: Final = (1, 2, 13)


def _shims(node: Node) -> list[Process]:
    return [each for each in node.processes if each.name.startswith(SHIM) and each.program]


def _none(node: Node) -> Verdict:
    """Return why no shim is judged."""
    if any(each.name.startswith(SHIM) for each in node.processes):
        return none("shims run, and nobody may look at their programs from here")
    return none("no shim runs" if node.sees_host else "the host's processes are not in view")


def nil_pointer(node: Node) -> Verdict:
    """Judge whether a shim runs that dies of a nil pointer when many execs come at once."""
    shims = _shims(node)
    if not shims:
        return _none(node)
    dying = [each for each in shims if each.nil_pointer or each.version[:3] in NIL_POINTER]
    if not dying:
        versions = sorted({dotted(each.version) for each in shims if each.version})
        return ok(f"{len(shims)} shims{', of ' + listed(versions) if versions else ''}")
    names = [f"pid {each.pid} ({each.program}{', deleted' * each.deleted})" for each in dying]
    return bad(f"{len(dying)} of {len(shims)} shims run the code of 1.2.1 or 1.2.2: {listed(names)}")


def containerd(node: Node) -> Verdict:
    """Judge whether the containerd that runs starts such shims."""
    running = [each for each in node.processes if each.name == CONTAINERD.process and each.version]
    if not running:
        return none("no containerd says its version")
    if dying := [each for each in running if each.version[:3] in NIL_POINTER]:
        return bad(f"containerd {dotted(dying[0].version)} runs (pid {dying[0].pid})")
    old = [each for each in running if (1, 2) <= each.version < EXEC_FIXED]
    if old:
        return warn(f"containerd {dotted(old[0].version)}: exec still has faults that 1.2.13 mended")
    return ok(listed(sorted({dotted(each.version) for each in running})))


def replaced(node: Node) -> Verdict:
    """Judge whether shims run whose program was replaced since."""
    shims = _shims(node)
    old = [each for each in shims if each.deleted]
    if not shims:
        return _none(node)
    pids = listed([str(each.pid) for each in old])
    return (
        warn(f"{len(old)} of {len(shims)} shims run a program that was replaced (pid {pids})")
        if old
        else ok("none")
    )


def able(node: Node) -> Verdict:
    """Judge whether what is below each engine lets it start a container."""
    return each_engine(node, lambda engine: engine.unable and f"cannot {engine.unable}", "nothing is missing")


CHECKS: Final = (
    Check(
        "engine-below",
        GROUP,
        "Docker's containerd, containerd-shim-runc-v2 or conmon where the engine looks for it, room where"
        " containers have their state, and how the toolkit is mounted",
        "its containerd hangs or does not run, a program is missing, /run is full, or the toolkit is mounted"
        " noexec: the engine answers as ever, and no container starts",
        "`systemctl status containerd`, and restart it if it hangs; install the program again; make room;"
        " `mount -o remount,exec`",
        able,
    ),
    Check(
        "shim-nil-pointer",
        GROUP,
        "the program of each shim that runs, also where its file was replaced: its version if it says one,"
        " else whether it has the function that fails",
        "a shim runs the code of containerd 1.2.1 or 1.2.2: containers end with 137 after many execs, and the"
        " log says only `shim reaped`",
        "upgrade containerd to 1.2.13 or later, then restart the containers: a running shim keeps the old"
        " code. Until then, fewer execs (probes by exec)",
        nil_pointer,
        seen=("containerd/containerd#2969", "moby/moby#38768"),
    ),
    Check(
        "containerd-nil-pointer",
        GROUP,
        "the version of each containerd that runs, as its own program says",
        "it is 1.2.1 or 1.2.2; a warning for any other 1.2 before 1.2.13",
        "upgrade containerd to 1.2.13 or later; a newer Docker alone does not help",
        containerd,
        seen=("containerd/containerd#2969", "containerd/containerd#3755"),
    ),
    Check(
        "shim-replaced",
        GROUP,
        "the program of each shim that runs",
        "a warning where it was replaced or removed since: what was mended in it does not hold for these"
        " containers yet",
        "restart those containers when it suits",
        replaced,
        Level.WARN,
        ("containerd/containerd#2969",),
    ),
)
