"""Checks of the engines: what they are, what they have in force, and whether they would start again."""

from collections.abc import Callable
from typing import Final

from installer.decide.doctor.facts import Node, RunningEngine
from installer.decide.doctor.model import Check, Level, Verdict, bad, listed, none, ok, warn
from installer.decide.engines import ENGINES
from installer.decide.engines.model import is_ours
from installer.decide.engines.row import Api

GROUP: Final = "Engines"
AGAIN: Final = "/auto-restart/"
UNITS: Final = frozenset(unit for each in ENGINES.values() for unit in (each.unit, *each.units))
NO_ENGINE: Final = none("no engine runs")
UNSEEN: Final = none("no engine is seen: the host's processes are not in view")


def each_engine(
    node: Node, wrong: Callable[[RunningEngine], str], fine: str, level: Callable[[str], Verdict] = bad
) -> Verdict:
    """Return a verdict on all engines: ``wrong`` says what is wrong with one, "" where nothing is."""
    if not node.engines:
        return NO_ENGINE if node.sees_host else UNSEEN
    found = [f"{engine.name}: {said}" for engine in node.engines if (said := wrong(engine))]
    return level(listed(found)) if found else ok(fine)


def options_of(engine: RunningEngine, name: str) -> dict[str, object]:
    """Return the options of a runtime, by their names in lower case."""
    handler = engine.serving.handlers.get(name) if engine.serving else None
    options = handler.table.get("options") if handler else None
    return {key.lower(): value for key, value in options.items()} if isinstance(options, dict) else {}


def cgroups_of(engine: RunningEngine, name: str) -> str:
    """Return the cgroup driver that a runtime of containerd uses."""
    return "systemd" if options_of(engine, name).get("systemdcgroup") else "cgroupfs"


def answers(node: Node) -> Verdict:
    """Judge whether each engine answers."""

    def silence(engine: RunningEngine) -> str:
        return engine.silence if engine.serving is None and not engine.disabled and not engine.failed else ""

    said = [f"{engine.name} {engine.said}".strip() for engine in node.engines]
    return each_engine(node, silence, listed(said))


def ready(node: Node) -> Verdict:
    """Judge whether each engine calls itself ready, and CRI has loaded."""

    def not_ready(engine: RunningEngine) -> str:
        if engine.failed:
            return engine.silence
        return "it calls itself not ready" if engine.serving and not engine.serving.ready else ""

    return each_engine(node, not_ready, "ready")


def unit(node: Node) -> Verdict:
    """Judge whether systemd takes each engine for healthy."""
    known = [engine for engine in node.engines if engine.unit_state]
    running = {engine.unit for engine in known}
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
        f"{each.unit} is {each.unit_state}" for each in known if not each.unit_state.startswith("active")
    ]
    wrong += down
    return bad(listed(wrong)) if wrong else ok(listed([f"{each.unit} is active" for each in known]))


def kind(node: Node) -> Verdict:
    """Judge whether it is the node's own Docker that answers."""
    return each_engine(node, lambda engine: engine.another, "the node's own", warn)


def accepted(node: Node) -> Verdict:
    """Judge whether each engine would start with the configs that lie there now."""

    def refused(engine: RunningEngine) -> str:
        if engine.unreadable:
            return engine.unreadable
        # A containerd that serves Docker has CRI switched off on purpose.
        return engine.told.fatal if engine.told and not engine.disabled else ""

    return each_engine(node, refused, "each starts with the configs it has")


def in_force(node: Node) -> Verdict:
    """Judge whether each engine serves what its configs say, which the next restart would bring."""

    def differs(engine: RunningEngine) -> str:
        if engine.told is None or engine.serving is None or engine.told.broken:
            return ""
        told, serving = engine.told.handlers, engine.serving.handlers
        absent = sorted(set(told) - set(serving))
        # dockerd adds runtimes of its own, and keeps removed ones until it is restarted.
        extra = sorted(name for name in set(serving) - set(told) if is_ours(serving[name].binary))
        if absent:
            return f"{', '.join(absent)} in {engine.config}, but not served"
        if extra:
            return f"{', '.join(extra)} served, but not in {engine.config} any more"
        return ""

    return each_engine(node, differs, "what configs say is served")


def default(node: Node) -> Verdict:
    """Judge whether the default runtime of each engine is defined."""

    def undefined(engine: RunningEngine) -> str:
        if engine.told and engine.told.undefined:
            return f"its config makes {engine.told.undefined} the default, and nobody defines it"
        serving = engine.serving
        if serving and serving.default and serving.handlers and serving.default not in serving.handlers:
            return f"its default {serving.default} is not served"
        return ""

    return each_engine(node, undefined, listed([_default(engine) for engine in node.engines]))


def _default(engine: RunningEngine) -> str:
    return f"{engine.name}: {(engine.serving and engine.serving.default) or 'unknown'}"


def kubelet(node: Node) -> Verdict:
    """Judge whether kubelet and engine use one cgroup driver."""
    if not node.system.kubelet_cgroups:
        return none("no kubelet that says its cgroup driver")

    def other(engine: RunningEngine) -> str:
        found = engine.cgroup_driver
        if engine.is_containerd and engine.serving and options_of(engine, engine.serving.default):
            found = cgroups_of(engine, engine.serving.default)
        return f"uses {found}" if found and found != node.system.kubelet_cgroups else ""

    verdict = each_engine(node, other, f"all use {node.system.kubelet_cgroups}")
    if verdict.level is Level.BAD:
        return bad(f"the kubelet uses {node.system.kubelet_cgroups}, {verdict.found}")
    return verdict


def schema(node: Node) -> Verdict:
    """Judge whether the files that containerd reads are of one schema."""

    def mixed(engine: RunningEngine) -> str:
        if not engine.is_containerd:
            return ""
        versions = {path: tree["version"] for path, tree in engine.trees.items() if "version" in tree}
        root = versions.get(engine.config)
        other = [f"{path} ({value})" for path, value in versions.items() if value != root]
        return f"{engine.config} is of version {root}, {listed(other)}" if other else ""

    return each_engine(node, mixed, "of one schema")


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
    docker = next((engine for engine in node.engines if engine.live_restore is not None), None)
    if docker is None:
        return none("no dockerd answers")
    return ok("on") if docker.live_restore else warn("off: a restart of dockerd stops all containers")


CHECKS: Final = (
    Check(
        "engine-answers",
        GROUP,
        "the sockets of the engines whose processes run",
        "one listens and gives no answer that can be used",
        "see the engine's log: `journalctl -u docker`, `-u containerd`, `-u crio`",
        answers,
    ),
    Check(
        "engine-ready",
        GROUP,
        "CRI's own word, and the plugins of containerd",
        "CRI has not loaded, or says that it is not ready: `unknown service runtime.v1.RuntimeService`",
        "correct what it names in the engine's config, then restart the engine",
        ready,
        seen=("rancher/rke2#822",),
    ),
    Check(
        "engine-unit",
        GROUP,
        "the state of the engines' units",
        "a unit is not active although its engine answers, has failed, or is started again and again",
        "`systemctl status` and `journalctl -u` of the unit; start the engine through it",
        unit,
    ),
    Check(
        "engine-kind",
        GROUP,
        "who answers Docker's API",
        "a warning where it is Podman, a rootless dockerd, or that of the snap",
        "those take GPUs by CDI: `--device nvidia.com/gpu=all`",
        kind,
        Level.WARN,
        ("NVIDIA/nvidia-docker#1637",),
    ),
    Check(
        "config-accepted",
        GROUP,
        "the configs on the disk, read by the engine's own program",
        "it would not start with them: the next restart leaves the node without containers",
        "correct the file before anybody restarts the engine",
        accepted,
        seen=("NVIDIA/aicr#1688",),
    ),
    Check(
        "config-in-force",
        GROUP,
        "the runtimes of configs, and those that the engine serves",
        "they differ: somebody rewrote a config, or nobody reloaded the engine",
        "`toolkit-installer install` (or `reconcile` while `run` waits); then find who rewrites the file",
        in_force,
        seen=("NVIDIA/gpu-operator#1651",),
    ),
    Check(
        "default-runtime",
        GROUP,
        "the default runtime of configs, and that in force",
        "nobody defines it: `specified default runtime does not exist`",
        "define it, or name another default",
        default,
        seen=("NVIDIA/nvidia-container-toolkit#150",),
    ),
    Check(
        "cgroup-driver",
        GROUP,
        "the kubelet's flags and config, the engine's default runtime, Docker's cgroup driver",
        "kubelet and engine use different ones",
        "set `cgroupDriver` of the kubelet and `SystemdCgroup` of the engine to the same",
        kubelet,
        seen=("kubernetes-sigs/kubespray#8122",),
    ),
    Check(
        "config-schema",
        GROUP,
        "`version` of containerd's root file and of the files that it imports",
        "they differ: 2.3 does not start, earlier 2.x loses settings and tells nobody",
        "give imported files no version, or that of the root file",
        schema,
        seen=("NVIDIA/aicr#1688",),
    ),
    Check(
        "docker-hook",
        GROUP,
        "nvidia-container-runtime-hook in the PATH of the running dockerd",
        'a warning where it is not there: `could not select device driver "" with capabilities: [[gpu]]`',
        "use `--runtime=nvidia`; or install the hook, or a CDI specification, and restart dockerd",
        hook,
        Level.WARN,
        ("NVIDIA/nvidia-container-runtime#190",),
    ),
    Check(
        "live-restore",
        GROUP,
        "LiveRestoreEnabled, as dockerd says",
        "a warning where it is off",
        '`"live-restore": true` in daemon.json, then `systemctl reload docker`',
        live_restore,
        Level.WARN,
        ("moby/moby#27057",),
    ),
)
