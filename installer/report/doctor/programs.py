"""Check engines and programs: configs in force, NVIDIA's toolkit, shims and known vulnerabilities."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import product
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.change.pending import AT_NEXT_START, PENDING
from installer.engines import CONTAINERD, ENGINES
from installer.model.effective import is_ours
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
# Only these two have the commit with the nil pointer; 1.2.0 and 1.2.3 are without.
NIL_POINTER: Final = frozenset({(1, 2, 1), (1, 2, 2)})
EXEC_FIXED: Final = (1, 2, 13)
Level = Callable[[str], Verdict]
FindFlaw = Callable[[model.EngineExam], str]


def _list_units() -> Iterator[str]:
    """Yield the name of each unit of each engine."""
    for engine in ENGINES.values():
        yield engine.unit
        yield from engine.units


UNITS: Final = frozenset(_list_units())


def judge_engines(node: Node, find_flaw: FindFlaw, fine: str, level: Level = bad) -> Verdict:
    """Return a verdict on all engines.

    Args:
        node: The node with its engines.
        find_flaw: Returns the flaw of an engine, "" without a flaw.
        fine: The text of a verdict without a flaw.
        level: Makes the verdict on the flaws.
    """
    if not node.engines:
        if node.sees_host:
            return none("no engine runs")
        return none("no engine is seen: the host's processes are not in view")

    flaws = []
    for exam in node.engines:
        flaw = find_flaw(exam)
        if flaw:
            flaws.append(f"{exam.name}: {flaw}")
    return judge(flaws, "", fine, level)


def by_engine(fine: str | Callable[[Node], str], level: Level = bad) -> Callable[[FindFlaw], model.Check]:
    """Turn a check of an engine into a check of the node.

    Args:
        fine: The text of a verdict without a flaw, or a function of the node that returns the text.
        level: Makes the verdict on the flaws.
    """

    def decorate(find_flaw: FindFlaw) -> model.Check:
        def check(node: Node) -> Verdict:
            text = fine(node) if callable(fine) else fine
            return judge_engines(node, find_flaw, text, level)

        return check

    return decorate


def _read_cgroup_driver(exam: model.EngineExam, name: str) -> str:
    """Return the cgroup driver of a runtime of containerd; "" if the runtime has no options."""
    if not exam.serving or not exam.is_containerd:
        return ""

    handler = exam.serving.handlers.get(name)
    if handler is None or not handler.options:
        return ""
    return "systemd" if handler.options.get("systemdcgroup") else "cgroupfs"


def _list_labels(node: Node) -> str:
    return list_words([exam.label for exam in node.engines])


@by_engine(_list_labels)
def check_engine_answers(exam: model.EngineExam) -> str:
    if exam.serving is not None or exam.disabled or exam.failed:
        return ""
    return exam.silence_reason


def check_engine_ready(node: Node) -> Verdict:
    def find_flaw(exam: model.EngineExam) -> str:
        # A containerd that serves Docker has CRI switched off on purpose, and is not configured by us.
        if exam.disabled and exam.name in node.engine_units:
            return "its CRI is switched off"
        if exam.failed:
            return exam.silence_reason
        if exam.serving and not exam.serving.ready:
            return "it reports that it is not ready"
        return ""

    return judge_engines(node, find_flaw, "ready")


DAEMON_RELOAD: Final = "`systemctl daemon-reload`, then restart the engine at a time of your choice"


def check_engine_unit(node: Node) -> Verdict:
    states = {exam.unit: exam.unit_state for exam in node.engines if exam.unit_state}
    down = list(_describe_units_down(node, UNITS - states.keys()))
    if not states and not down:
        return none("systemd does not tell, or no engine runs as a unit")

    inactive = []
    for unit, state in states.items():
        if not state.startswith("active"):
            inactive.append(f"{unit} is {state}")
    wrong = inactive + down
    unread = [exam.unit for exam in node.engines if exam.unit_unread]
    if unread and not wrong:
        return warn(f"changed on disk, and not read by systemd since: {list_words(unread)}", DAEMON_RELOAD)
    fine = list_words([f"{unit} is active" for unit in states])
    return judge(wrong, "", fine)


def _describe_units_down(node: Node, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence on each of these units that failed, or that systemd restarts again and again."""
    for unit, state in node.system.units.items():
        if unit not in names:
            continue

        if ENDS_AGAIN in state:
            problem = f"ends again and again ({state})"
        elif state.startswith("failed"):
            problem = f"is {state}"
        else:
            continue

        if unit in node.system.refused_files:
            problem += f": {node.system.refused_files[unit]}"
        yield f"{unit} {problem}, see journalctl -u {unit}"


@by_engine("the node's own", warn)
def check_engine_kind(exam: model.EngineExam) -> str:
    return exam.other_engine_reason


@by_engine("nothing is missing")
def check_engine_below(exam: model.EngineExam) -> str:
    return f"cannot {exam.start_problem}" if exam.start_problem else ""


@by_engine("each would start with its present configs")
def check_config_accepted(exam: model.EngineExam) -> str:
    if exam.config_error:
        return exam.config_error
    # A containerd that serves Docker has CRI switched off on purpose.
    if exam.on_disk and not exam.disabled and exam.on_disk.fatal:
        return exam.on_disk.fatal
    return exam.next_start_flaw


def check_other_engines(node: Node) -> Verdict:
    problems = [other.problem for other in node.other_engines]
    if problems:
        return warn(list_words(problems), "; ".join(other.remedy for other in node.other_engines))
    return ok("none")


def check_config_in_force(node: Node) -> Verdict:
    pending = _list_pending(node)

    def find_difference(exam: model.EngineExam) -> str:
        return "" if exam.name in pending else _explain_difference(exam)

    def find_pending_difference(exam: model.EngineExam) -> str:
        return _explain_difference(exam) if exam.name in pending else ""

    verdict = judge_engines(node, find_difference, "the engines serve what their configs say")
    if verdict.level is not model.Level.OK:
        return verdict

    restart = partial(warn, remedy="restart it at a time of your choice")
    late = judge_engines(node, find_pending_difference, "", restart)
    if late.level is model.Level.WARN:
        return late

    moved = judge_engines(node, lambda exam: exam.next_start_move, "", restart)
    if moved.level is model.Level.WARN:
        return moved

    mend = partial(warn, remedy="install the program, or take that runtime out of the config")
    left_out = judge_engines(node, _explain_ignored, "", mend)
    if left_out.level is model.Level.WARN:
        return left_out
    return verdict


def _explain_ignored(exam: model.EngineExam) -> str:
    """Name the runtimes in the configs that the engine ignores; "" without such runtimes."""
    if not exam.on_disk or not exam.on_disk.ignored:
        return ""
    return f"{', '.join(exam.on_disk.ignored)} in its configs, which it ignores: no program there"


def _list_pending(node: Node) -> set[str]:
    """Return the engines that have not read their configs since the install, as status says."""
    return {name for name, state, good in node.status_lines if good and state.startswith(PENDING)}


def _explain_difference(exam: model.EngineExam) -> str:
    """Name the runtimes that an engine serves otherwise than its configs say; "" without a difference."""
    if exam.on_disk is None or exam.serving is None or exam.on_disk.broken:
        return ""

    on_disk = exam.on_disk.handlers
    serving = exam.serving.handlers
    place = "its configs" if len(exam.files) > 1 else exam.config

    absent = sorted(set(on_disk) - set(serving))
    if absent:
        return f"{', '.join(absent)} in {place}, but not served"

    # dockerd adds runtimes of its own, and keeps removed runtimes until its restart.
    extra = sorted(name for name in set(serving) - set(on_disk) if is_ours(serving[name].binary))
    if extra:
        return f"{', '.join(extra)} served, but not in {place} any more"
    return ""


def _list_defaults(node: Node) -> str:
    return list_words([f"{exam.name}: {exam.served.default or 'unknown'}" for exam in node.engines])


@by_engine(_list_defaults)
def check_default_runtime(exam: model.EngineExam) -> str:
    default = exam.served.default
    handlers = exam.served.handlers
    if not handlers or not default or default in handlers:
        return ""
    return f"its default {default} is not served"


def _has_kubelet_cgroups(node: Node) -> bool:
    return bool(node.system.kubelet_cgroups)


@given(_has_kubelet_cgroups, "no kubelet that says its cgroup driver")
def check_cgroup_driver(node: Node) -> Verdict:
    kubelet = node.system.kubelet_cgroups

    def find_other_driver(exam: model.EngineExam) -> str:
        driver = _read_cgroup_driver(exam, exam.served.default) or exam.served.cgroup_driver
        return f"uses {driver}" if driver and driver != kubelet else ""

    verdict = judge_engines(node, find_other_driver, f"all use {kubelet}")
    if verdict.level is model.Level.BAD:
        return bad(f"the kubelet uses {kubelet}, {verdict.text}")
    return verdict


@by_engine("of one schema")
def check_config_schema(exam: model.EngineExam) -> str:
    if not exam.is_containerd:
        return ""
    versions = {path: tree["version"] for path, tree in exam.trees.items() if "version" in tree}
    root = versions.get(exam.config)
    other = []
    for path, value in versions.items():
        if value != root:
            other.append(f"{path} ({value})")
    if other:
        return f"{exam.config} is of version {root}, {list_words(other)}"
    return ""


def _find_docker(node: Node) -> model.EngineExam | None:
    for exam in node.engines:
        if exam.kind.gpus_hook:
            return exam
    return None


def check_docker_hook(node: Node) -> Verdict:
    docker = _find_docker(node)
    if docker is None or docker.has_hook is None or not node.driver.loaded:
        return none("no dockerd whose PATH can be seen, or no driver")
    if node.by_cdi is not None:
        return none("containers get their GPUs by CDI alone: --device nvidia.com/gpu=all")
    if docker.has_hook:
        return ok("nvidia-container-runtime-hook is in the PATH of dockerd")

    # `--gpus` is all that a package of the toolkit gives a Docker without a runtime of NVIDIA's.
    missing = (
        "no nvidia-container-runtime-hook in the PATH of dockerd: `--gpus` needs it, the runtime does not"
    )
    has_runtime = docker.nvidia_runtimes or docker.name in node.engine_units
    if node.toolkits and not has_runtime:
        return warn(missing)
    return ok(missing)


def _docker_answers(node: Node) -> bool:
    return any(exam.serving for exam in node.engines if exam.kind.live_restore_key)


@given(_docker_answers, NO_DOCKER)
def check_live_restore(node: Node) -> Verdict:
    if all(exam.served.live_restore for exam in node.engines):
        return ok("on")

    awaits_restart = any(state.endswith(AT_NEXT_START) for _, state, _ in node.status_lines)
    level = warn if awaits_restart else ok
    return level("off: a restart of dockerd stops all containers")


def _installs_runtimes(node: Node) -> bool:
    return node.by_cdi is None


def _has_toolkit(node: Node) -> bool:
    return bool(node.toolkits)


@given(_installs_runtimes, "no runtime is asked for: containers get their GPUs by CDI alone")
@given(_has_toolkit, "no toolkit of NVIDIA's on the node")
def check_runtime_served(node: Node) -> Verdict:
    def find_lack(exam: model.EngineExam) -> str:
        if exam.serving is None or not exam.serving.ready:
            return ""
        if exam.nvidia_runtimes or exam.name in node.without_runtime:
            return ""
        return f"serves {', '.join(sorted(exam.serving.handlers)) or 'nothing'}"

    drifted = {name for name, _, good in node.status_lines if not good}
    lacking = {exam.name for exam in node.engines if find_lack(exam)}
    if lacking and lacking <= drifted | _list_pending(node):
        return none("installation names what is missing")

    # With a package, --gpus and CDI go without a runtime; a pod's toolkit is for engines to serve.
    for_engines = any(toolkit.directory not in model.PACKAGED for toolkit in node.toolkits)
    serving = {exam.name for exam in node.engines if exam.serving is not None}
    level = bad if for_engines and serving <= lacking else warn
    fine = "each serves a runtime of NVIDIA's"
    if node.without_runtime:
        fine += " that needs one"
    return judge_engines(node, find_lack, fine, level)


def check_runtime_programs(node: Node) -> Verdict:
    def find_missing_programs(exam: model.EngineExam) -> str:
        missing = []
        for name, path in sorted(exam.programs.items()):
            if path and path not in node.programs:
                missing.append(f"{name} ({path})")
        return f"no program for {', '.join(missing)}" if missing else ""

    return judge_engines(node, find_missing_programs, "all there")


def _has_hooks(node: Node) -> bool:
    return bool(node.hooks)


@given(_has_hooks, "no OCI hook in the directories of CRI-O and Podman")
def check_hook_programs(node: Node) -> Verdict:
    missing = []
    for path, program in sorted(node.hooks.items()):
        if program not in node.programs:
            missing.append(f"no program for the hook {path} ({program})")
    return judge(missing, "", "all there")


@by_engine("the options of the runtime that they wrap")
def check_runtime_options(exam: model.EngineExam) -> str:
    runc_driver = _read_cgroup_driver(exam, "runc")
    if not runc_driver:
        return ""

    different = []
    for name in sorted(exam.nvidia_runtimes):
        driver = _read_cgroup_driver(exam, name) or "cgroupfs"
        if driver != runc_driver:
            different.append(name)
    return f"runc uses {runc_driver}, {', '.join(different)} not" if different else ""


@by_engine("all have one")
def check_runtime_type(exam: model.EngineExam) -> str:
    if not exam.is_containerd or exam.serving is None:
        return ""

    untyped = []
    for name in sorted(exam.nvidia_runtimes):
        table = exam.serving.handlers[name].table
        if not any(table.get(key) for key in TYPE_KEYS):
            untyped.append(name)
    return f"{', '.join(untyped)} without runtime_type" if untyped else ""


@by_engine("no option twice")
def check_option_twice(exam: model.EngineExam) -> str:
    for path, tree in exam.trees.items():
        keys = _find_doubled(tree)
        if keys:
            return f"{keys} in {path}"
    return ""


def _find_doubled(tree: object) -> str:
    """Return the spellings of a key that a table of options has twice; "" without such a key."""
    if not isinstance(tree, dict):
        return ""

    for name, value in tree.items():
        if name == "options" and isinstance(value, dict):
            lower = [key.lower() for key in value]
            doubled = [key for key in value if lower.count(key.lower()) > 1]
            if doubled:
                return " and ".join(doubled)

        below = _find_doubled(value)
        if below:
            return below
    return ""


def _select_configured(node: Node) -> list[model.Toolkit]:
    return [toolkit for toolkit in node.toolkits if toolkit.config is not None]


def check_libnvidia_container(node: Node) -> Verdict:
    versions = []
    old = []
    for toolkit in node.toolkits:
        if not toolkit.library:
            continue
        version = model.spell_version(toolkit.library)
        versions.append(version)
        if toolkit.library < WITHOUT_CUDA:
            old.append(f"{version} in {toolkit.directory}")

    if old:
        return bad(f"libnvidia-container {list_words(old)} calls cuInit at each start of a container")
    if not versions:
        return SILENT
    return ok(list_words(versions))


def _has_cgroup2(node: Node) -> bool:
    return node.system.cgroup2


@given(_has_cgroup2, "cgroup v1")
def check_cgroup2(node: Node) -> Verdict:
    versions = [toolkit.library for toolkit in node.toolkits if toolkit.library]
    old = []
    for version in versions:
        if version < WITH_CGROUP2:
            old.append(model.spell_version(version))
    if old:
        return bad(f"cgroup v2, which libnvidia-container {list_words(old)} does not know")
    if not versions:
        return SILENT
    return ok("cgroup v2, and known")


def check_toolkit_versions(node: Node) -> Verdict:
    says_version = False
    mixed = []
    for toolkit in node.toolkits:
        versions = {version for version in (toolkit.library, toolkit.cli, toolkit.ctk) if version}
        if versions:
            says_version = True
        if len(versions) > 1:
            spelled = [model.spell_version(version) for version in sorted(versions)]
            mixed.append(f"{toolkit.directory}: {', '.join(spelled)}")

    if not says_version:
        return NO_TOOLKIT
    return judge(mixed, "of several versions: ", "of one version each", warn)


def check_ldconfig(node: Node) -> Verdict:
    programs = []
    absent = []
    for toolkit in _select_configured(node):
        program = toolkit.value(CLI, "ldconfig")
        if not isinstance(program, str):
            continue
        programs.append(program)
        if not program.startswith("@"):
            return bad(f"{toolkit.config_path} says {program}, without the @ for the node's own program")

        path = program.removeprefix("@")
        root = toolkit.value(CLI, "root") or "/"
        if path in node.programs:
            continue
        # The driver's container brings the program; driver-libraries is the check of a missing driver.
        if root != "/" and not node.driver.libraries:
            absent.append(f"{path} is not there, as no driver was found below {root}")
            continue
        return bad(f"{path}, which {toolkit.config_path} names, is not there")

    if absent:
        return none(absent[0])
    if not programs:
        return NO_CONFIG
    return ok(list_words(programs))


def _judge_switch(node: Node, table: str, key: str, fine: str, level: Level) -> Verdict:
    """Judge whether a key of config.toml is true that should not be."""
    configured = _select_configured(node)
    if not configured:
        return NO_CONFIG
    switched_on = []
    for toolkit in configured:
        if toolkit.value(table, key) is True:
            switched_on.append(str(toolkit.config_path))
    return judge(switched_on, f"{key} is true in ", fine, level)


def check_no_cgroups(node: Node) -> Verdict:
    return _judge_switch(node, CLI, "no-cgroups", fine="false", level=bad)


def check_cuda_compat(node: Node) -> Verdict:
    return _judge_switch(node, "features", CUDA_COMPAT, fine=f"{CUDA_COMPAT} is not set", level=warn)


def check_mode(node: Node) -> Verdict:
    modes = []
    for toolkit in _select_configured(node):
        mode = toolkit.value(RUNTIME, "mode")
        modes.append(str(mode or "auto"))
        if mode == "csv" and not node.system.tegra:
            return bad(f'mode is "csv" in {toolkit.config_path}, and this is no Tegra')

        skips_detection = toolkit.value(f"{RUNTIME}-hook", "skip-mode-detection") is True
        if mode in ("cdi", "csv") and not skips_detection:
            return warn(f'mode is "{mode}" in {toolkit.config_path}: `docker --gpus` is refused')

    if not modes:
        return NO_CONFIG
    return ok(list_words(modes))


def check_low_level_runtime(node: Node) -> Verdict:
    configured = _select_configured(node)
    available = set(node.programs)
    for path in node.runc:
        available.add(PurePosixPath(path).name)
    for toolkit in configured:
        value = toolkit.value(RUNTIME, "runtimes")
        names = list(map(str, value)) if isinstance(value, list) else []
        own = [name for name in names if is_ours(name)]
        if own:
            return bad(f"{toolkit.config_path} names {own[0]}, which starts itself without end")
        if names and available.isdisjoint(names):
            return bad(f"none of {list_words(names)} is on the node ({toolkit.config_path})")

    if not configured:
        return NO_CONFIG
    return ok("one is there")


def _list_toolkits_in_use(node: Node) -> list[str]:
    """Return the directories from which engines start runtimes of NVIDIA's."""
    directories = set()
    for exam in node.engines:
        for binary in exam.served.binaries.values():
            path = PurePosixPath(binary)
            if is_ours(str(path)):
                directories.add(str(path.parent))
    return sorted(directories)


def check_toolkits(node: Node) -> Verdict:
    serving = _list_toolkits_in_use(node)
    if len(serving) > 1:
        return warn(f"engines start runtimes out of {list_words(serving)}")

    # The programs of a toolkit may be links to those of another.
    linked = [str(toolkit.linked_directory) for toolkit in node.toolkits if toolkit.linked_directory]
    directories = [str(toolkit.directory) for toolkit in node.toolkits]
    own = [directory for directory in sorted(directories) if directory not in linked]
    if not own:
        return NO_TOOLKIT
    if len(own) > 1:
        problem = f"there are toolkits in {list_words(own)}"
        if serving:
            problem += f"; engines start that in {serving[0]}"
        return warn(problem)
    if linked:
        return ok(f"{own[0]}, which starts the programs in {linked[0]}")
    return ok(own[0])


def check_toolkit_log(node: Node) -> Verdict:
    configured = _select_configured(node)
    if not configured:
        return NO_CONFIG

    for toolkit, table in product(configured, (CLI, RUNTIME)):
        debug = toolkit.value(table, "debug")
        writes = table == CLI or toolkit.value(RUNTIME, "log-level") in ("debug", "trace")
        if writes and isinstance(debug, str) and debug not in {"", "/dev/null"}:
            setting = f"{toolkit.config_path}: debug = {debug}"
            return warn(f"at each start of a container something is written ({setting})")
    return ok("quiet")


def _has_installation(node: Node) -> bool:
    return bool(node.status_lines)


@given(_has_installation, "nothing of ours is installed")
def check_installation(node: Node) -> Verdict:
    running = {exam.name for exam in node.engines}
    absent = {name: unit for name, unit in node.engine_units.items() if name not in running}
    stopped = []
    silent = []
    unseen = []
    for name, (unit, state) in absent.items():
        if not state:
            unseen.append(name)

        if _is_stopped(node, state):
            stopped.append(_describe_stopped(name, unit, state))
        elif state.startswith("active") and node.sees_host:
            silent.append(f"nothing answers on the socket of {name}, whose {unit} is {state}: restart it")

    drifted = []
    pending = []
    for name, state, good in node.status_lines:
        if not good:
            drifted.append(f"{name}: {state}")
        elif state.startswith(PENDING):
            pending.append(f"{name}: {state}")

    wrong = stopped + silent + drifted
    if node.last_check and not wrong and not node.run_waits:
        return warn(f"last check: {node.last_check}", "`systemctl start toolkit-installer`, or start its pod")
    if pending and not wrong:
        return warn(list_words(pending), "restart it at a time of your choice")

    fine = f"{count(len(node.status_lines), 'thing')} as they should be"
    if unseen:
        fine += f"; it cannot be seen from here whether {' and '.join(unseen)} runs"
    return judge(wrong, "", fine)


def _is_stopped(node: Node, state: str) -> bool:
    """Tell whether a configured engine without a process is stopped, by the state of its unit."""
    if not state:
        return node.sees_host
    return not state.startswith(RUNNING)


def _describe_stopped(name: str, unit: str, state: str) -> str:
    problem = f"{name} does not run"
    if state:
        problem += f" ({unit} is {state})"
    start = "start it"
    if state.startswith("masked"):
        start = f"systemctl unmask {unit}, then start it"
    return f"{problem}: {start}, its configs are ours"


def _select_shims(node: Node) -> list[model.Process]:
    return [process for process in node.processes if process.name.startswith(SHIM) and process.program]


@given(_select_shims, "no shim runs whose program can be read")
def check_shim_nil_pointer(node: Node) -> Verdict:
    shims = _select_shims(node)
    dying = []
    versions = set()
    for shim in shims:
        if shim.version:
            versions.add(model.spell_version(shim.version))
        if shim.nil_pointer or shim.version[:3] in NIL_POINTER:
            program = f"{shim.program}, deleted" if shim.deleted else shim.program
            dying.append(f"pid {shim.pid} ({program})")

    fine = count(len(shims), "shim")
    if versions:
        fine += f", of {list_words(sorted(versions))}"
    return judge(dying, f"{len(dying)} of {len(shims)} shims run the code of 1.2.1 or 1.2.2: ", fine)


def _select_containerds(node: Node) -> list[model.Process]:
    """Return the processes of containerd whose program says its version."""
    return [process for process in node.processes if process.name == CONTAINERD.process and process.version]


def check_containerd_nil_pointer(node: Node) -> Verdict:
    running = _select_containerds(node)
    if not running:
        return none("no containerd's program can be asked from here")

    dying = [process for process in running if process.version[:3] in NIL_POINTER]
    if dying:
        return bad(f"containerd {model.spell_version(dying[0].version)} runs (pid {dying[0].pid})")

    old = [process for process in running if (1, 2) <= process.version < EXEC_FIXED]
    if old:
        version = model.spell_version(old[0].version)
        return warn(f"containerd {version}: exec still has faults that 1.2.13 mended")

    versions = {model.spell_version(process.version) for process in running}
    return ok(list_words(sorted(versions)))


@given(_select_shims, "no shim runs whose program can be read")
def check_shim_replaced(node: Node) -> Verdict:
    shims = _select_shims(node)
    old = [str(shim.pid) for shim in shims if shim.deleted]
    if not old:
        return ok("none")
    return warn(f"{len(old)} of {len(shims)} shims run a program that was replaced (pid {list_words(old)})")


TABLE_DATE: Final = "2026-11-21"


class Hole(Struct, frozen=True):
    """Vulnerabilities that were closed together.

    Attributes:
        names: Their CVE numbers.
        fixed: The first version of each branch without them.
        since: The first version with them.
    """

    names: tuple[str, ...]
    fixed: tuple[model.Version, ...]
    since: model.Version = ()

    def in_version(self, version: model.Version) -> bool:
        """Tell whether a version is vulnerable; a branch without a fix stays vulnerable."""
        if version < self.since:
            return False
        for fixed in self.fixed:
            if fixed[:2] == version[:2]:
                return version < fixed
        return version < max(self.fixed)


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
    """Judge programs by their version.

    Args:
        programs: The version and the label of each program; () for a program without a version.
        table: The vulnerabilities of the program.
        name: The name of the program.
    """
    labels = []
    vulnerable = []
    for version, label in programs:
        if not version:
            continue
        labels.append(label)
        names = list(_list_holes(version, table))
        if names:
            vulnerable.append(f"{label} by its version has {list_words(names)}")

    if not labels:
        return none(f"no {name} says its version")
    return judge(vulnerable, "", list_words(labels), warn)


def _list_holes(version: model.Version, table: tuple[Hole, ...]) -> Iterator[str]:
    """Yield the CVE numbers of the vulnerabilities of a version."""
    for hole in table:
        if hole.in_version(version):
            yield from hole.names


def check_holes_runc(node: Node) -> Verdict:
    programs = [program for path, program in node.runc.items() if path.endswith("/runc")]
    return _judge_holes(programs, RUNC_HOLES, "runc")


def check_holes_containerd(node: Node) -> Verdict:
    programs = [(process.version, process.label) for process in _select_containerds(node)]
    if not programs:
        # In a pod no program can be asked; engines say their version.
        programs = [(exam.version or (), exam.label) for exam in node.engines if exam.is_containerd]
    return _judge_holes(dict.fromkeys(programs), CONTAINERD_HOLES, "containerd")


def _toolkit_says_version(node: Node) -> bool:
    return any(toolkit.ctk or toolkit.cli for toolkit in node.toolkits)


@given(_toolkit_says_version, "no toolkit says its version")
def check_holes_toolkit(node: Node) -> Verdict:
    problems: list[str] = []
    for toolkit in node.toolkits:
        lines = advise(toolkit.ctk or toolkit.cli or None)
        for line in lines:
            problems.append(f"{toolkit.directory}: {line}")
    return judge(problems, "", "none known", warn)
