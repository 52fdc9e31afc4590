"""Every flag with its environment variable, in one table, and what they come to: ``Options``."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct

from installer.engines import ENGINES
from installer.errors import UsageError
from installer.host.inodes import resolve_local
from installer.model.files import ROOT, RUN_DIR
from installer.model.nri import DEFAULT_SOCKET, Allowed, Identity, Nri
from installer.model.options import AUTO, Listen, Mode, Options, Places, ToolkitConfig

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
ENGINE, TOOLKIT, PATHS, BEHAVIOUR = "Engine", "Toolkit", "Paths", "Behaviour"
MONITORING, NRI, OUTPUT = "Monitoring", "NRI", "Output"


class Flag(Struct, frozen=True):
    """One flag, of its default's kind: a tuple may be repeated (a variable: commas), a bool has ``--no-``."""

    usage: str  # its name and what it takes
    group: str
    help: str
    default: str | tuple[str, ...] | bool | float
    choices: tuple[str, ...] = ()
    plain: bool = False  # it makes the field of Options of its name

    @property
    def name(self) -> str:
        """The flag, with its two dashes."""
        return self.usage.partition(" ")[0]

    @property
    def metavar(self) -> str:
        """The kind of word that it takes; "" for a switch, and for one of a few words."""
        return self.usage.partition(" ")[2]

    @property
    def field(self) -> str:
        """The name under which parsers hand the value over."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that is read where the flag is not given."""
        return PREFIX + self.field.upper()


def _plain(usage: str, group: str, words: str) -> Flag:
    """Return a flag that makes the field of Options of its name, with the default and the choices of that."""
    default = getattr(BY_DEFAULT, Flag(usage, group, words, "").field)
    choices = tuple(map(str, type(default))) if isinstance(default, StrEnum) else ()
    value = default if isinstance(default, bool) else str(default or "")
    return Flag(usage, group, words, value, choices, plain=True)


def _convert(name: str, value: Any) -> Any:
    """Return the value of a plain flag as Options has it; "" means that there is no such path."""
    default = getattr(BY_DEFAULT, name)
    kind = PurePosixPath if default is None else type(default)
    return None if default is None and value == "" else kind(value)


def _listen(text: str) -> Listen | None:
    if not text:
        return None
    if text.startswith(UNIX):
        return Listen(PurePosixPath(text.removeprefix(UNIX)))
    found = ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[3]) <= HIGHEST_PORT:
        such = "such as 127.0.0.1:9400 or [::1]:9400, or unix:/run/toolkit-installer.sock"
        remedy = f"give ADDRESS:PORT with an address in numbers, {such}"
        raise UsageError(f"listen on {text!r}", remedy=remedy)
    return Listen(None, found[1] or found[2], int(found[3]))


FLAGS: Final = (
    Flag("--runtime", ENGINE, "Engine to configure; auto: all that run here.", (AUTO,), (AUTO, *ENGINES)),
    _plain("--mode", ENGINE, "How containers get GPUs: by our runtimes, by CDI, or by NRI."),
    _plain("--toolkit-source PATH", TOOLKIT, "Root of the toolkit; the host's own is used in place."),
    _plain("--install-dir PATH", PATHS, "Directory on the host that gets toolkit/."),
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
    _plain("--on-exit", BEHAVIOUR, "What run does when it is stopped: uninstall, or keep everything."),
    _plain("--in-use", BEHAVIOUR, "What uninstall does while containers use our runtimes."),
    _plain("--drift", BEHAVIOUR, "What run does when the node no longer matches the install."),
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
    Flag("--log-format", OUTPUT, "How events are written to stderr.", "auto", ("auto", "json", "text")),
)


DEFAULTS: Final = {flag.field: flag.default for flag in FLAGS}
GROUPS: Final = {
    group: frozenset(flag.field for flag in FLAGS if flag.group == group)
    for group in dict.fromkeys(flag.group for flag in FLAGS)
}
# What is heeded by ``run`` alone.
OF_RUN: Final = GROUPS[NRI] | {"on_exit", "drift", "metrics_listen"}


def options_from(values: Mapping[str, Any], given: frozenset[str]) -> Options:
    """Return what ``values`` by ``Flag.field`` come to, of which ``given`` are set, or raise UsageError."""
    engines, mounts = tuple(values["runtime"]), tuple(_mount(text) for text in values["mount"])
    host = partial(_find_host_path, root=PurePosixPath(values["host_root"]), mounts=mounts)
    places = tuple(
        _places(name, values[name.replace("-", "_")], engines)
        for name in ("config", "drop-in-config", "socket")
    )
    configs, drop_ins, _ = places
    if written := [name for name in (*configs, *drop_ins) if ENGINES[name].built_in_runtime]:
        raise UsageError(f"give {written[0]} a config", remedy="leave it out: it writes its config itself")
    if without := [name for name in drop_ins if not ENGINES[name].drop_ins.takes_ours]:
        problem = f"use --drop-in-config for {ENGINES[without[0]].title}"
        raise UsageError(problem, remedy="use --config: it reads no other file")
    options = Options(
        **{flag.field: _convert(flag.field, values[flag.field]) for flag in FLAGS if flag.plain},
        engines=tuple(dict.fromkeys(engines)),
        mounts=mounts,
        toolkit=ToolkitConfig(
            accept_envvar_when_unprivileged=values[ENVVAR_WHEN_UNPRIVILEGED],
            accept_volume_mounts=values[AS_VOLUME_MOUNTS],
        ),
        places={
            name: Places(*(host(paths[name]) if name in paths else None for paths in places))
            for name in ENGINES
        },
        crio_hook=DEFAULT_HOOK if values["crio_hook"] else None,
        pid_file=host(PurePosixPath(values["pid_file"])) if "pid_file" in given else PID_FILE,
        timeout_s=float(values["timeout"]),
        metrics_listen=_listen(values["metrics_listen"]),
        nri=Nri(
            host(PurePosixPath(values["nri_socket"])) if "nri_socket" in given else DEFAULT_SOCKET,
            Identity.of(values["nri_name"], values["nri_index"]),
            tuple(Allowed.of(text) for text in values["nri_allow"]),
            beside=values["nri"],
        ),
    )
    if options.mode.by_cdi and (asking := options.needs_runtime):
        remedy = f"leave {'that' if len(asking) == 1 else 'those'} out, or use --mode runtime"
        raise UsageError(f"give GPUs by CDI alone with {' and '.join(asking)}", remedy=remedy)
    if options.mode is Mode.NRI and "nri" in given and not values["nri"]:
        remedy = "leave out one of the two, or use --mode cdi: it has no plugin"
        raise UsageError("serve pods over NRI with --no-nri (mode nri is the NRI plugin)", remedy=remedy)
    return options


def _find_host_path(
    local: PurePosixPath, root: PurePosixPath, mounts: Sequence[tuple[PurePosixPath, PurePosixPath]]
) -> PurePosixPath:
    """Return the host's path for one as this process sees it."""
    if not local.is_absolute():
        raise UsageError(f"use the path {local}", remedy="give an absolute path")
    here = {resolve_local(place): host for host, place in ((ROOT, root), *reversed(mounts))}
    # Links of the host are not followed here: the host follows them.
    real = resolve_local(local, *here)
    for place in sorted(here, key=lambda each: -len(each.parts)):
        if real.is_relative_to(place):
            return here[place] / real.relative_to(place)
    remedy = "give the path as this process sees it, and --mount HOST=HERE for its directory"
    raise UsageError(f"use {local} (it is outside the host's root {root})", remedy=remedy)


def _mount(text: str) -> tuple[PurePosixPath, PurePosixPath]:
    host, equals, local = text.partition("=")
    if not equals or not host.startswith("/") or not local.startswith("/"):
        raise UsageError(f"mount {text!r}", remedy="write --mount HOST=HERE with two absolute paths")
    return PurePosixPath(host), PurePosixPath(local)


def _places(flag: str, texts: Sequence[str], engines: Sequence[str]) -> dict[str, PurePosixPath]:
    """Return the paths by engine; a bare one needs exactly one engine to belong to."""
    found = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if equals and name in ENGINES:
            found[name] = PurePosixPath(path)
        elif len(engines) == 1 and engines[0] in ENGINES and (not equals or "/" in name):
            found[engines[0]] = PurePosixPath(text)
        else:
            problem = f"tell which engine --{flag} {text} is for"
            raise UsageError(problem, remedy=f"write --{flag} ENGINE=PATH, with one of: {', '.join(ENGINES)}")
    return found
