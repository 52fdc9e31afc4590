"""Checks of the runtimes that engines serve: whether NVIDIA's are there, and are as they have to be."""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.doctor.engines import cgroups_of, each_engine, options_of
from installer.decide.doctor.facts import Node, RunningEngine
from installer.decide.doctor.model import Check, Verdict, bad, none, warn
from installer.decide.engines.model import is_ours

GROUP: Final = "Runtimes"
PACKAGED: Final = frozenset({PurePosixPath("/usr/bin"), PurePosixPath("/usr/local/bin")})


def served(node: Node) -> Verdict:
    """Judge whether an engine serves a runtime of NVIDIA's, where a toolkit is there for it."""
    if node.by_cdi is not None:
        return none("no runtime is asked for: containers get their GPUs by CDI alone")
    if not node.toolkits:
        return none("no toolkit of NVIDIA's on the node")

    def absent(engine: RunningEngine) -> str:
        if engine.serving is None or not engine.serving.ready:
            return ""
        if any(is_ours(binary) for binary in engine.serving.binaries.values()):
            return ""
        return f"serves {', '.join(sorted(engine.serving.handlers)) or 'nothing'}"

    serving = [engine for engine in node.engines if engine.serving is not None]
    # With a package, --gpus and CDI go without a runtime; what a pod installs is for engines to serve.
    for_engines = any(toolkit.directory not in PACKAGED for toolkit in node.toolkits)
    level = bad if for_engines and all(absent(engine) for engine in serving) else warn
    return each_engine(node, absent, "a runtime of NVIDIA's in each", level)


def programs(node: Node) -> Verdict:
    """Judge whether what the engines' runtimes start is there."""

    def gone(engine: RunningEngine) -> str:
        binaries = engine.serving.binaries if engine.serving else {}
        lost = [
            f"{name} ({path})"
            for name, path in sorted(binaries.items())
            if path.startswith("/") and path not in node.programs
        ]
        return f"no program for {', '.join(lost)}" if lost else ""

    return each_engine(node, gone, "all there")


def _ours(engine: RunningEngine) -> list[str]:
    serving = engine.serving.binaries if engine.serving else {}
    return [name for name, binary in serving.items() if is_ours(binary)]


def options(node: Node) -> Verdict:
    """Judge whether NVIDIA's runtimes use the cgroup driver of the runtime that they wrap."""

    def differ(engine: RunningEngine) -> str:
        if not engine.is_containerd or not _ours(engine) or not options_of(engine, "runc"):
            return ""
        wanted = cgroups_of(engine, "runc")
        wrong = [name for name in _ours(engine) if cgroups_of(engine, name) != wanted]
        return f"runc uses {wanted}, {', '.join(sorted(wrong))} not" if wrong else ""

    return each_engine(node, differ, "as the runtime that they wrap")


def types(node: Node) -> Verdict:
    """Judge whether each runtime of NVIDIA's has a type, without which containerd does not start it."""

    def untyped(engine: RunningEngine) -> str:
        if not engine.is_containerd or engine.serving is None:
            return ""
        tables = {name: engine.serving.handlers[name].table for name in _ours(engine)}
        lost = [
            name
            for name, table in tables.items()
            if not (table.get("runtimeType") or table.get("runtime_type"))
        ]
        return f"{', '.join(sorted(lost))} without runtime_type" if lost else ""

    return each_engine(node, untyped, "all have one")


def twice(node: Node) -> Verdict:
    """Judge whether a runtime's option is there twice, spelled differently."""

    def doubled(engine: RunningEngine) -> str:
        for path, tree in engine.trees.items():
            if found := _doubled(tree):
                return f"{found} in {path}"
        return ""

    return each_engine(node, doubled, "no option twice")


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


CHECKS: Final = (
    Check(
        "runtime-served",
        GROUP,
        "the runtimes that each engine serves, asked of the engine",
        'none is NVIDIA\'s although a toolkit is there: `no runtime for "nvidia" is configured`; a warning'
        " where another engine serves one, or the toolkit is a package's",
        "`toolkit-installer install`",
        served,
        seen=("NVIDIA/gpu-operator#413", "NVIDIA/gpu-operator#1651"),
    ),
    Check(
        "runtime-programs",
        GROUP,
        "the program of each runtime that an engine serves",
        "it is not there: no container can be started, and no running one removed",
        "install what the program belongs to again, or take the runtime out of the config",
        programs,
    ),
    Check(
        "runtime-options",
        GROUP,
        "SystemdCgroup of NVIDIA's runtimes and of runc in containerd",
        "they differ: `expected cgroupsPath to be of format`",
        "give NVIDIA's runtimes the options of runc, as `toolkit-installer install` does",
        options,
        seen=("kubernetes-sigs/kubespray#8122",),
    ),
    Check(
        "runtime-type",
        GROUP,
        "runtime_type of NVIDIA's runtimes in containerd",
        "it is absent: `container.Runtime.Name must be set`",
        'add `runtime_type = "io.containerd.runc.v2"`, or run `toolkit-installer install`',
        types,
        seen=("NVIDIA/nvidia-container-toolkit#1956",),
    ),
    Check(
        "option-twice",
        GROUP,
        "options of runtimes in the engines' configs",
        "one stands there twice in other case (BinaryName, binaryName): GPU pods run without a GPU",
        "keep one of them",
        twice,
        seen=("NVIDIA/gpu-operator#1374", "kubernetes-sigs/kubespray#12170"),
    ),
)
