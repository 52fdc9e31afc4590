"""Checks of the engines: what they have in force, would start again with, and start containers by."""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

from installer.engines import ENGINES
from installer.model.engine_spec import Api, is_ours
from installer.report.doctor.model import EngineExam, Judge, Node
from installer.report.doctor.verdict import Level, Verdict, bad, listed, none, ok, warn

AGAIN: Final = "/auto-restart/"
UNITS: Final = frozenset(unit for each in ENGINES.values() for unit in (each.unit, *each.units))
NO_ENGINE: Final = none("no engine runs")
UNSEEN: Final = none("no engine is seen: the host's processes are not in view")


def each_engine(
    node: Node, wrong: Callable[[EngineExam], str], fine: str, level: Callable[[str], Verdict] = bad
) -> Verdict:
    """Return a verdict on all engines: ``wrong`` says what is wrong with one, "" where nothing is."""
    if not node.engines:
        return NO_ENGINE if node.sees_host else UNSEEN
    found = [f"{exam.name}: {said}" for exam in node.engines if (said := wrong(exam))]
    return level(listed(found)) if found else ok(fine)


def of_each(wrong: Callable[[EngineExam], str], fine: str, level: Callable[[str], Verdict] = bad) -> Judge:
    """Return a check that judges engine by engine."""
    return lambda node: each_engine(node, wrong, fine, level)


def options_of(exam: EngineExam, name: str) -> dict[str, object]:
    """Return the options of a runtime, by their names in lower case."""
    handler = exam.serving.handlers.get(name) if exam.serving else None
    options = handler.table.get("options") if handler else None
    return {key.lower(): value for key, value in options.items()} if isinstance(options, dict) else {}


def cgroups_of(exam: EngineExam, name: str) -> str:
    """Return the cgroup driver that a runtime of containerd uses."""
    return "systemd" if options_of(exam, name).get("systemdcgroup") else "cgroupfs"


def answers(node: Node) -> Verdict:
    """Judge whether each engine answers."""

    def silence(exam: EngineExam) -> str:
        engine = exam.engine
        return engine.silence if engine.serving is None and not (engine.disabled or engine.failed) else ""

    return each_engine(node, silence, listed([exam.label for exam in node.engines]))


def ready(exam: EngineExam) -> str:
    """Return why an engine is not ready: its CRI has not loaded, or it says so itself."""
    if exam.engine.failed:
        return exam.engine.silence
    return "it calls itself not ready" if exam.serving and not exam.serving.ready else ""


def unit(node: Node) -> Verdict:
    """Judge whether systemd takes each engine for healthy."""
    known = [exam for exam in node.engines if exam.unit_state]
    running = {exam.engine.unit for exam in known}
    why = node.system.refused
    down = [
        f"{unit} {f'ends again and again ({state})' if AGAIN in state else f'is {state}'}"
        f"{f': {why[unit]}' if unit in why else ''}, see journalctl -u {unit}"
        for unit, state in node.system.units.items()
        if unit in UNITS - running and (AGAIN in state or state.startswith("failed"))
    ]
    if not known and not down:
        return none("systemd does not tell, or no engine runs as a unit")
    wrong = [
        f"{each.engine.unit} is {each.unit_state}"
        for each in known
        if not each.unit_state.startswith("active")
    ]
    wrong += down
    return bad(listed(wrong)) if wrong else ok(listed([f"{each.engine.unit} is active" for each in known]))


def accepted(exam: EngineExam) -> str:
    """Return why an engine would not start with the configs that lie there now."""
    if exam.unreadable:
        return exam.unreadable
    # A containerd that serves Docker has CRI switched off on purpose.
    return exam.told.fatal if exam.told and not exam.engine.disabled else ""


def in_force(exam: EngineExam) -> str:
    """Return what an engine serves otherwise than its configs say, which the next restart would bring."""
    if exam.told is None or exam.serving is None or exam.told.broken:
        return ""
    told, serving = exam.told.handlers, exam.serving.handlers
    absent = sorted(set(told) - set(serving))
    # dockerd adds runtimes of its own, and keeps removed ones until it is restarted.
    extra = sorted(name for name in set(serving) - set(told) if is_ours(serving[name].binary))
    if absent:
        return f"{', '.join(absent)} in {exam.engine.config}, but not served"
    if extra:
        return f"{', '.join(extra)} served, but not in {exam.engine.config} any more"
    return ""


def default(node: Node) -> Verdict:
    """Judge whether the default runtime of each engine is defined."""

    def undefined(exam: EngineExam) -> str:
        if exam.told and exam.told.undefined:
            return f"its config makes {exam.told.undefined} the default, and nobody defines it"
        serving = exam.serving
        if serving and serving.default and serving.handlers and serving.default not in serving.handlers:
            return f"its default {serving.default} is not served"
        return ""

    return each_engine(node, undefined, listed([_default(exam) for exam in node.engines]))


def _default(exam: EngineExam) -> str:
    return f"{exam.name}: {(exam.serving and exam.serving.default) or 'unknown'}"


def kubelet(node: Node) -> Verdict:
    """Judge whether kubelet and engine use one cgroup driver."""
    if not node.system.kubelet_cgroups:
        return none("no kubelet that says its cgroup driver")

    def other(exam: EngineExam) -> str:
        found = exam.cgroup_driver
        if exam.is_containerd and exam.serving and options_of(exam, exam.serving.default):
            found = cgroups_of(exam, exam.serving.default)
        return f"uses {found}" if found and found != node.system.kubelet_cgroups else ""

    verdict = each_engine(node, other, f"all use {node.system.kubelet_cgroups}")
    if verdict.level is Level.BAD:
        return bad(f"the kubelet uses {node.system.kubelet_cgroups}, {verdict.found}")
    return verdict


def schema(exam: EngineExam) -> str:
    """Return which files of containerd are not of the schema of its root file."""
    if not exam.is_containerd:
        return ""
    versions = {path: tree["version"] for path, tree in exam.trees.items() if "version" in tree}
    root = versions.get(exam.engine.config)
    other = [f"{path} ({value})" for path, value in versions.items() if value != root]
    return f"{exam.engine.config} is of version {root}, {listed(other)}" if other else ""


def hook(node: Node) -> Verdict:
    """Judge whether `docker --gpus` finds NVIDIA's hook."""
    docker = next((each for each in node.engines if ENGINES[each.name].api is Api.DOCKER), None)
    if docker is None or docker.finds_hook is None or not node.driver.loaded:
        return none("no dockerd whose PATH can be seen, or no driver")
    if node.by_cdi is not None:
        return none("containers get their GPUs by CDI alone: --device nvidia.com/gpu=all")
    if docker.finds_hook:
        return ok("nvidia-container-runtime-hook is in the PATH of dockerd")
    return warn(
        "no nvidia-container-runtime-hook in the PATH of dockerd: `--gpus` needs it, the runtime does not"
    )


def live_restore(node: Node) -> Verdict:
    """Judge whether containers outlive a restart of dockerd."""
    docker = next((exam for exam in node.engines if exam.live_restore is not None), None)
    if docker is None:
        return none("no dockerd answers")
    return ok("on") if docker.live_restore else warn("off: a restart of dockerd stops all containers")


PACKAGED: Final = frozenset({PurePosixPath("/usr/bin"), PurePosixPath("/usr/local/bin")})


def served(node: Node) -> Verdict:
    """Judge whether an engine serves a runtime of NVIDIA's, where a toolkit is there for it."""
    if node.by_cdi is not None:
        return none("no runtime is asked for: containers get their GPUs by CDI alone")
    if not node.toolkits:
        return none("no toolkit of NVIDIA's on the node")

    def absent(exam: EngineExam) -> str:
        if exam.serving is None or not exam.serving.ready:
            return ""
        if any(is_ours(binary) for binary in exam.serving.binaries.values()):
            return ""
        return f"serves {', '.join(sorted(exam.serving.handlers)) or 'nothing'}"

    serving = [exam for exam in node.engines if exam.serving is not None]
    # With a package, --gpus and CDI go without a runtime; what a pod installs is for engines to serve.
    for_engines = any(toolkit.directory not in PACKAGED for toolkit in node.toolkits)
    level = bad if for_engines and all(absent(exam) for exam in serving) else warn
    return each_engine(node, absent, "a runtime of NVIDIA's in each", level)


def programs(node: Node) -> Verdict:
    """Judge whether what the engines' runtimes start is there."""

    def gone(exam: EngineExam) -> str:
        lost = [
            f"{name} ({path})"
            for name, path in sorted(exam.binaries.items())
            if path.startswith("/") and path not in node.programs
        ]
        return f"no program for {', '.join(lost)}" if lost else ""

    return each_engine(node, gone, "all there")


def _ours(exam: EngineExam) -> list[str]:
    return [name for name, binary in exam.binaries.items() if is_ours(binary)]


def options(exam: EngineExam) -> str:
    """Return which runtimes of NVIDIA's use another cgroup driver than the runtime that they wrap."""
    if not exam.is_containerd or not _ours(exam) or not options_of(exam, "runc"):
        return ""
    wanted = cgroups_of(exam, "runc")
    wrong = [name for name in _ours(exam) if cgroups_of(exam, name) != wanted]
    return f"runc uses {wanted}, {', '.join(sorted(wrong))} not" if wrong else ""


def types(exam: EngineExam) -> str:
    """Return which runtimes of NVIDIA's have no type, without which containerd does not start them."""
    if not exam.is_containerd or exam.serving is None:
        return ""
    tables = {name: exam.serving.handlers[name].table for name in _ours(exam)}
    lost = [
        name for name, table in tables.items() if not (table.get("runtimeType") or table.get("runtime_type"))
    ]
    return f"{', '.join(sorted(lost))} without runtime_type" if lost else ""


def twice(exam: EngineExam) -> str:
    """Return which option of a runtime is there twice, spelled differently."""
    for path, tree in exam.trees.items():
        if found := _doubled(tree):
            return f"{found} in {path}"
    return ""


def _doubled(tree: object) -> str:
    """Return a key below a table of options that stands there in two spellings."""
    if not isinstance(tree, dict):
        return ""
    for name, value in tree.items():
        if name == "options" and isinstance(value, dict):
            lower = [key.lower() for key in value]
            found = [key for key in value if lower.count(key.lower()) > 1]
            if found:
                return " and ".join(found)
        if found_below := _doubled(value):
            return found_below
    return ""


JUDGES: Final[Mapping[str, Judge]] = {
    "engine-answers": answers,
    "engine-ready": of_each(ready, "ready"),
    "engine-unit": unit,
    "engine-kind": of_each(lambda exam: exam.engine.another, "the node's own", warn),
    "config-accepted": of_each(accepted, "each starts with the configs it has"),
    "config-in-force": of_each(in_force, "what configs say is served"),
    "default-runtime": default,
    "cgroup-driver": kubelet,
    "config-schema": of_each(schema, "of one schema"),
    "docker-hook": hook,
    "live-restore": live_restore,
    "runtime-served": served,
    "runtime-programs": programs,
    "runtime-options": of_each(options, "as the runtime that they wrap"),
    "runtime-type": of_each(types, "all have one"),
    "option-twice": of_each(twice, "no option twice"),
}
