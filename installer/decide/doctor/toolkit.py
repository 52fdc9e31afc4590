"""Checks of NVIDIA's toolkit on the node, ours and any other."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.doctor.facts import Node, Toolkit
from installer.decide.doctor.model import Check, Level, Verdict, bad, dotted, listed, none, ok, warn
from installer.decide.engines.model import OUR_BINARIES

GROUP: Final = "Toolkit"
WITHOUT_CUDA: Final = (1, 1, 0)
WITH_CGROUP2: Final = (1, 8, 0)
CLI: Final = "nvidia-container-cli"
RUNTIME: Final = "nvidia-container-runtime"
NO_TOOLKIT: Final = none("no toolkit of NVIDIA's on the node")
SILENT: Final = none("nvidia-container-cli does not say its version")
NO_CONFIG: Final = none("no config.toml of a toolkit")
RUNNING: Final = ("active", "activating", "reloading")


def _value(toolkit: Toolkit, *key: str) -> object:
    """Return a value of config.toml, None where it is not there."""
    found: object = toolkit.config
    for part in key:
        found = found.get(part) if isinstance(found, dict) else None
    return found


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
        (each, value) for each in _configured(node) if isinstance(value := _value(each, CLI, "ldconfig"), str)
    ]
    if not paths:
        return NO_CONFIG
    for toolkit, value in paths:
        root = _value(toolkit, CLI, "root")
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
    off = [str(each.config_path) for each in _configured(node) if _value(each, CLI, "no-cgroups") is True]
    return bad(f"no-cgroups is true in {listed(off)}") if off else ok("false")


def hook_mode(node: Node) -> Verdict:
    """Judge whether `docker --gpus` works with the mode that is set."""
    if not _configured(node):
        return NO_CONFIG
    for each in _configured(node):
        mode = _value(each, RUNTIME, "mode")
        if mode == "csv" and not node.system.tegra:
            return bad(f'mode is "csv" in {each.config_path}, and this is no Tegra')
        skipped = _value(each, f"{RUNTIME}-hook", "skip-mode-detection")
        if mode in {"cdi", "csv"} and skipped is not True:
            return warn(f'mode is "{mode}" in {each.config_path}: `docker --gpus` is refused')
    return ok(listed([str(_value(each, RUNTIME, "mode") or "auto") for each in _configured(node)]))


def low_level(node: Node) -> Verdict:
    """Judge whether a runtime is there that NVIDIA's can hand over to, and is not NVIDIA's again."""
    if not _configured(node):
        return NO_CONFIG
    for each in _configured(node):
        words = [str(word) for word in _list(_value(each, RUNTIME, "runtimes"))]
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
    for engine in node.engines:
        for binary in engine.serving.binaries.values() if engine.serving else ():
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
        if isinstance(debug := _value(each, table, "debug"), str)
        and debug not in {"", "/dev/null"}
        and (table == CLI or _value(each, RUNTIME, "log-level") in {"debug", "trace"})
    ]
    return warn(f"at each start of a container something is written ({loud[0]})") if loud else ok("quiet")


def installation(node: Node) -> Verdict:
    """Judge whether what we installed is as we left it, in the words of ``status``, and its engines run."""
    if not node.held:
        return none("nothing of ours is installed")
    running = {engine.name for engine in node.engines}
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


CHECKS: Final = (
    Check(
        "libnvidia-container",
        GROUP,
        "the version that nvidia-container-cli says",
        "before 1.1.0 it calls cuInit: `initialization error: cuda error: unknown error`",
        "upgrade to 1.1.0 or later; until then a reboot helps for a time. With 1.1.0 or later the same words"
        " mean the driver or the hardware: see xid",
        needs_cuda,
        seen=("NVIDIA/libnvidia-container#103", "NVIDIA/nvidia-docker#1060"),
    ),
    Check(
        "cgroup2",
        GROUP,
        "the node's cgroups, and the version that nvidia-container-cli says",
        "cgroup v2 with a version before 1.8.0: `cgroup subsystem devices not found`",
        "upgrade the toolkit to 1.8.1 or later",
        cgroup2,
        seen=("NVIDIA/nvidia-docker#1447",),
    ),
    Check(
        "toolkit-versions",
        GROUP,
        "what nvidia-container-cli says of itself and its library, and nvidia-ctk",
        "a warning where they differ: half an upgrade",
        "install all packages of the toolkit in one version",
        one_toolkit,
        Level.WARN,
    ),
    Check(
        "ldconfig",
        GROUP,
        "`nvidia-container-cli.ldconfig` of config.toml",
        "it does not begin with @, or the program is not there: `ldcache error`",
        'set it to "@/sbin/ldconfig", on Ubuntu to "@/sbin/ldconfig.real"',
        ldconfig,
        seen=("NVIDIA/nvidia-docker#587",),
    ),
    Check(
        "no-cgroups",
        GROUP,
        "`nvidia-container-cli.no-cgroups` of config.toml",
        "it is true, as rootless engines need it: `Failed to initialize NVML: Unknown Error` at once",
        "set `no-cgroups = false`",
        no_cgroups,
        seen=("NVIDIA/nvidia-container-toolkit#580",),
    ),
    Check(
        "mode",
        GROUP,
        "`nvidia-container-runtime.mode` of config.toml",
        "it is csv on what is no Tegra; a warning where it keeps `docker --gpus` from working",
        'set `mode = "auto"`; or use `--runtime=nvidia` or `--device nvidia.com/gpu=all`',
        hook_mode,
        seen=("dstackai/dstack#2306",),
    ),
    Check(
        "low-level-runtime",
        GROUP,
        "`nvidia-container-runtime.runtimes` of config.toml",
        "none of them is there, or one is NVIDIA's own: `no runtime binary found from candidate list`",
        "name runc or crun there, with the whole path",
        low_level,
    ),
    Check(
        "toolkits",
        GROUP,
        "toolkits on the node, and which of them the engines start",
        "a warning where there are several",
        "keep one: remove the package, or `toolkit-installer uninstall`",
        several,
        Level.WARN,
        ("NVIDIA/nvidia-container-toolkit#982",),
    ),
    Check(
        "toolkit-log",
        GROUP,
        "`debug` and `log-level` of config.toml",
        "a warning where each start of a container is written to a file",
        'set `debug = "/dev/null"` and `log-level = "warning"`',
        log_level,
        Level.WARN,
        ("NVIDIA/nvidia-container-toolkit#511",),
    ),
    Check(
        "installation",
        GROUP,
        "what `toolkit-installer status` looks at, and whether the engines that are configured for it run",
        "something is not as it was installed, or such an engine does not run",
        "start the engine; of all else `toolkit-installer status` has the whole list, and `toolkit-installer"
        " install` puts it right",
        installation,
    ),
)
