"""The table of all flags with their environment variables, and the ``Options`` that they make."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from installer.engines import ENGINES
from installer.errors import UsageError
from installer.host.inodes import resolve_local
from installer.model.files import ROOT, RUN_DIR
from installer.model.nri import DEFAULT_SOCKET, Allowed, Identity, Nri
from installer.model.options import AUTO, Listen, Mode, Options, Places, ToolkitConfig, TurnOptions

PREFIX: Final = "TOOLKIT_INSTALLER_"
SHOW_SECRETS: Final = f"{PREFIX}SHOW_SECRETS"
PID_FILE: Final = RUN_DIR / "toolkit.pid"
ENVVAR_WHEN_UNPRIVILEGED: Final = "accept_nvidia_visible_devices_envvar_when_unprivileged"
AS_VOLUME_MOUNTS: Final = "accept_nvidia_visible_devices_as_volume_mounts"
DEFAULT_HOOK: Final = PurePosixPath("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json")
UNIX: Final = "unix:"
# Names are not looked up: a node has to come up without its name server.
ADDRESS: Final = re.compile(r"(?:((?:\d{1,3}\.){3}\d{1,3})|\[([0-9a-fA-F:]{2,45})\]):(\d{1,5})")
HIGHEST_PORT: Final = 65535
BY_DEFAULT: Final = Options()
# The groups of --help.
ENGINE: Final = "Engine"
TOOLKIT: Final = "Toolkit"
PATHS: Final = "Paths"
BEHAVIOUR: Final = "Behaviour"
MONITORING: Final = "Monitoring"
NRI: Final = "NRI"
CLUSTER: Final = "Cluster"
OUTPUT: Final = "Output"


class Flag(Struct, frozen=True):
    """A flag; the type of the default decides about its values.

    A flag with a tuple may be repeated, and its variable has values between commas. A flag with a bool has a
    form ``--no-`` as well.
    """

    usage: str  # the name, and the kind of value
    group: str
    help: str
    default: str | tuple[str, ...] | bool | float
    choices: tuple[str, ...] = ()
    plain: bool = False  # the value is the field of Options with the name of the flag

    @property
    def name(self) -> str:
        """The flag, with two dashes."""
        return self.usage.partition(" ")[0]

    @property
    def metavar(self) -> str:
        """The kind of value; "" for a switch and for a flag with choices."""
        return self.usage.partition(" ")[2]

    @property
    def field(self) -> str:
        """The name of the value in parsers."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable, which counts without the flag."""
        return PREFIX + self.field.upper()


def _plain(usage: str, group: str, help_text: str) -> Flag:
    """Return the flag of a field of Options, with the field's default and choices."""
    default = getattr(BY_DEFAULT, Flag(usage, group, help_text, "").field)
    choices: tuple[str, ...] = ()
    if isinstance(default, StrEnum):
        choices = tuple(map(str, type(default)))
    if isinstance(default, bool):
        return Flag(usage, group, help_text, default, choices, plain=True)
    return Flag(usage, group, help_text, str(default or ""), choices, plain=True)


def _convert(name: str, value: Any) -> Any:
    """Return the value of a plain flag in the type of the field of Options; None for the path ""."""
    default = getattr(BY_DEFAULT, name)
    if default is not None:
        return type(default)(value)
    return None if value == "" else PurePosixPath(value)


def _listen(text: str) -> Listen | None:
    """Return the socket or address of --metrics-listen; None for an empty text."""
    if not text:
        return None
    if text.startswith(UNIX):
        return Listen(PurePosixPath(text.removeprefix(UNIX)))
    match = ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[3]) <= HIGHEST_PORT:
        examples = "such as 127.0.0.1:9400 or [::1]:9400, or unix:/run/toolkit-installer.sock"
        remedy = f"give ADDRESS:PORT with an address in numbers, {examples}"
        raise UsageError(f"listen on {text!r}", remedy=remedy)
    ipv4, ipv6, port = match.groups()
    return Listen(None, ipv4 or ipv6, int(port))


FLAGS: Final = (
    Flag("--runtime", ENGINE, "Engine to configure; auto: all that run here.", (AUTO,), (AUTO, *ENGINES)),
    _plain("--mode", ENGINE, "How containers get GPUs: by our runtimes, by CDI, or by NRI."),
    _plain("--toolkit-source PATH", TOOLKIT, "Root of the toolkit; the host's own is used in place."),
    _plain("--install-dir PATH", PATHS, "Directory on the host in which toolkit/ is made."),
    _plain("--host-root PATH", PATHS, "Where this process finds the host's root."),
    Flag("--mount HOST=HERE", PATHS, "Another directory of the host, and where this process finds it.", ()),
    _plain("--driver-root PATH", TOOLKIT, "The driver's root on the host; auto: /run/nvidia/driver or /."),
    _plain("--runtime-name NAME", ENGINE, "Name of our runtime in the engine's config."),
    _plain("--set-as-default", ENGINE, "Make our runtime the engine's default."),
    Flag("--config [ENGINE=]PATH", PATHS, "The engine's config, as this process sees it.", ()),
    Flag("--drop-in-config [ENGINE=]PATH", PATHS, "Drop-in for our runtimes, as this process sees it.", ()),
    Flag("--socket [ENGINE=]PATH", PATHS, "The engine's socket, as this process sees it.", ()),
    Flag("--crio-hook", ENGINE, "Write CRI-O's OCI hook instead of runtimes.", default=False),
    _plain("--restart-mode", BEHAVIOUR, "When to reload or restart the engine: now, when idle, never."),
    Flag(
        "--accept-nvidia-visible-devices-envvar-when-unprivileged",
        TOOLKIT,
        "Let unprivileged containers choose GPUs by the variable NVIDIA_VISIBLE_DEVICES.",
        default=True,
    ),
    Flag(
        "--accept-nvidia-visible-devices-as-volume-mounts",
        TOOLKIT,
        "Let containers choose GPUs by volume mounts (NVIDIA's device plugin).",
        default=False,
    ),
    Flag("--pid-file PATH", PATHS, "Pidfile of run, as this process sees it.", str(PID_FILE)),
    Flag("--timeout SECONDS", BEHAVIOUR, "Seconds until an engine must serve what its config says.", 20.0),
    _plain("--on-exit", BEHAVIOUR, "What run does when stopped: uninstall, keep, or as the DaemonSet says."),
    _plain("--in-use", BEHAVIOUR, "What uninstall does while containers use our runtimes."),
    _plain("--drift", BEHAVIOUR, "What run does when the node no longer matches the install."),
    _plain("--accept-pending", BEHAVIOUR, "Let a restart apply others' changes that are not in force yet."),
    _plain("--retry", BEHAVIOUR, "Try a plan again although it failed before."),
    _plain("--adopt", BEHAVIOUR, "Let uninstall remove what NVIDIA's own installer left, too."),
    _plain("--metrics-textfile PATH", MONITORING, "File *.prom for node_exporter, in an existing directory."),
    _plain("--nfd-features PATH", MONITORING, "The host's file in features.d for Node Feature Discovery."),
    Flag("--metrics-listen WHERE", MONITORING, "Serve metrics: ADDRESS:PORT, or unix:PATH (*.sock).", ""),
    Flag("--nri", NRI, "Start the NRI plugin together with run; implied by --mode nri.", default=False),
    Flag("--nri-socket PATH", NRI, "The engine's NRI socket, as this process sees it.", str(DEFAULT_SOCKET)),
    Flag("--nri-allow NAMESPACE=VENDOR/CLASS", NRI, "Whose pods may request which CDI devices.", ()),
    Flag("--nri-name NAME", NRI, "Name of the NRI plugin.", Identity().name),
    Flag("--nri-index NUMBER", NRI, "Order of the NRI plugin among others, 0 to 99.", Identity().order),
    _plain("--daemonset NAME", CLUSTER, "This pod's DaemonSet, for --on-exit auto; else the pod's owner."),
    _plain("--node-name NAME", CLUSTER, "This pod's node in Kubernetes; else as the pod's token says."),
    Flag("--release NAME", CLUSTER, "Restart engines by turns among the nodes of this release.", ""),
    Flag(
        "--max-restarting NUMBER", CLUSTER, "Nodes that restart an engine at once, if no Lease says so.", ""
    ),
    Flag("--stop-after NUMBER", CLUSTER, "Failed nodes after which restarts stop, if no Lease says so.", ""),
    Flag("--canary SELECTOR", CLUSTER, "Labels of the nodes that restart first, if no Lease says so.", ""),
    Flag("--soak SECONDS", CLUSTER, "Seconds that a restarted engine must serve before the next turn.", 30.0),
    Flag("--log-format", OUTPUT, "How events are written to stderr.", "auto", ("auto", "json", "text")),
)


DEFAULTS: Final = {flag.field: flag.default for flag in FLAGS}


def _group_fields() -> dict[str, frozenset[str]]:
    """Return the fields of each group, the groups in the order of the table."""
    groups: dict[str, set[str]] = {}
    for flag in FLAGS:
        groups.setdefault(flag.group, set()).add(flag.field)
    return {group: frozenset(fields) for group, fields in groups.items()}


GROUPS: Final = _group_fields()
# The flags that count for ``run`` alone.
OF_RUN: Final = GROUPS[NRI] | GROUPS[CLUSTER] | {"on_exit", "drift", "metrics_listen"}


def options_from(values: Mapping[str, Any], given: frozenset[str]) -> Options:
    """Build the options of a command line.

    Args:
        values: the value of each flag, by ``Flag.field``.
        given: the fields that the command line or the environment sets.

    Raises:
        UsageError: the flags contradict each other, or make no sense.
    """
    engines = tuple(values["runtime"])
    mounts = _mounts(values["mount"])
    if "mount" in given:  # the mounts of a run beside this verb may have gone
        _refuse_missing_mounts(mounts)
    host_path = partial(_find_host_path, root=PurePosixPath(values["host_root"]), mounts=mounts)

    configs = _paths_by_engine("config", values["config"], engines)
    drop_ins = _paths_by_engine("drop-in-config", values["drop_in_config"], engines)
    sockets = _paths_by_engine("socket", values["socket"], engines)
    _refuse_paths(configs, drop_ins)

    converted = {flag.field: _convert(flag.field, values[flag.field]) for flag in FLAGS if flag.plain}
    toolkit = ToolkitConfig(
        accept_envvar_when_unprivileged=values[ENVVAR_WHEN_UNPRIVILEGED],
        envvar_by_host=ENVVAR_WHEN_UNPRIVILEGED not in given,
        accept_volume_mounts=values[AS_VOLUME_MOUNTS],
    )

    def host_path_of(paths: Mapping[str, PurePosixPath], engine: str) -> PurePosixPath | None:
        return host_path(paths[engine]) if engine in paths else None

    places = {}
    for engine in ENGINES:
        places[engine] = Places(
            config=host_path_of(configs, engine),
            drop_in=host_path_of(drop_ins, engine),
            socket=host_path_of(sockets, engine),
        )
    pid_file = PID_FILE
    if "pid_file" in given:
        pid_file = host_path(PurePosixPath(values["pid_file"]))
    options = Options(
        **converted,
        engines=tuple(dict.fromkeys(engines)),
        mounts=mounts,
        toolkit=toolkit,
        places=places,
        crio_hook=DEFAULT_HOOK if values["crio_hook"] else None,
        pid_file=pid_file,
        timeout_s=float(values["timeout"]),
        metrics_listen=_listen(values["metrics_listen"]),
        nri=_nri(values, given, host_path),
        turns=make_turns(values),
    )
    _refuse_modes(options, values, given)
    has_hooks = options.auto or any(ENGINES[name].hook_dir for name in options.engines)
    if options.crio_hook is not None and not has_hooks:
        remedy = "add --runtime crio, or leave it out"
        raise UsageError(f"use --crio-hook with {' and '.join(options.engines)}", remedy=remedy)
    return options


def _nri(
    values: Mapping[str, Any], given: frozenset[str], host_path: Callable[[PurePosixPath], PurePosixPath]
) -> Nri:
    """Build the options of the NRI plugin."""
    socket = DEFAULT_SOCKET
    if "nri_socket" in given:
        socket = host_path(PurePosixPath(values["nri_socket"]))
    identity = Identity.of(values["nri_name"], values["nri_index"])
    allowed = tuple(Allowed.of(text) for text in values["nri_allow"])
    return Nri(socket, identity, allowed, beside=values["nri"])


def make_turns(values: Mapping[str, Any]) -> TurnOptions:
    """Build the options of restarts by turns; the values are by ``Flag.field``.

    Raises:
        UsageError: a value makes no sense.
    """
    canary = values["canary"]
    if canary:
        from installer.fleet.turn_rules import split_selector

        try:
            tuple(split_selector(canary))
        except ValueError as error:
            remedy = "give labels such as gpu-pool=canary"
            raise UsageError(f"use {canary!r} as --canary ({error})", remedy=remedy) from error
    return TurnOptions(
        release=values["release"],
        at_most=_count("--max-restarting", values["max_restarting"]),
        stop_after=_count("--stop-after", values["stop_after"]),
        canary=canary,
        soak_s=float(values["soak"]),
    )


def _count(flag: str, text: str) -> int:
    """Return the number of a flag, 0 for a flag that is not given."""
    if not text:
        return 0
    from installer.fleet.leases import MOST

    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MOST:
        raise UsageError(f"use {text[:20]!r} as {flag}", remedy=f"give a number from 1 to {MOST}")
    return int(text)


def _refuse_paths(configs: Collection[str], drop_ins: Collection[str]) -> None:
    """Raise UsageError for a config that the engine writes itself, and for a drop-in that no engine reads."""
    for name in (*configs, *drop_ins):
        if ENGINES[name].built_in_runtime:
            raise UsageError(f"give {name} a config", remedy="leave it out: it writes its config itself")
    for name in drop_ins:
        if not ENGINES[name].drop_ins.takes_ours:
            problem = f"use --drop-in-config for {ENGINES[name].title}"
            raise UsageError(problem, remedy="use --config: it reads no other file")


def refuse_unused_paths(options: Options) -> None:
    """Raise UsageError for a config or a drop-in of an engine that is not configured.

    A socket counts for engines of an earlier install, too.
    """
    if options.auto:
        return
    for name, places in options.places.items():
        if name in options.engines:
            continue
        for flag, path in (("--config", places.config), ("--drop-in-config", places.drop_in)):
            if path is not None:
                problem = f"use {flag} {name}=PATH with {' and '.join(options.engines)}"
                raise UsageError(problem, remedy=f"add --runtime {name}, or leave it out")


def refuse_no_root(options: Options) -> None:
    """Raise UsageError for a directory that is no root of a host, such as one that is not mounted."""
    root = options.host_root
    try:
        names = {path.name for path in Path(root).iterdir()}
    except OSError:  # ``Host.under`` tells the reason
        return
    for host, _ in options.mounts:
        names.update(host.parts[1:2])
    if names.isdisjoint({"etc", "usr"}):
        problem = f"use --host-root {root} (it has neither etc nor usr)"
        raise UsageError(problem, remedy="name the directory where the host's root is mounted")


def refuse_mounted_toolkit(options: Options) -> None:
    """Raise UsageError for a mount on the toolkit itself, whose name becomes a link to a version."""
    toolkit = options.layout.toolkit
    for host, local in options.mounts:
        if host.is_relative_to(toolkit):
            problem = f"use --mount {host}={local} (an install puts a link at {toolkit})"
            raise UsageError(problem, remedy=f"mount {options.install_dir} or a directory above it")


def _refuse_modes(options: Options, values: Mapping[str, Any], given: frozenset[str]) -> None:
    """Raise UsageError for flags in conflict with the mode."""
    if options.mode.by_cdi:
        flags = options.needs_runtime
        if flags:
            them = "that" if len(flags) == 1 else "those"
            remedy = f"leave {them} out, or use --mode runtime"
            raise UsageError(f"give GPUs by CDI alone with {' and '.join(flags)}", remedy=remedy)
    if options.mode is Mode.NRI and "nri" in given and not values["nri"]:
        remedy = "leave out one of the two, or use --mode cdi: it has no plugin"
        raise UsageError("serve pods over NRI with --no-nri (mode nri is the NRI plugin)", remedy=remedy)


def _find_host_path(
    local: PurePosixPath, root: PurePosixPath, mounts: Sequence[tuple[PurePosixPath, PurePosixPath]]
) -> PurePosixPath:
    """Return the host's path of ``local``, a path as this process sees it.

    Args:
        local: the path.
        root: the host's root, as this process sees it.
        mounts: other directories of the host, each with the path at which this process sees it.

    Raises:
        UsageError: the path is relative, or outside the host's root and all mounts.
    """
    if not local.is_absolute():
        raise UsageError(f"use the path {local}", remedy="give an absolute path")
    host_paths = {resolve_local(root): ROOT}
    for host, place in reversed(mounts):
        host_paths[resolve_local(place)] = host
    # Links of the host are not followed here: the host follows them.
    real = resolve_local(local, *host_paths)
    for place in sorted(host_paths, key=_depth, reverse=True):
        if real.is_relative_to(place):
            return host_paths[place] / real.relative_to(place)
    remedy = "give the path as this process sees it, and --mount HOST=HERE for its directory"
    raise UsageError(f"use {local} (it is outside the host's root {root})", remedy=remedy)


def _depth(path: PurePosixPath) -> int:
    return len(path.parts)


def _mounts(texts: Iterable[str]) -> tuple[tuple[PurePosixPath, PurePosixPath], ...]:
    """Return the path on the host and the path here of each --mount."""
    mounts: dict[PurePosixPath, PurePosixPath] = {}
    for text in texts:
        host_text, equals, local_text = text.partition("=")
        if not equals or not host_text.startswith("/") or not local_text.startswith("/"):
            raise UsageError(f"mount {text!r}", remedy="write --mount HOST=HERE with two absolute paths")
        host = PurePosixPath(host_text)
        local = PurePosixPath(local_text)
        if ".." in local.parts:
            raise UsageError(
                f"use --mount {text} (its second path has ..)", remedy="write the path without .."
            )
        if mounts.setdefault(host, local) != local:
            problem = f"use --mount {text} ({host} is mounted from {mounts[host]} already)"
            raise UsageError(problem, remedy="leave out one of the two")
    return tuple(mounts.items())


def _refuse_missing_mounts(mounts: Iterable[tuple[PurePosixPath, PurePosixPath]]) -> None:
    """Raise UsageError for a mount without a directory here: a write would make the directory."""
    for host, local in mounts:
        try:
            is_missing = not Path(local).is_dir()
        except OSError:  # the first look into the directory tells the reason
            is_missing = False
        if is_missing:
            problem = f"use --mount {host}={local} (there is no directory {local})"
            raise UsageError(problem, remedy="correct it")


def _paths_by_engine(flag: str, texts: Sequence[str], engines: Sequence[str]) -> dict[str, PurePosixPath]:
    """Return the paths of a flag by engine; a path without a name needs exactly one of ``engines``."""
    paths = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if equals and name in ENGINES:
            paths[name] = PurePosixPath(path)
        elif len(engines) == 1 and engines[0] in ENGINES and (not equals or "/" in name):
            paths[engines[0]] = PurePosixPath(text)
        else:
            problem = f"tell which engine --{flag} {text} is for"
            raise UsageError(problem, remedy=f"write --{flag} ENGINE=PATH, with one of: {', '.join(ENGINES)}")
    return paths
