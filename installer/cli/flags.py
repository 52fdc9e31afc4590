"""Every flag with its environment variable, in one table, and what they come to: ``Options``."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct

from installer.cdi.mode import refuse_runtime_by_cdi
from installer.engines import ENGINES
from installer.errors import UsageError
from installer.host.mounts import followed
from installer.model.engine_spec import DropInKind
from installer.model.nri import DEFAULT_SOCKET, Allowed, Identity, Nri
from installer.model.options import (
    AUTO,
    DEFAULT_SOURCE,
    Drift,
    InUse,
    Listen,
    Mode,
    OnExit,
    Options,
    Places,
    RestartMode,
    ToolkitConfig,
)
from installer.model.paths import DEFAULT_INSTALL_DIR, RUN_DIR

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


class Flag(Struct, frozen=True):
    """One flag, of its default's kind: a tuple may be repeated (a variable: commas), a bool has ``--no-``."""

    name: str
    help: str
    default: str | tuple[str, ...] | bool | float
    choices: tuple[str, ...] = ()
    metavar: str = "PATH"

    @property
    def field(self) -> str:
        """The name under which parsers hand the value over."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that is read where the flag is not given."""
        return PREFIX + self.field.upper()


FLAGS: Final = (
    Flag("--runtime", "Engine to configure; auto takes every one that runs here.", (AUTO,), (AUTO, *ENGINES)),
    Flag(
        "--mode",
        "How containers get GPUs: by runtimes of ours, or, with no engine changed, by CDI or CDI and NRI.",
        "runtime",
        tuple(map(str, Mode)),
    ),
    Flag(
        "--toolkit-source",
        "Root of the toolkit to install, as this process sees it; the host's own root is used in place.",
        str(DEFAULT_SOURCE),
    ),
    Flag("--install-dir", "Directory on the host that gets toolkit/.", str(DEFAULT_INSTALL_DIR)),
    Flag("--host-root", "Where this process finds the host's root.", "/"),
    Flag("--mount", "Where this process finds one more directory of the host.", (), metavar="HOST=HERE"),
    Flag(
        "--driver-root",
        "Where the host finds the driver; auto is /run/nvidia/driver, or / if only the host itself has one.",
        AUTO,
    ),
    Flag("--runtime-name", "Name of our runtime in the engine's config.", "nvidia", metavar="NAME"),
    Flag("--set-as-default", "Make our runtime the engine's default.", default=False),
    Flag("--config", "The engine's config, as this process sees it.", (), metavar="[ENGINE=]PATH"),
    Flag(
        "--drop-in-config", "Drop-in for our runtimes, as this process sees it.", (), metavar="[ENGINE=]PATH"
    ),
    Flag("--socket", "The engine's socket, as this process sees it.", (), metavar="[ENGINE=]PATH"),
    Flag("--crio-hook", "Write CRI-O's OCI hook instead of runtimes.", default=False),
    Flag(
        "--restart-mode",
        "Whether an engine is brought to read its config: now, when it is idle, or not at all (unproven).",
        "auto",
        tuple(map(str, RestartMode)),
    ),
    Flag(
        "--accept-nvidia-visible-devices-envvar-when-unprivileged",
        "Let an unprivileged container choose GPUs by NVIDIA_VISIBLE_DEVICES in its environment.",
        default=True,
    ),
    Flag(
        "--accept-nvidia-visible-devices-as-volume-mounts",
        "Let a container choose GPUs by volume mounts, as NVIDIA's device plugin can hand them out.",
        default=False,
    ),
    Flag("--pid-file", "Pidfile of run, as this process sees it.", str(PID_FILE)),
    Flag("--timeout", "Seconds until an engine must serve what its config says.", 20.0, metavar="SECONDS"),
    Flag("--on-exit", "What run does when it is told to stop.", "undo", tuple(map(str, OnExit))),
    Flag("--in-use", "What an undo does while containers run on ours.", "wait", tuple(map(str, InUse))),
    Flag(
        "--drift",
        "What run does, while it waits, when somebody has changed what it installed (ignore: nothing, as long"
        " as the engines serve).",
        "auto",
        tuple(map(str, Drift)),
    ),
    Flag("--retry", "Try a plan again although it failed before.", default=False),
    Flag("--adopt", "Let uninstall remove what NVIDIA's own installer left, too.", default=False),
    Flag(
        "--metrics-textfile",
        "File on the host for node_exporter's textfile collector, named *.prom, in a directory that exists.",
        "",
    ),
    Flag(
        "--nfd-features",
        "File on the host for the node's labels, in the directory features.d of Node Feature Discovery.",
        "",
    ),
    Flag(
        "--metrics-listen",
        "Where run answers with metrics while it waits: ADDRESS:PORT, or unix:PATH of the host (*.sock).",
        "",
        metavar="WHERE",
    ),
    Flag("--nri", "Let run have the NRI plugin run beside itself; --mode nri does as well.", default=False),
    Flag("--nri-socket", "NRI's socket of the engine, as this process sees it.", str(DEFAULT_SOCKET)),
    Flag(
        "--nri-allow",
        "Namespace whose pods may ask by annotation for CDI devices of a kind.",
        (),
        metavar="NAMESPACE=VENDOR/CLASS",
    ),
    Flag("--nri-name", "Name of the NRI plugin.", Identity().name, metavar="NAME"),
    Flag("--nri-index", "Place of the NRI plugin among others, 0 to 99.", Identity().index, metavar="NUMBER"),
    Flag("--log-format", "How events are written to stderr.", "auto", ("auto", "json", "text")),
)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that begin like ours and are none of ours, with the one that may be meant."""
    known = {*(flag.variable for flag in FLAGS), SHOW_SECRETS}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    return {name: next(iter(get_close_matches(name, known, n=1)), "") for name in unknown}


def options_from(values: Mapping[str, Any], given: frozenset[str]) -> Options:
    """Return the options that ``values`` (by ``Flag.field``) come to; ``given`` are the ones somebody set.

    Raises:
        UsageError: a value, or a combination of them, makes no sense.
    """
    engines = tuple(values["runtime"])
    host_root = PurePosixPath(values["host_root"])
    mounts = tuple(_pair(text) for text in values["mount"])
    view = _View(host_root, mounts)
    drop_ins = _places("drop-in-config", values["drop_in_config"], engines)
    configs = _places("config", values["config"], engines)
    places = configs, drop_ins, _places("socket", values["socket"], engines)
    if written := [name for name in (*configs, *drop_ins) if ENGINES[name].finds]:
        raise UsageError(f"give {written[0]} a config", remedy="leave it out: it writes its config itself")
    if without := [name for name in drop_ins if ENGINES[name].drop_ins.kind is DropInKind.NONE]:
        raise UsageError(
            f"give {ENGINES[without[0]].title} a drop-in", remedy="use --config: it reads no other file"
        )
    options = Options(
        engines=tuple(dict.fromkeys(engines)),
        mode=Mode(values["mode"]),
        toolkit_source=PurePosixPath(values["toolkit_source"]),
        install_dir=PurePosixPath(values["install_dir"]),
        host_root=host_root,
        mounts=mounts,
        driver_root=values["driver_root"],
        toolkit=ToolkitConfig(
            accept_envvar_when_unprivileged=values[ENVVAR_WHEN_UNPRIVILEGED],
            accept_volume_mounts=values[AS_VOLUME_MOUNTS],
        ),
        runtime_name=values["runtime_name"],
        set_as_default=values["set_as_default"],
        places={
            name: Places(*(view.host(paths[name]) if name in paths else None for paths in places))
            for name in ENGINES
        },
        crio_hook=DEFAULT_HOOK if values["crio_hook"] else None,
        restart_mode=RestartMode(values["restart_mode"]),
        pid_file=view.host(PurePosixPath(values["pid_file"])) if "pid_file" in given else PID_FILE,
        timeout_s=float(values["timeout"]),
        on_exit=OnExit(values["on_exit"]),
        in_use=InUse(values["in_use"]),
        drift=Drift(values["drift"]),
        retry=values["retry"],
        adopt=values["adopt"],
        metrics_textfile=PurePosixPath(values["metrics_textfile"]) if values["metrics_textfile"] else None,
        nfd_features=PurePosixPath(values["nfd_features"]) if values["nfd_features"] else None,
        metrics_listen=_listen(values["metrics_listen"]),
        nri=_nri(values, given, view),
    )
    refuse_runtime_by_cdi(options)
    if options.mode is Mode.NRI and "nri" in given and not values["nri"]:
        raise UsageError(
            "serve pods over NRI with --no-nri (mode nri is the NRI plugin)",
            remedy="leave out one of the two, or use --mode cdi: it has no plugin",
        )
    return options


def _nri(values: Mapping[str, Any], given: frozenset[str], view: "_View") -> Nri:
    return Nri(
        view.host(PurePosixPath(values["nri_socket"])) if "nri_socket" in given else DEFAULT_SOCKET,
        Identity(values["nri_name"], values["nri_index"]),
        tuple(Allowed.of(text) for text in values["nri_allow"]),
        beside=values["nri"],
    )


def _listen(text: str) -> Listen | None:
    if not text:
        return None
    if text.startswith(UNIX):
        return Listen(PurePosixPath(text.removeprefix(UNIX)))
    found = ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[3]) <= HIGHEST_PORT:
        raise UsageError(
            f"listen on {text!r}",
            remedy="give ADDRESS:PORT with an address in numbers, such as 127.0.0.1:9400 or [::1]:9400, or "
            "unix:/run/toolkit-installer.sock",
        )
    return Listen(None, found[1] or found[2], int(found[3]))


class _View(Struct, frozen=True):
    """Turns a path as this process sees it into the host's."""

    host_root: PurePosixPath
    mounts: tuple[tuple[PurePosixPath, PurePosixPath], ...]

    def host(self, local: PurePosixPath) -> PurePosixPath:
        if not local.is_absolute():
            raise UsageError(f"use the path {local}", remedy="give an absolute path")
        places = [(host, followed(mounted)) for host, mounted in self.mounts]
        places.sort(key=lambda pair: -len(pair[1].parts))
        root = followed(self.host_root)
        # Links of the host are not followed here: the host follows them.
        real = followed(local, root, *(mounted for _, mounted in places))
        for host, mounted in (*places, (PurePosixPath("/"), root)):
            if real.is_relative_to(mounted):
                return host / real.relative_to(mounted)
        raise UsageError(
            f"use {local} (it is outside the host's root {self.host_root})",
            remedy="give the path as this process sees it, and --mount HOST=HERE for its directory",
        )


def _pair(text: str) -> tuple[PurePosixPath, PurePosixPath]:
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
        elif len(engines) == 1 and engines[0] in ENGINES:
            found[engines[0]] = PurePosixPath(text)
        else:
            raise UsageError(
                f"tell which engine --{flag} {text} is for", remedy=f"write --{flag} ENGINE={text}"
            )
    return found
