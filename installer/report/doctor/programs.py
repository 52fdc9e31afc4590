"""Checks of engines and programs: what engines have in force, NVIDIA's toolkit, shims, known holes."""

from collections.abc import Callable, Collection
from functools import partial
from itertools import product
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines import ENGINES
from installer.engines.containerd.config import CONTAINERD
from installer.engines.reloading import AT_NEXT_START, PENDING
from installer.model.engine_spec import Api, is_ours
from installer.model.facts import count
from installer.payload.files import advise
from installer.report.doctor import model
from installer.report.doctor.model import Node, Verdict, bad, given, judge, list_words, none, ok, warn

ENDS_AGAIN: Final = "/auto-restart/"
WITHOUT_CUDA: Final = (1, 1, 0)
WITH_CGROUP2: Final = (1, 8, 0)
CLI: Final = "nvidia-container-cli"
RUNTIME: Final = "nvidia-container-runtime"
CUDA_COMPAT: Final = "allow-cuda-compat-libs-from-container"
NO_TOOLKIT: Final = none("no toolkit of NVIDIA's on the node")
SILENT: Final = none("nvidia-container-cli does not say its version")
NO_DOCKER: Final = "no dockerd answers"
NO_CONFIG: Final = none("no config.toml of a toolkit")
TYPE_KEYS: Final = ("runtimeType", "runtime_type")
RUNNING: Final = ("active", "activating", "reloading")
SHIM: Final = "containerd-shim"
# The commit that brought the nil pointer is in these two only; 1.2.0 and 1.2.3 are without it.
NIL_POINTER: Final = frozenset({(1, 2, 1), (1, 2, 2)})
EXEC_FIXED: Final = (1, 2, 13)
UNITS: Final = frozenset(unit for each in ENGINES.values() for unit in (each.unit, *each.units))
Wrong = Callable[[model.EngineExam], str]


def judge_engines(node: Node, wrong: Wrong, fine: str, level: Callable[[str], Verdict] = bad) -> Verdict:
    """Return a verdict on all engines: ``wrong`` says what is wrong with one, "" where nothing is."""
    if not node.engines:
        unseen = "no engine is seen: the host's processes are not in view"
        return none("no engine runs" if node.sees_host else unseen)
    return judge([f"{exam.name}: {flaw}" for exam in node.engines if (flaw := wrong(exam))], "", fine, level)


def by_engine(
    fine: str | Callable[[Node], str], level: Callable[[str], Verdict] = bad
) -> Callable[[Wrong], model.Judge]:
    """Make a check of the node out of one that judges an engine."""
    tell = fine if callable(fine) else lambda _: fine
    return lambda wrong: lambda node: judge_engines(node, wrong, tell(node), level)


def _read_cgroup_driver(exam: model.EngineExam, name: str) -> str:
    """Return the cgroup driver that a runtime of containerd uses; "" where its options do not tell."""
    handler = exam.serving.handlers.get(name) if exam.serving and exam.is_containerd else None
    if handler is None or not handler.options:
        return ""
    return "systemd" if handler.options.get("systemdcgroup") else "cgroupfs"


@by_engine(lambda node: list_words([exam.label for exam in node.engines]))
def check_engine_answers(exam: model.EngineExam) -> str:
    return exam.silence if exam.serving is None and not (exam.disabled or exam.failed) else ""


def check_engine_ready(node: Node) -> Verdict:
    def flaw(exam: model.EngineExam) -> str:
        # A containerd that serves Docker has CRI switched off on purpose, and is none that we configure.
        if exam.disabled and exam.name in node.configured:
            return "its CRI is switched off"
        if exam.failed:
            return exam.silence
        return "it calls itself not ready" if exam.serving and not exam.serving.ready else ""

    return judge_engines(node, flaw, "ready")


def check_engine_unit(node: Node) -> Verdict:
    states = {exam.unit: exam.unit_state for exam in node.engines if exam.unit_state}
    refused = node.system.refused
    down = [
        f"{unit} {f'ends again and again ({state})' if ENDS_AGAIN in state else f'is {state}'}"
        f"{f': {refused[unit]}' if unit in refused else ''}, see journalctl -u {unit}"
        for unit, state in node.system.units.items()
        if unit in UNITS - states.keys() and (ENDS_AGAIN in state or state.startswith("failed"))
    ]
    if not states and not down:
        return none("systemd does not tell, or no engine runs as a unit")
    wrong = [f"{unit} is {state}" for unit, state in states.items() if not state.startswith("active")]
    return judge([*wrong, *down], "", list_words([f"{unit} is active" for unit in states]))


check_engine_kind: Final = by_engine("the node's own", warn)(lambda exam: exam.another)
check_engine_below: Final = by_engine("nothing is missing")(
    lambda exam: exam.unable and f"cannot {exam.unable}"
)


@by_engine("each starts with the configs it has")
def check_config_accepted(exam: model.EngineExam) -> str:
    if exam.invalid:
        return exam.invalid
    # A containerd that serves Docker has CRI switched off on purpose.
    return (exam.on_disk.fatal if exam.on_disk and not exam.disabled else "") or exam.next_flaw


def check_config_in_force(node: Node) -> Verdict:
    pending = _list_pending(node)

    def differs(exam: model.EngineExam) -> str:
        return "" if exam.name in pending else _explain_difference(exam)

    def waits(exam: model.EngineExam) -> str:
        return _explain_difference(exam) if exam.name in pending else ""

    def leaves_out(exam: model.EngineExam) -> str:
        ignored = exam.on_disk.ignored if exam.on_disk else ()
        return f"{', '.join(ignored)} in its configs, which it ignores: no program there" if ignored else ""

    verdict = judge_engines(node, differs, "what configs say is served")
    if verdict.level is not model.Level.OK:
        return verdict
    late = judge_engines(node, waits, "", partial(warn, remedy="restart it at a time of your choice"))
    if late.level is model.Level.WARN:
        return late
    remedy = "install the program, or take that runtime out of the config"
    left_out = judge_engines(node, leaves_out, "", partial(warn, remedy=remedy))
    return left_out if left_out.level is model.Level.WARN else verdict


def _list_pending(node: Node) -> set[str]:
    """Return the engines that have not read their configs since the install, as status says."""
    return {what for what, state, good in node.installed if good and state.startswith(PENDING)}


def _explain_difference(exam: model.EngineExam) -> str:
    """Return what an engine serves otherwise than its configs say; "" where nothing is."""
    if exam.on_disk is None or exam.serving is None or exam.on_disk.broken:
        return ""
    on_disk, serving = exam.on_disk.handlers, exam.serving.handlers
    place = "its configs" if len(exam.files) > 1 else exam.config
    if absent := sorted(set(on_disk) - set(serving)):
        return f"{', '.join(absent)} in {place}, but not served"
    # dockerd adds runtimes of its own, and keeps removed ones until it is restarted.
    extra = sorted(name for name in set(serving) - set(on_disk) if is_ours(serving[name].binary))
    return f"{', '.join(extra)} served, but not in {place} any more" if extra else ""


@by_engine(
    lambda node: list_words([f"{exam.name}: {exam.served.default or 'unknown'}" for exam in node.engines])
)
def check_default_runtime(exam: model.EngineExam) -> str:
    handlers = exam.served.handlers
    undefined = handlers and exam.served.default not in {"", *handlers}
    return f"its default {exam.served.default} is not served" if undefined else ""


@given(lambda node: node.system.kubelet_cgroups, "no kubelet that says its cgroup driver")
def check_cgroup_driver(node: Node) -> Verdict:
    kubelet = node.system.kubelet_cgroups

    def other(exam: model.EngineExam) -> str:
        used = _read_cgroup_driver(exam, exam.served.default) or exam.served.cgroup_driver
        return f"uses {used}" if used and used != kubelet else ""

    verdict = judge_engines(node, other, f"all use {kubelet}")
    return (
        bad(f"the kubelet uses {kubelet}, {verdict.found}") if verdict.level is model.Level.BAD else verdict
    )


@by_engine("of one schema")
def check_config_schema(exam: model.EngineExam) -> str:
    if not exam.is_containerd:
        return ""
    versions = {path: tree["version"] for path, tree in exam.trees.items() if "version" in tree}
    root = versions.get(exam.config)
    other = [f"{path} ({value})" for path, value in versions.items() if value != root]
    return f"{exam.config} is of version {root}, {list_words(other)}" if other else ""


def check_docker_hook(node: Node) -> Verdict:
    docker = next((each for each in node.engines if each.spec.api is Api.DOCKER), None)
    if docker is None or docker.has_hook is None or not node.driver.loaded:
        return none("no dockerd whose PATH can be seen, or no driver")
    if node.by_cdi is not None:
        return none("containers get their GPUs by CDI alone: --device nvidia.com/gpu=all")
    place = "nvidia-container-runtime-hook in the PATH of dockerd"
    # `--gpus` is all that a package of the toolkit gives a Docker without a runtime of NVIDIA's.
    served = docker.has_hook or docker.nvidia_runtimes or docker.name in node.configured
    level = warn if node.toolkits and not served else ok
    missing = f"no {place}: `--gpus` needs it, the runtime does not"
    return level(place.replace(" in", " is in") if docker.has_hook else missing)


@given(lambda node: any(each.serving for each in node.engines if each.spec.api is Api.DOCKER), NO_DOCKER)
def check_live_restore(node: Node) -> Verdict:
    on = all(exam.served.live_restore for exam in node.engines)
    level = warn if any(state.endswith(AT_NEXT_START) for _, state, _ in node.installed) else ok
    return ok("on") if on else level("off: a restart of dockerd stops all containers")


@given(lambda node: node.by_cdi is None, "no runtime is asked for: containers get their GPUs by CDI alone")
@given(lambda node: node.toolkits, "no toolkit of NVIDIA's on the node")
def check_runtime_served(node: Node) -> Verdict:
    def absent(exam: model.EngineExam) -> str:
        if exam.serving is None or not exam.serving.ready or exam.nvidia_runtimes or exam.name in node.exempt:
            return ""
        return f"serves {', '.join(sorted(exam.serving.handlers)) or 'nothing'}"

    drifted = {what for what, _, good in node.installed if not good}
    lacking = {exam.name for exam in node.engines if absent(exam)}
    if lacking and lacking <= drifted | _list_pending(node):
        return none("installation names what is missing")
    # With a package, --gpus and CDI go without a runtime; what a pod installs is for engines to serve.
    for_engines = any(toolkit.directory not in model.PACKAGED for toolkit in node.toolkits)
    serving = {exam.name for exam in node.engines if exam.serving is not None}
    level = bad if for_engines and serving <= lacking else warn
    fine = f"a runtime of NVIDIA's in each{' that needs one' * bool(node.exempt)}"
    return judge_engines(node, absent, fine, level)


def check_runtime_programs(node: Node) -> Verdict:
    def gone(exam: model.EngineExam) -> str:
        named = [(name, path) for name, path in sorted(exam.programs.items()) if path]
        lost = [f"{name} ({path})" for name, path in named if path not in node.programs]
        return f"no program for {', '.join(lost)}" if lost else ""

    return judge_engines(node, gone, "all there")


@given(lambda node: node.hooks, "no OCI hook in the directories of CRI-O and Podman")
def check_hook_programs(node: Node) -> Verdict:
    lost = [
        f"no program for the hook {path} ({program})"
        for path, program in sorted(node.hooks.items())
        if program not in node.programs
    ]
    return judge(lost, "", "all there")


@by_engine("as the runtime that they wrap")
def check_runtime_options(exam: model.EngineExam) -> str:
    wanted, unset = _read_cgroup_driver(exam, "runc"), "cgroupfs"
    used = {name: _read_cgroup_driver(exam, name) or unset for name in exam.nvidia_runtimes if wanted}
    wrong = sorted(name for name in used if used[name] != wanted)
    return f"runc uses {wanted}, {', '.join(wrong)} not" if wrong else ""


@by_engine("all have one")
def check_runtime_type(exam: model.EngineExam) -> str:
    if not exam.is_containerd or exam.serving is None:
        return ""
    tables = {name: exam.serving.handlers[name].table for name in sorted(exam.nvidia_runtimes)}
    lost = [name for name, table in tables.items() if not any(map(table.get, TYPE_KEYS))]
    return f"{', '.join(lost)} without runtime_type" if lost else ""


@by_engine("no option twice")
def check_option_twice(exam: model.EngineExam) -> str:
    found = ((path, _find_doubled(tree)) for path, tree in exam.trees.items())
    return next((f"{keys} in {path}" for path, keys in found if keys), "")


def _find_doubled(tree: object) -> str:
    """Return a key below a table of options that stands there in two spellings."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if name == "options" and isinstance(value, dict):
            lower = [key.lower() for key in value]
            if doubled := [key for key in value if lower.count(key.lower()) > 1]:
                return " and ".join(doubled)
        if below := _find_doubled(value):
            return below
    return ""


def _select_configured(node: Node) -> list[model.Toolkit]:
    return [toolkit for toolkit in node.toolkits if toolkit.config is not None]


def check_libnvidia_container(node: Node) -> Verdict:
    asked = [(model.spell_version(each.library), each) for each in node.toolkits if each.library]
    if old := [f"{words} in {each.directory}" for words, each in asked if each.library < WITHOUT_CUDA]:
        return bad(f"libnvidia-container {list_words(old)} calls cuInit at each start of a container")
    return ok(list_words([words for words, _ in asked])) if asked else SILENT


@given(lambda node: node.system.cgroup2, "cgroup v1")
def check_cgroup2(node: Node) -> Verdict:
    versions = [toolkit.library for toolkit in node.toolkits if toolkit.library]
    if old := [model.spell_version(version) for version in versions if version < WITH_CGROUP2]:
        return bad(f"cgroup v2, which libnvidia-container {list_words(old)} does not know")
    return ok("cgroup v2, and known") if versions else SILENT


def check_toolkit_versions(node: Node) -> Verdict:
    found = [(each.directory, {*filter(None, (each.library, each.cli, each.ctk))}) for each in node.toolkits]
    if not any(versions for _, versions in found):
        return NO_TOOLKIT
    spelled = [(place, [*map(model.spell_version, sorted(versions))]) for place, versions in found]
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
    binaries = [PurePosixPath(binary) for exam in node.engines for binary in exam.served.binaries.values()]
    serving = sorted({str(each.parent) for each in binaries if is_ours(str(each))})
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
    for each, table in product(configured, (CLI, RUNTIME)):
        debug = each.value(table, "debug")
        writes = table == CLI or each.value(RUNTIME, "log-level") in ("debug", "trace")
        if writes and isinstance(debug, str) and debug not in {"", "/dev/null"}:
            loud = f"{each.config_path}: debug = {debug}"
            return warn(f"at each start of a container something is written ({loud})")
    return ok("quiet") if configured else NO_CONFIG


@given(lambda node: node.installed, "nothing of ours is installed")
def check_installation(node: Node) -> Verdict:
    running = {exam.name for exam in node.engines}
    absent = {name: unit for name, unit in node.configured.items() if name not in running}
    stopped, silent = [], []
    for name, (unit, state) in absent.items():
        if not state.startswith(RUNNING) if state else node.sees_host:
            detail = f" ({unit} is {state})" if state else ""
            start = f"systemctl unmask {unit}, then start it" if state.startswith("masked") else "start it"
            stopped.append(f"{name} does not run{detail}: {start}, its configs are ours")
        elif state.startswith("active") and node.sees_host:
            silent.append(f"nothing answers on the socket of {name}, whose {unit} is {state}: restart it")
    drifted = [f"{what}: {state}" for what, state, good in node.installed if not good]
    unseen = [name for name, (_, state) in absent.items() if not state]
    beside = f"; it cannot be seen from here whether {' and '.join(unseen)} runs" if unseen else ""
    if node.unwatched and not (stopped or silent or drifted or node.run_waits):
        return warn(f"last check: {node.unwatched}", "`systemctl start toolkit-installer`, or start its pod")
    wrong = [*stopped, *silent, *drifted]
    pending = [
        f"{what}: {state}" for what, state, good in node.installed if good and state.startswith(PENDING)
    ]
    if pending and not wrong:
        return warn(list_words(pending), "restart it at a time of your choice")
    fine = f"{count(len(node.installed), 'thing')} as they should be{beside}"
    return judge(wrong, "", fine)


def _select_shims(node: Node) -> list[model.Process]:
    return [each for each in node.processes if each.name.startswith(SHIM) and each.program]


@given(_select_shims, "no shim runs whose program can be read")
def check_shim_nil_pointer(node: Node) -> Verdict:
    shims = _select_shims(node)
    found = [each for each in shims if each.nil_pointer or each.version[:3] in NIL_POINTER]
    dying = [f"pid {each.pid} ({each.program}{', deleted' * each.deleted})" for each in found]
    versions = sorted({model.spell_version(each.version) for each in shims if each.version})
    fine = f"{count(len(shims), 'shim')}{', of ' + list_words(versions) if versions else ''}"
    return judge(dying, f"{len(dying)} of {len(shims)} shims run the code of 1.2.1 or 1.2.2: ", fine)


def check_containerd_nil_pointer(node: Node) -> Verdict:
    running = [each for each in node.processes if each.name == CONTAINERD.process and each.version]
    if not running:
        return none("no containerd's program can be asked from here")
    if dying := [each for each in running if each.version[:3] in NIL_POINTER]:
        return bad(f"containerd {model.spell_version(dying[0].version)} runs (pid {dying[0].pid})")
    if old := [each for each in running if (1, 2) <= each.version < EXEC_FIXED]:
        version = model.spell_version(old[0].version)
        return warn(f"containerd {version}: exec still has faults that 1.2.13 mended")
    return ok(list_words(sorted({model.spell_version(each.version) for each in running})))


@given(_select_shims, "no shim runs whose program can be read")
def check_shim_replaced(node: Node) -> Verdict:
    shims = _select_shims(node)
    old = [str(each.pid) for each in shims if each.deleted]
    replaced = f"{len(old)} of {len(shims)} shims run a program that was replaced (pid {list_words(old)})"
    return warn(replaced) if old else ok("none")


TABLE_DATE: Final = "2026-11-21"


class Hole(Struct, frozen=True):
    """Holes that were closed together: ``fixed`` has a version for each branch, ``since`` is the first."""

    names: tuple[str, ...]
    fixed: tuple[model.Version, ...]
    since: model.Version = ()

    def in_version(self, version: model.Version) -> bool:
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


def _judge_holes(
    programs: Collection[tuple[model.Version, str]], table: tuple[Hole, ...], name: str
) -> Verdict:
    asked, found = [label for version, label in programs if version], []
    for version, label in programs:
        if names := [each for hole in table if version and hole.in_version(version) for each in hole.names]:
            found.append(f"{label} by its version has {list_words(names)}")
    return judge(found, "", list_words(asked), warn) if asked else none(f"no {name} says its version")


def check_holes_runc(node: Node) -> Verdict:
    programs = [program for path, program in node.runc.items() if path.endswith("/runc")]
    return _judge_holes(programs, RUNC_HOLES, "runc")


def check_holes_containerd(node: Node) -> Verdict:
    asked = [each for each in node.processes if each.name == CONTAINERD.process and each.version]
    engines = [(each.version or (), each.label) for each in node.engines if each.is_containerd]
    programs = [(each.version, each.label) for each in asked] or engines  # in a pod no program is asked
    return _judge_holes(dict.fromkeys(programs), CONTAINERD_HOLES, "containerd")


@given(lambda node: any(each.ctk or each.cli for each in node.toolkits), "no toolkit says its version")
def check_holes_toolkit(node: Node) -> Verdict:
    advised = [(each, line) for each in node.toolkits for line in advise(each.ctk or each.cli or None)]
    return judge([f"{each.directory}: {line}" for each, line in advised], "", "none known", warn)
