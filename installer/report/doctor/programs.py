"""Checks of programs on the node: NVIDIA's toolkit, shims, and versions with known holes."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines.containerd.config import CONTAINERD
from installer.model.engine_spec import is_ours
from installer.payload.files import advice
from installer.report.doctor.model import Node, Process, Toolkit, Version, given
from installer.report.doctor.verdict import Verdict, bad, judge, list_words, none, ok, spell_version, warn

WITHOUT_CUDA: Final = (1, 1, 0)
WITH_CGROUP2: Final = (1, 8, 0)
CLI: Final = "nvidia-container-cli"
RUNTIME: Final = "nvidia-container-runtime"
CUDA_COMPAT: Final = "allow-cuda-compat-libs-from-container"
NO_TOOLKIT: Final = none("no toolkit of NVIDIA's on the node")
SILENT: Final = none("nvidia-container-cli does not say its version")
NO_CONFIG: Final = none("no config.toml of a toolkit")
RUNNING: Final = ("active", "activating", "reloading")


def _select_configured(node: Node) -> list[Toolkit]:
    return [toolkit for toolkit in node.toolkits if toolkit.config is not None]


def check_libnvidia_container(node: Node) -> Verdict:
    asked = [toolkit for toolkit in node.toolkits if toolkit.library]
    old = [each for each in asked if each.library < WITHOUT_CUDA]
    if old:
        found = [f"{spell_version(each.library)} in {each.directory}" for each in old]
        return bad(f"libnvidia-container {list_words(found)} calls cuInit at each start of a container")
    return ok(list_words([spell_version(each.library) for each in asked])) if asked else SILENT


@given(lambda node: node.system.cgroup2, "cgroup v1")
def check_cgroup2(node: Node) -> Verdict:
    versions = [toolkit.library for toolkit in node.toolkits if toolkit.library]
    if old := [spell_version(version) for version in versions if version < WITH_CGROUP2]:
        return bad(f"cgroup v2, which libnvidia-container {list_words(old)} does not know")
    return ok("cgroup v2, and known") if versions else SILENT


def check_toolkit_versions(node: Node) -> Verdict:
    found = [(each.directory, {*filter(None, (each.library, each.cli, each.ctk))}) for each in node.toolkits]
    if not any(versions for _, versions in found):
        return NO_TOOLKIT
    spelled = [(place, [*map(spell_version, sorted(versions))]) for place, versions in found]
    mixed = [f"{place}: {', '.join(versions)}" for place, versions in spelled if len(versions) > 1]
    return judge(mixed, "of several versions: ", "of one version each", warn)


def check_ldconfig(node: Node) -> Verdict:
    programs = [(each, each.value(CLI, "ldconfig")) for each in _select_configured(node)]
    named = [(toolkit, program) for toolkit, program in programs if isinstance(program, str)]
    for toolkit, program in named:
        if not program.startswith("@"):
            return bad(f"{toolkit.config_path} says {program}, without the @ for the node's own program")
        # Whether the driver root is there at all is the question of another check.
        path, root = program.removeprefix("@"), toolkit.value(CLI, "root") or "/"
        if path not in node.programs and root == "/":
            return bad(f"{path}, which {toolkit.config_path} names, is not there")
    return ok(list_words([program for _, program in named])) if named else NO_CONFIG


def _judge_switch(node: Node, table: str, key: str, fine: str, level: Callable[[str], Verdict]) -> Verdict:
    """Judge whether a key of config.toml is true that should not be."""
    configured = _select_configured(node)
    switched_on = [str(each.config_path) for each in configured if each.value(table, key) is True]
    return judge(switched_on, f"{key} is true in ", fine, level) if configured else NO_CONFIG


check_no_cgroups: Final = partial(_judge_switch, table=CLI, key="no-cgroups", fine="false", level=bad)
check_cuda_compat: Final = partial(
    _judge_switch, table="features", key=CUDA_COMPAT, fine=f"{CUDA_COMPAT} is not set", level=warn
)


def check_mode(node: Node) -> Verdict:
    modes = [(each, each.value(RUNTIME, "mode")) for each in _select_configured(node)]
    for each, mode in modes:
        if mode == "csv" and not node.system.tegra:
            return bad(f'mode is "csv" in {each.config_path}, and this is no Tegra')
        if mode in ("cdi", "csv") and each.value(f"{RUNTIME}-hook", "skip-mode-detection") is not True:
            return warn(f'mode is "{mode}" in {each.config_path}: `docker --gpus` is refused')
    return ok(list_words([str(mode or "auto") for _, mode in modes])) if modes else NO_CONFIG


def check_low_level_runtime(node: Node) -> Verdict:
    there = node.programs | {PurePosixPath(path).name for path in node.runc}
    for each in _select_configured(node):
        value = each.value(RUNTIME, "runtimes")
        words = [str(word) for word in value] if isinstance(value, list) else []
        if own := [word for word in words if is_ours(word)]:
            return bad(f"{each.config_path} names {own[0]}, which starts itself without end")
        if words and not there & {*words}:
            return bad(f"none of {list_words(words)} is on the node ({each.config_path})")
    return ok("one is there") if _select_configured(node) else NO_CONFIG


def check_toolkits(node: Node) -> Verdict:
    binaries = [PurePosixPath(binary) for exam in node.engines for binary in exam.binaries.values()]
    serving = sorted({str(binary.parent) for binary in binaries if is_ours(str(binary))})
    started = {str(each.starts): str(each.directory) for each in node.toolkits if each.starts}
    there = sorted(str(each.directory) for each in node.toolkits if str(each.directory) not in started)
    if len(serving) > 1:
        return warn(f"engines start runtimes out of {list_words(serving)}")
    if len(there) > 1:
        used = f"; engines start that in {serving[0]}" if serving else ""
        return warn(f"there are toolkits in {list_words(there)}{used}")
    by = next((f", which starts the programs in {place}" for place in started), "")
    return ok(f"{there[0]}{by}") if there else NO_TOOLKIT


def check_toolkit_log(node: Node) -> Verdict:
    configured = _select_configured(node)
    loud = [
        f"{each.config_path}: debug = {debug}"
        for each in configured
        for table in (CLI, RUNTIME)
        if isinstance(debug := each.value(table, "debug"), str)
        and debug not in {"", "/dev/null"}
        and (table == CLI or each.value(RUNTIME, "log-level") in ("debug", "trace"))
    ]
    if loud:
        return warn(f"at each start of a container something is written ({loud[0]})")
    return ok("quiet") if configured else NO_CONFIG


@given(lambda node: node.installed, "nothing of ours is installed")
def check_installation(node: Node) -> Verdict:
    running = {exam.name for exam in node.engines}
    absent = {name: unit for name, unit in node.configured.items() if name not in running}
    stopped = [
        f"{name} does not run{f' ({unit} is {state})' if state else ''}: start it, its configs are ours"
        for name, (unit, state) in absent.items()
        if (not state.startswith(RUNNING) if state else node.sees_host)
    ]
    silent = [
        f"nobody listens on the socket of {name}, whose {unit} is {state}: restart it"
        for name, (unit, state) in absent.items()
        if state.startswith("active") and node.sees_host
    ]
    drifted = [f"{what}: {state}" for what, state, good in node.installed if not good]
    unseen = [name for name, (_, state) in absent.items() if not state]
    beside = f"; nobody tells here whether {' and '.join(unseen)} runs" if unseen else ""
    return judge([*stopped, *silent, *drifted], "", f"{len(node.installed)} things as they should be{beside}")


SHIM: Final = "containerd-shim"
# The commit that brought the nil pointer is in these two only; 1.2.0 and 1.2.3 are without it.
NIL_POINTER: Final = frozenset({(1, 2, 1), (1, 2, 2)})
EXEC_FIXED: Final = (1, 2, 13)


def _select_shims(node: Node) -> list[Process]:
    return [each for each in node.processes if each.name.startswith(SHIM) and each.program]


def _explain_no_shim(node: Node) -> str:
    if any(each.name.startswith(SHIM) for each in node.processes):
        return "shims run, and nobody may look at their programs from here"
    return "no shim runs" if node.sees_host else "the host's processes are not in view"


@given(_select_shims, _explain_no_shim)
def check_shim_nil_pointer(node: Node) -> Verdict:
    shims = _select_shims(node)
    dying = [
        f"pid {each.pid} ({each.program}{', deleted' * each.deleted})"
        for each in shims
        if each.nil_pointer or each.version[:3] in NIL_POINTER
    ]
    versions = sorted({spell_version(each.version) for each in shims if each.version})
    fine = f"{len(shims)} shims{', of ' + list_words(versions) if versions else ''}"
    return judge(dying, f"{len(dying)} of {len(shims)} shims run the code of 1.2.1 or 1.2.2: ", fine)


def check_containerd_nil_pointer(node: Node) -> Verdict:
    running = [each for each in node.processes if each.name == CONTAINERD.process and each.version]
    if not running:
        return none("no containerd says its version")
    if dying := [each for each in running if each.version[:3] in NIL_POINTER]:
        return bad(f"containerd {spell_version(dying[0].version)} runs (pid {dying[0].pid})")
    if old := [each for each in running if (1, 2) <= each.version < EXEC_FIXED]:
        return warn(f"containerd {spell_version(old[0].version)}: exec still has faults that 1.2.13 mended")
    return ok(list_words(sorted({spell_version(each.version) for each in running})))


@given(_select_shims, _explain_no_shim)
def check_shim_replaced(node: Node) -> Verdict:
    shims = _select_shims(node)
    if old := [str(each.pid) for each in shims if each.deleted]:
        return warn(
            f"{len(old)} of {len(shims)} shims run a program that was replaced (pid {list_words(old)})"
        )
    return ok("none")


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


RUNC_HOLES: Final = (
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


def _judge_holes(programs: Collection[tuple[Version, str]], table: tuple[Hole, ...], name: str) -> Verdict:
    asked = [(version, label) for version, label in programs if version]
    holes = [
        (label, [each for hole in table if hole.in_version(it) for each in hole.names]) for it, label in asked
    ]
    found = [f"{label} by its version has {list_words(names)}" for label, names in holes if names]
    fine = list_words([label for _, label in asked])
    return judge(found, "", fine, warn) if asked else none(f"no {name} says its version")


def check_holes_runc(node: Node) -> Verdict:
    programs = [program for path, program in node.runc.items() if path.endswith("/runc")]
    return _judge_holes(programs, RUNC_HOLES, "runc")


def check_holes_containerd(node: Node) -> Verdict:
    programs = [(each.version, each.label) for each in node.processes if each.name == CONTAINERD.process]
    return _judge_holes(dict.fromkeys(programs), CONTAINERD_HOLES, "containerd")


@given(lambda node: any(each.ctk or each.cli for each in node.toolkits), "no toolkit says its version")
def check_holes_toolkit(node: Node) -> Verdict:
    found = [
        f"{each.directory}: {line}" for each in node.toolkits for line in advice(each.ctk or each.cli or None)
    ]
    return judge(found, "", "none known", warn)
