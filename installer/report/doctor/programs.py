"""Checks of programs on the node: NVIDIA's toolkit, shims, and versions with known holes."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines.containerd.config import CONTAINERD
from installer.model.engine_spec import OUR_BINARIES
from installer.payload.files import advice
from installer.report.doctor.engines import of_each
from installer.report.doctor.model import Judge, Node, Process, Toolkit, Version
from installer.report.doctor.verdict import Verdict, bad, dotted, listed, none, ok, warn

WITHOUT_CUDA: Final = (1, 1, 0)
WITH_CGROUP2: Final = (1, 8, 0)
CLI: Final = "nvidia-container-cli"
RUNTIME: Final = "nvidia-container-runtime"
NO_TOOLKIT: Final = none("no toolkit of NVIDIA's on the node")
SILENT: Final = none("nvidia-container-cli does not say its version")
NO_CONFIG: Final = none("no config.toml of a toolkit")
RUNNING: Final = ("active", "activating", "reloading")


def _configured(node: Node) -> list[Toolkit]:
    return [toolkit for toolkit in node.toolkits if toolkit.config is not None]


def needs_cuda(node: Node) -> Verdict:
    """Judge whether libnvidia-container initialises CUDA, which fails where one GPU is in trouble."""
    asked = [toolkit for toolkit in node.toolkits if toolkit.library]
    old = [each for each in asked if each.library < WITHOUT_CUDA]
    if old:
        found = [f"{dotted(each.library)} in {each.directory}" for each in old]
        return bad(f"libnvidia-container {listed(found)} calls cuInit at each start of a container")
    return ok(listed([dotted(each.library) for each in asked])) if asked else SILENT


def cgroup2(node: Node) -> Verdict:
    """Judge whether libnvidia-container knows the node's cgroups."""
    if not node.system.cgroup2:
        return none("cgroup v1")
    asked = [toolkit for toolkit in node.toolkits if toolkit.library]
    old = [dotted(each.library) for each in asked if each.library < WITH_CGROUP2]
    if old:
        return bad(f"cgroup v2, which libnvidia-container {listed(old)} does not know")
    return ok("cgroup v2, and known") if asked else SILENT


def one_toolkit(node: Node) -> Verdict:
    """Judge whether the pieces of each toolkit are of one version."""
    mixed, said = [], 0
    for toolkit in node.toolkits:
        versions = {each for each in (toolkit.library, toolkit.cli, toolkit.ctk) if each}
        said += len(versions)
        if len(versions) > 1:
            mixed.append(f"{toolkit.directory}: {', '.join(map(dotted, sorted(versions)))}")
    if mixed:
        return warn(f"of several versions: {listed(mixed)}")
    return ok("of one version each") if said else NO_TOOLKIT


def ldconfig(node: Node) -> Verdict:
    """Judge whether the ldconfig that config.toml names is there, and the host's own."""
    paths = [
        (each, value) for each in _configured(node) if isinstance(value := each.value(CLI, "ldconfig"), str)
    ]
    if not paths:
        return NO_CONFIG
    for toolkit, value in paths:
        root = toolkit.value(CLI, "root")
        if not value.startswith("@"):
            return bad(f"{toolkit.config_path} says {value}, without the @ for the node's own program")
        # Whether the driver root is there at all is the question of another check.
        if value.removeprefix("@") not in node.programs and (not root or root == "/"):
            return bad(f"{value.removeprefix('@')}, which {toolkit.config_path} names, is not there")
    return ok(listed([value for _, value in paths]))


def no_cgroups(node: Node) -> Verdict:
    """Judge whether the toolkit leaves device cgroups alone, which only rootless engines need."""
    if not _configured(node):
        return NO_CONFIG
    off = [str(each.config_path) for each in _configured(node) if each.value(CLI, "no-cgroups") is True]
    return bad(f"no-cgroups is true in {listed(off)}") if off else ok("false")


def hook_mode(node: Node) -> Verdict:
    """Judge whether `docker --gpus` works with the mode that is set."""
    if not _configured(node):
        return NO_CONFIG
    for each in _configured(node):
        mode = each.value(RUNTIME, "mode")
        if mode == "csv" and not node.system.tegra:
            return bad(f'mode is "csv" in {each.config_path}, and this is no Tegra')
        skipped = each.value(f"{RUNTIME}-hook", "skip-mode-detection")
        if mode in {"cdi", "csv"} and skipped is not True:
            return warn(f'mode is "{mode}" in {each.config_path}: `docker --gpus` is refused')
    return ok(listed([str(each.value(RUNTIME, "mode") or "auto") for each in _configured(node)]))


def low_level(node: Node) -> Verdict:
    """Judge whether a runtime is there that NVIDIA's can hand over to, and is not NVIDIA's again."""
    if not _configured(node):
        return NO_CONFIG
    for each in _configured(node):
        words = [str(word) for word in _list(each.value(RUNTIME, "runtimes"))]
        if own := [word for word in words if PurePosixPath(word).name in OUR_BINARIES]:
            return bad(f"{each.config_path} names {own[0]}, which starts itself without end")
        usable = [word for word in words if word in node.programs or _known(node, word)]
        if words and not usable:
            return bad(f"none of {listed(words)} is on the node ({each.config_path})")
    return ok("one is there")


def _known(node: Node, word: str) -> bool:
    return not word.startswith("/") and any(PurePosixPath(path).name == word for path in node.runc)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def several(node: Node) -> Verdict:
    """Judge whether it is plain which toolkit starts containers."""
    serving = sorted(set(_directories(node)))
    started = {str(each.starts): str(each.directory) for each in node.toolkits if each.starts}
    there = sorted(str(each.directory) for each in node.toolkits if str(each.directory) not in started)
    if len(serving) > 1:
        return warn(f"engines start runtimes out of {listed(serving)}")
    if len(there) > 1:
        used = f"; engines start that in {serving[0]}" if serving else ""
        return warn(f"there are toolkits in {listed(there)}{used}")
    by = next((f", which starts the programs in {place}" for place in started), "")
    return ok(f"{there[0]}{by}") if there else NO_TOOLKIT


def _directories(node: Node) -> Iterator[str]:
    for exam in node.engines:
        for binary in exam.binaries.values():
            if PurePosixPath(binary).name in OUR_BINARIES:
                yield str(PurePosixPath(binary).parent)


def log_level(node: Node) -> Verdict:
    """Judge whether the runtime's log fills a disk."""
    if not _configured(node):
        return NO_CONFIG
    loud = [
        f"{each.config_path}: debug = {debug}"
        for each in _configured(node)
        for table in (CLI, RUNTIME)
        if isinstance(debug := each.value(table, "debug"), str)
        and debug not in {"", "/dev/null"}
        and (table == CLI or each.value(RUNTIME, "log-level") in {"debug", "trace"})
    ]
    return warn(f"at each start of a container something is written ({loud[0]})") if loud else ok("quiet")


def installation(node: Node) -> Verdict:
    """Judge whether what we installed is as we left it, in the words of ``status``, and its engines run."""
    if not node.held:
        return none("nothing of ours is installed")
    running = {exam.name for exam in node.engines}
    absent = {name: told for name, told in node.configured.items() if name not in running}
    stopped = [
        f"{name} does not run{f' ({unit} is {state})' if state else ''}: start it, its configs are ours"
        for name, (unit, state) in absent.items()
        if (not state.startswith(RUNNING) if state else node.sees_host)
    ]
    stopped += [
        f"nobody listens on the socket of {name}, whose {unit} is {state}: restart it"
        for name, (unit, state) in absent.items()
        if state.startswith("active") and node.sees_host
    ]
    wrong = [*stopped, *(f"{what}: {state}" for what, state, good in node.held if not good)]
    if wrong:
        return bad(listed(wrong))
    unseen = [name for name, (_, state) in absent.items() if not state]
    beside = f"; nobody tells here whether {' and '.join(unseen)} runs" if unseen else ""
    return ok(f"{len(node.held)} things as they should be{beside}")


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


def containerd_nil_pointer(node: Node) -> Verdict:
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


TABLE_DATE: Final = "2026-11-21"


class Hole(Struct, frozen=True):
    """Holes that were closed together: ``fixed`` has a version for each branch, ``since`` is the first."""

    names: tuple[str, ...]
    fixed: tuple[Version, ...]
    since: Version = ()

    def in_version(self, version: Version) -> bool:
        """Tell whether a version has the hole: its branch counts, and one without a fix has it for good."""
        branch = [fixed for fixed in self.fixed if fixed[:2] == version[:2]]
        return self.since <= version < (branch[0] if branch else max(self.fixed))


RUNC: Final = (
    Hole(("CVE-2024-21626",), ((1, 1, 12),)),
    Hole(("CVE-2024-45310",), ((1, 1, 14),)),
    Hole(("CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"), ((1, 2, 8), (1, 3, 3))),
    Hole(("CVE-2026-41579",), ((1, 3, 6), (1, 4, 3))),
)
CONTAINERD_HOLES: Final = (
    Hole(("CVE-2025-47291",), ((2, 0, 5),), (2, 0, 0)),
    Hole(("CVE-2024-25621", "CVE-2025-64329"), ((1, 7, 29), (2, 0, 7), (2, 1, 5))),
    Hole(
        ("CVE-2026-53488", "CVE-2026-53489", "CVE-2026-53492"),
        ((1, 7, 33), (2, 0, 10), (2, 1, 9), (2, 2, 5), (2, 3, 2)),
    ),
    Hole(("CVE-2026-95839",), ((2, 2, 10), (2, 3, 7), (2, 4, 2)), (2, 2, 0)),
)


def _holes(text: str, version: Version, table: Iterable[Hole]) -> str:
    names = [name for hole in table if hole.in_version(version) for name in hole.names]
    return f"{text} by its version has {listed(names)}" if names else ""


def runc_holes(node: Node) -> Verdict:
    """Judge whether the node's runc has known holes."""
    asked = {path: told for path, told in node.runc.items() if told[0] and path.endswith("/runc")}
    if not asked:
        return none("no runc says its version")
    found = [holes for version, said in asked.values() if (holes := _holes(said, version, RUNC))]
    return warn(listed(found)) if found else ok(listed([said for _, said in asked.values()]))


def containerd_holes(node: Node) -> Verdict:
    """Judge whether the containerd that runs has known holes."""
    asked = {
        each.said: each.version for each in node.processes if each.name == CONTAINERD.process and each.version
    }
    if not asked:
        return none("no containerd says its version")
    found = [holes for said, version in asked.items() if (holes := _holes(said, version, CONTAINERD_HOLES))]
    return warn(listed(found)) if found else ok(listed(list(asked)))


def toolkit_holes(node: Node) -> Verdict:
    """Judge whether a toolkit on the node has known holes."""
    asked = [each for each in node.toolkits if each.ctk or each.cli]
    if not asked:
        return none("no toolkit says its version")
    found = [f"{each.directory}: {line}" for each in asked for line in advice(each.ctk or each.cli)]
    return warn(listed(found)) if found else ok("none known")


def cuda_compat(node: Node) -> Verdict:
    """Judge whether a setting opens a closed hole again."""
    name = "allow-cuda-compat-libs-from-container"
    configs = _configured(node)
    if not configs:
        return NO_CONFIG
    opened = [str(each.config_path) for each in configs if each.value("features", name) is True]
    return warn(f"{name} is true in {listed(opened)}") if opened else ok(f"{name} is not set")


JUDGES: Final[Mapping[str, Judge]] = {
    "libnvidia-container": needs_cuda,
    "cgroup2": cgroup2,
    "toolkit-versions": one_toolkit,
    "ldconfig": ldconfig,
    "no-cgroups": no_cgroups,
    "mode": hook_mode,
    "low-level-runtime": low_level,
    "toolkits": several,
    "toolkit-log": log_level,
    "installation": installation,
    "engine-below": of_each(lambda exam: exam.unable and f"cannot {exam.unable}", "nothing is missing"),
    "shim-nil-pointer": nil_pointer,
    "containerd-nil-pointer": containerd_nil_pointer,
    "shim-replaced": replaced,
    "holes-toolkit": toolkit_holes,
    "cuda-compat": cuda_compat,
    "holes-runc": runc_holes,
    "holes-containerd": containerd_holes,
}
