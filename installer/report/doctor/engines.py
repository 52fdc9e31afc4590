"""Checks of the engines: what they have in force, would start again with, and start containers by."""

from collections.abc import Callable
from typing import Final

from installer.engines import ENGINES
from installer.model.engine_spec import Api, is_ours
from installer.report.doctor.model import PACKAGED, EngineExam, Judge, Node, given
from installer.report.doctor.verdict import Level, Verdict, bad, judge, list_words, none, ok, warn

ENDS_AGAIN: Final = "/auto-restart/"
UNITS: Final = frozenset(unit for each in ENGINES.values() for unit in (each.unit, *each.units))
NO_ENGINE: Final = none("no engine runs")
UNSEEN: Final = none("no engine is seen: the host's processes are not in view")
Wrong = Callable[[EngineExam], str]


def judge_engines(node: Node, wrong: Wrong, fine: str, level: Callable[[str], Verdict] = bad) -> Verdict:
    """Return a verdict on all engines: ``wrong`` says what is wrong with one, "" where nothing is."""
    if not node.engines:
        return NO_ENGINE if node.sees_host else UNSEEN
    return judge([f"{exam.name}: {flaw}" for exam in node.engines if (flaw := wrong(exam))], "", fine, level)


def by_engine(
    fine: str | Callable[[Node], str], level: Callable[[str], Verdict] = bad
) -> Callable[[Wrong], Judge]:
    """Make a check of the node out of one that judges an engine."""

    def make(wrong: Wrong) -> Judge:
        return lambda node: judge_engines(node, wrong, fine if isinstance(fine, str) else fine(node), level)

    return make


def _read_cgroup_driver(exam: EngineExam, name: str) -> str:
    """Return the cgroup driver that a runtime of containerd uses; "" where its options do not tell."""
    handler = exam.serving.handlers.get(name) if exam.serving and exam.is_containerd else None
    if handler is None or not handler.options:
        return ""
    return "systemd" if handler.options.get("systemdcgroup") else "cgroupfs"


@by_engine(lambda node: list_words([exam.label for exam in node.engines]))
def check_engine_answers(exam: EngineExam) -> str:
    engine = exam.engine
    return engine.silence if engine.serving is None and not (engine.disabled or engine.failed) else ""


@by_engine("ready")
def check_engine_ready(exam: EngineExam) -> str:
    if exam.engine.failed:
        return exam.engine.silence
    return "it calls itself not ready" if exam.serving and not exam.serving.ready else ""


def check_engine_unit(node: Node) -> Verdict:
    states = {exam.engine.unit: exam.unit_state for exam in node.engines if exam.unit_state}
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


check_engine_kind: Final = by_engine("the node's own", warn)(lambda exam: exam.engine.another)
check_engine_below: Final = by_engine("nothing is missing")(
    lambda exam: exam.unable and f"cannot {exam.unable}"
)


@by_engine("each starts with the configs it has")
def check_config_accepted(exam: EngineExam) -> str:
    if exam.unreadable:
        return exam.unreadable
    # A containerd that serves Docker has CRI switched off on purpose.
    return exam.on_disk.fatal if exam.on_disk and not exam.engine.disabled else ""


@by_engine("what configs say is served")
def check_config_in_force(exam: EngineExam) -> str:
    if exam.on_disk is None or exam.serving is None or exam.on_disk.broken:
        return ""
    on_disk, serving = exam.on_disk.handlers, exam.serving.handlers
    if absent := sorted(set(on_disk) - set(serving)):
        return f"{', '.join(absent)} in {exam.engine.config}, but not served"
    # dockerd adds runtimes of its own, and keeps removed ones until it is restarted.
    extra = sorted(name for name in set(serving) - set(on_disk) if is_ours(serving[name].binary))
    return f"{', '.join(extra)} served, but not in {exam.engine.config} any more" if extra else ""


def _list_defaults(node: Node) -> str:
    defaults = [(exam.name, exam.serving and exam.serving.default) for exam in node.engines]
    return list_words([f"{name}: {default or 'unknown'}" for name, default in defaults])


@by_engine(_list_defaults)
def check_default_runtime(exam: EngineExam) -> str:
    if exam.on_disk and exam.on_disk.undefined:
        return f"its config makes {exam.on_disk.undefined} the default, and nobody defines it"
    serving = exam.serving
    undefined = serving and serving.handlers and serving.default not in {"", *serving.handlers}
    return f"its default {serving.default} is not served" if serving and undefined else ""


@given(lambda node: node.system.kubelet_cgroups, "no kubelet that says its cgroup driver")
def check_cgroup_driver(node: Node) -> Verdict:
    kubelet = node.system.kubelet_cgroups

    def other(exam: EngineExam) -> str:
        used = _read_cgroup_driver(exam, exam.serving.default if exam.serving else "") or exam.cgroup_driver
        return f"uses {used}" if used and used != kubelet else ""

    verdict = judge_engines(node, other, f"all use {kubelet}")
    return bad(f"the kubelet uses {kubelet}, {verdict.found}") if verdict.level is Level.BAD else verdict


@by_engine("of one schema")
def check_config_schema(exam: EngineExam) -> str:
    if not exam.is_containerd:
        return ""
    versions = {path: tree["version"] for path, tree in exam.trees.items() if "version" in tree}
    root = versions.get(exam.engine.config)
    other = [f"{path} ({value})" for path, value in versions.items() if value != root]
    return f"{exam.engine.config} is of version {root}, {list_words(other)}" if other else ""


def check_docker_hook(node: Node) -> Verdict:
    docker = next((each for each in node.engines if ENGINES[each.name].api is Api.DOCKER), None)
    if docker is None or docker.has_hook is None or not node.driver.loaded:
        return none("no dockerd whose PATH can be seen, or no driver")
    if node.by_cdi is not None:
        return none("containers get their GPUs by CDI alone: --device nvidia.com/gpu=all")
    if docker.has_hook:
        return ok("nvidia-container-runtime-hook is in the PATH of dockerd")
    return warn(
        "no nvidia-container-runtime-hook in the PATH of dockerd: `--gpus` needs it, the runtime does not"
    )


@given(lambda node: any(exam.live_restore is not None for exam in node.engines), "no dockerd answers")
def check_live_restore(node: Node) -> Verdict:
    on = next(exam.live_restore for exam in node.engines if exam.live_restore is not None)
    return ok("on") if on else warn("off: a restart of dockerd stops all containers")


@given(lambda node: node.by_cdi is None, "no runtime is asked for: containers get their GPUs by CDI alone")
@given(lambda node: node.toolkits, "no toolkit of NVIDIA's on the node")
def check_runtime_served(node: Node) -> Verdict:
    def absent(exam: EngineExam) -> str:
        if exam.serving is None or not exam.serving.ready or exam.nvidia_runtimes:
            return ""
        return f"serves {', '.join(sorted(exam.serving.handlers)) or 'nothing'}"

    serving = [exam for exam in node.engines if exam.serving is not None]
    # With a package, --gpus and CDI go without a runtime; what a pod installs is for engines to serve.
    for_engines = any(toolkit.directory not in PACKAGED for toolkit in node.toolkits)
    level = bad if for_engines and all(absent(exam) for exam in serving) else warn
    return judge_engines(node, absent, "a runtime of NVIDIA's in each", level)


def check_runtime_programs(node: Node) -> Verdict:
    def gone(exam: EngineExam) -> str:
        paths = [(name, path) for name, path in sorted(exam.binaries.items()) if path.startswith("/")]
        lost = [f"{name} ({path})" for name, path in paths if path not in node.programs]
        return f"no program for {', '.join(lost)}" if lost else ""

    return judge_engines(node, gone, "all there")


@by_engine("as the runtime that they wrap")
def check_runtime_options(exam: EngineExam) -> str:
    wanted, unset = _read_cgroup_driver(exam, "runc"), "cgroupfs"
    used = {name: _read_cgroup_driver(exam, name) or unset for name in exam.nvidia_runtimes if wanted}
    wrong = sorted(name for name in used if used[name] != wanted)
    return f"runc uses {wanted}, {', '.join(wrong)} not" if wrong else ""


@by_engine("all have one")
def check_runtime_type(exam: EngineExam) -> str:
    if not exam.is_containerd or exam.serving is None:
        return ""
    tables = {name: exam.serving.handlers[name].table for name in exam.nvidia_runtimes}
    lost = [
        name for name, table in tables.items() if not any(map(table.get, ("runtimeType", "runtime_type")))
    ]
    return f"{', '.join(sorted(lost))} without runtime_type" if lost else ""


@by_engine("no option twice")
def check_option_twice(exam: EngineExam) -> str:
    doubled = ((path, _find_doubled_key(tree)) for path, tree in exam.trees.items())
    return next((f"{keys} in {path}" for path, keys in doubled if keys), "")


def _find_doubled_key(tree: object) -> str:
    """Return a key below a table of options that stands there in two spellings."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if name == "options" and isinstance(value, dict):
            lower = [key.lower() for key in value]
            if doubled := [key for key in value if lower.count(key.lower()) > 1]:
                return " and ".join(doubled)
        if below := _find_doubled_key(value):
            return below
    return ""
