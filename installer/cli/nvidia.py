"""The entry points ``nvidia-toolkit`` and ``nvidia-ctk-installer``: NVIDIA's command line, our work."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from installer.cli import log as logging
from installer.cli.nvidia_words import Asked, read, rows, spelt
from installer.engines import ENGINES, generating
from installer.engines.hints import read_os_release
from installer.errors import Exit, InstallerError, UsageError
from installer.host import signals
from installer.host.events import internal_errors, log, open_standard_streams
from installer.host.files import Host
from installer.host.inodes import is_mount_point
from installer.host.limits import refuse_few_files, refuse_little_memory
from installer.host.mounts import find_host_path, is_empty, is_same, resolve_local
from installer.host.paths import ROOT
from installer.model.engine_spec import DropInKind, EngineSpec, Extras, ReloadMethod
from installer.model.nri import DEFAULT_SOCKET, Allowed, Identity, Nri
from installer.model.options import Cdi, Options, Places, RestartMode, ToolkitConfig, Wish

DEB_LIKE: Final = frozenset({"debian", "ubuntu"})
RPM_LIKE: Final = frozenset({"rhel", "fedora", "centos", "suse", "opensuse", "sles", "amzn", "azurelinux"})
OPERATORS: Final = PurePosixPath("/runtime")  # where the GPU Operator mounts what belongs to an engine
ARTIFACTS: Final = PurePosixPath("/artifacts")
PID_NAME: Final = "toolkit.pid"
RESTART: Final = "restart-mode"
HIGHEST_NRI_INDEX: Final = 99
SOURCE: Final = re.compile(r"command|file(=.+)?")
# Vendor and class of a CDI device (CDI specification 0.8, "kind").
# One letter alone is allowed there, and ends engines that read it (engine-facts.md#cdi-kind-of-one-letter).
KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]")


def options_from(asked: Asked) -> Options:
    """Return what a command line comes to; it is checked before anything is touched.

    Raises:
        UsageError: a value makes no sense.
    """
    _check(asked)
    files_only = asked["no-runtime-config"] or asked["enable-nri-plugin"]
    view = _View.of(asked)
    # Each of these may tell of a mount, so the mounts are known after them.
    install_dir = view.directory(asked["toolkit-install-dir"])
    pid_file, hook = view.file(asked["pid-file"]), _hook(asked, view)
    places, cdi, nri = _places(asked, view), _cdi(asked, view), _nri(asked, view)
    return Options(
        engines=() if files_only else tuple(places),
        toolkit_source=_source(asked, view.host),
        install_dir=install_dir,
        host_root=view.root,
        mounts=tuple(view.mounts.items()),
        driver_root=asked["driver-root"],
        toolkit=_toolkit(asked),
        low_level=tuple(asked["nvidia-container-runtime.runtimes"]),
        extras=Extras(
            cdi=asked["enable-cdi-in-runtime"] if asked.given("enable-cdi-in-runtime") else cdi is not None,
            annotations=tuple(asked["nvidia-container-runtime-modes.cdi.annotation-prefixes"]),
            runtime_type=asked["runtime-type"],
            override=_override(asked["runtime-config-override"]),
        ),
        cdi=cdi,
        runtime_name=asked["runtime-name"] or "nvidia",
        set_as_default=asked["set-as-default"] and not ENGINES[next(iter(places))].finds,
        places=places,
        crio_hook=hook,
        restart_mode=RestartMode.NONE if asked[RESTART].lower() == "none" else RestartMode.AUTO,
        pid_file=pid_file,
        timeout_s=float(asked["timeout"]),
        retry=asked["retry"],
        nri=nri,
    )


class _View(Struct, frozen=True):
    """The paths of this container as the host's; ``mounts`` collects where the host's are found."""

    root: PurePosixPath
    host: Host
    mounts: dict[PurePosixPath, PurePosixPath]

    @classmethod
    def of(cls, asked: Asked) -> "_View":
        root = resolve_local(_absolute(asked["host-root"] or "/"))
        if is_empty(root):
            root = ROOT
        view = cls(root, Host.under(root), {})
        for each in ("driver-root", "dev-root"):
            # A directory of the host may be found somewhere else, if its root does not bring it anyway.
            path = PurePosixPath(asked[each] or asked["driver-root"] or "/")
            if ROOT not in {root, path}:
                here = asked[f"{each}-ctr-path"] or asked["driver-root-ctr-path"] or "/"
                local = resolve_local(_absolute(here), root)
                if not local.is_relative_to(root) and path != local:
                    view.mounts[view.host.resolve(path)] = local
        return view

    def file(self, here: str, *guesses: PurePosixPath) -> PurePosixPath:
        """Return the host's path of a file: it is mounted by itself, or its directory is."""
        path = _absolute(here)
        if self.root != ROOT and is_mount_point(Path(resolve_local(path))):
            found = find_host_path(path, self.host, self.root, guesses) or path
            # A file that is mounted by itself cannot be replaced: only through its directory.
            return found if is_same(path, self.host, found) else self._map(path, guesses)
        return self._map(path.parent, [guess.parent for guess in guesses]) / path.name

    def directory(self, here: str) -> PurePosixPath:
        """Return the host's path of a directory."""
        return self._map(_absolute(here), ())

    def _map(self, here: PurePosixPath, guesses: Sequence[PurePosixPath]) -> PurePosixPath:
        """Return the host's path of ``here``; what no mount has brought is the host's path already."""
        real = resolve_local(here, *({self.root} - {ROOT}))
        if self.root == ROOT:
            # Without the host's root nothing can be compared: the operator's mounts are known by their place.
            found = guesses[0] if guesses and real.is_relative_to(OPERATORS) else here
        elif real.is_relative_to(self.root):
            return ROOT / real.relative_to(self.root)
        else:
            mounted = find_host_path(here, self.host, self.root, guesses)
            if mounted is None:
                return here
            found = mounted
        if found != here or self.root != ROOT:
            self.mounts[self.host.resolve(found)] = real
        return found


def _absolute(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if not path.is_absolute():
        raise UsageError(f"use the path {text}", remedy="give an absolute path")
    return path


def _check(asked: Asked) -> None:
    """Raise where a value is none of those that NVIDIA's tool takes."""
    for row in rows():
        value = asked[row.name]
        if row.choices and (value.lower() if row.name == RESTART else value) not in row.choices:
            expected = ", ".join(choice for choice in row.choices if choice)
            raise UsageError(f"use {value!r} as --{row.name}", remedy=f"give one of {expected}")
    if not asked["toolkit-install-dir"]:
        raise UsageError("install without a directory", remedy="name it with --root")
    if PurePosixPath(asked["pid-file"]).name != PID_NAME:
        raise UsageError(f"use the pidfile {asked['pid-file']!r}", remedy=f"give it the name {PID_NAME}")
    for source in asked["config-source"]:
        if not SOURCE.fullmatch(source):
            raise UsageError(f"use {source!r} as --config-source", remedy="give command, file or file=PATH")
    for value in asked["create-device-nodes"]:
        if value not in {"", "none", "control"}:
            raise UsageError(f"use {value!r} as --create-device-nodes", remedy="give control or none")
    if not KIND.fullmatch(asked["cdi-kind"]):
        raise UsageError(f"use {asked['cdi-kind']!r} as --cdi-kind", remedy="give it as VENDOR/CLASS")
    _check_nri(asked)


def _check_nri(asked: Asked) -> None:
    if asked["nri-plugin-index"] > HIGHEST_NRI_INDEX:
        raise UsageError(f"use {asked['nri-plugin-index']} as --nri-plugin-index", remedy="give 0 to 99")
    if asked["enable-nri-plugin"] and not asked["nri-namespace"]:
        raise UsageError("enable the NRI plugin without a namespace", remedy="name it with --nri-namespace")


def _nri(asked: Asked, view: _View) -> Nri:
    """Return what the plugin is asked for, which ends with the daemon: without one there is none."""
    if not asked["enable-nri-plugin"] or asked["no-daemon"]:
        return Nri()
    namespaces = dict.fromkeys((asked["nri-namespace"], *asked["nri-management-cdi-device-namespaces"]))
    return Nri(
        view.file(asked["nri-socket"], DEFAULT_SOCKET),
        Identity(index=f"{asked['nri-plugin-index']:02}"),
        tuple(Allowed.of(f"{namespace}={asked['cdi-kind']}") for namespace in namespaces),
        beside=True,
    )


def _source(asked: Asked, host: Host) -> PurePosixPath:
    if asked["toolkit-source-root"]:
        return PurePosixPath(asked["toolkit-source-root"])
    kind = asked["toolkit-package-type"]
    return ARTIFACTS / (_package_kind(host) if kind in {"", "auto"} else kind)


def _package_kind(host: Host) -> str:
    """Return the packages that suit the host: deb or rpm, by its os-release, else by which tool it has."""
    release = read_os_release(host)
    families = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if families & DEB_LIKE:
        return "deb"
    rpm, dpkg = (host.exists(PurePosixPath("/usr/bin", name)) for name in ("rpm", "dpkg"))
    return "rpm" if families & RPM_LIKE or (rpm and not dpkg) else "deb"


def _toolkit(asked: Asked) -> ToolkitConfig:
    section = "nvidia-container-runtime"
    said: dict[str, Any] = {
        "runtime_debug": asked[f"{section}.debug"],
        "log_level": asked[f"{section}.log-level"],
        "mode": asked[f"{section}.mode"],
        "cdi_default_kind": asked[f"{section}.modes.cdi.default-kind"],
        "cli_debug": asked["nvidia-container-cli.debug"],
    }
    said = {name: value for name, value in said.items() if value}
    prefixes = f"{section}.modes.cdi.annotation-prefixes"
    if asked.given(prefixes):
        said["cdi_annotation_prefixes"] = tuple(asked[prefixes])
    return ToolkitConfig(
        **said,
        accept_envvar_when_unprivileged=asked["accept-nvidia-visible-devices-envvar-when-unprivileged"],
        accept_volume_mounts=asked["accept-nvidia-visible-devices-as-volume-mounts"],
        skip_mode_detection=asked[f"{section}-hook.skip-mode-detection"],
        features=tuple(asked["opt-in-features"]),
    )


def _cdi(asked: Asked, view: _View) -> Cdi | None:
    if not (asked["cdi-enabled"] and asked["cdi-output-dir"]):
        return None
    driver, here = asked["driver-root"] or "/", asked["driver-root-ctr-path"] or "/"
    return Cdi(
        directory=view.directory(asked["cdi-output-dir"]),
        kind=asked["cdi-kind"],
        driver_root=driver,
        local_driver_root=here,
        dev_root=asked["dev-root"] or driver,
        local_dev_root=asked["dev-root-ctr-path"] or here,
        nodes="control" in asked["create-device-nodes"],
    )


def _override(text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text or "{}")
    except ValueError:
        tree = None
    if not isinstance(tree, dict) or any(value is None for value in tree.values()):
        raise UsageError(
            "read --runtime-config-override (it is no JSON object)", remedy='write {"KEY": VALUE}'
        )
    return tree


def _places(asked: Asked, view: _View) -> dict[str, Places]:
    """Return the engine that is asked for, and where it is.

    NVIDIA's tool knows engines that write their config themselves as a containerd with other paths: one is
    told of the drop-in alone, and which of k3s and RKE2 it is only their unit tells.
    """
    engine = asked["runtime"]
    row = ENGINES[engine]
    config = view.file(asked["config"] or str(row.config), row.config)
    if names := generating(row.process, config, PurePosixPath(asked["socket"])):
        usual = ENGINES[names[0]].socket
        here = asked["socket"] if asked.given("socket") and asked["socket"] else str(usual)
        drop_in = config if config.parent == ENGINES[names[0]].drop_ins.directory else None
        return dict.fromkeys(names, Places(None, drop_in, view.file(here, usual)))
    socket = view.file(asked["socket"] or str(row.socket), row.socket)
    return {engine: Places(config, _drop_in(asked, engine, view), socket)}


def _drop_in(asked: Asked, name: str, view: _View) -> PurePosixPath | None:
    if ENGINES[name].drop_ins.kind is DropInKind.NONE or not asked["drop-in-config"]:
        return None
    usual = next(row for row in rows() if row.name == "drop-in-config").default_for(name)
    guesses = [PurePosixPath(guess) for guess in (asked["drop-in-config-host-path"], usual) if guess]
    return view.file(asked["drop-in-config"], *guesses)


def _hook(asked: Asked, view: _View) -> PurePosixPath | None:
    if not ENGINES[asked["runtime"]].hook_dir or asked["config-mode"] != "hook":
        return None
    return view.file(str(PurePosixPath(asked["hooks-dir"], asked["hook-filename"])))


NAME: Final = "nvidia-ctk-installer"
# Scripts wait for this line.
SPOKEN: Final = {"waiting for a signal": "Waiting for signal"}


def main() -> None:
    """Do what NVIDIA's tool is asked to do, and exit with its codes: every error is 1."""
    signals.block()
    finished = open_standard_streams(signals.stop_requested)
    code = run(sys.argv[1:], os.environ)
    sys.exit(code if finished() else Exit.FAILED)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Read, check, do; return the exit code."""
    logging.configure(logging.LogFormat.AUTO, spoken=SPOKEN, spelling=spelt)
    try:
        with internal_errors():
            return _run(arguments, environment)
    except InstallerError as error:
        logging.say_failed(error)
        return Exit.FAILED
    finally:
        logging.leave_outcome()


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    asked = read(arguments, environment)
    if asked.special:
        from importlib.metadata import version

        told = f"{NAME} version {version('node-toolkit-installer')}\n"
        sys.stdout.write(_usage() if asked.special == "help" else told)
        return Exit.OK
    options = options_from(asked)
    refuse_little_memory()
    refuse_few_files()
    for warning in (*asked.warnings, *_warnings(asked, options)):
        log.warning("command line note", note=warning)
    from installer.lifecycle import install as daemon

    if asked["no-daemon"]:
        return int(daemon.install(options))
    return int(daemon.run(Wish(options, nvidia=True, log_format=logging.chosen())))


def _warnings(asked: Asked, options: Options) -> Iterator[str]:
    """Yield what is taken otherwise than NVIDIA's tool would take it."""
    engine = asked["runtime"]
    if asked["set-as-default"] and any(ENGINES[name].finds for name in options.engines):
        yield "--set-as-default is ignored: start k3s or RKE2 with --default-runtime nvidia for that"
    if asked["ignore-errors"]:
        yield "--ignore-errors is ignored: an installation is complete or not at all"
    if asked["use-legacy-config"] and ENGINES[engine].drop_ins.kind is DropInKind.IMPORTED:
        yield "--use-legacy-config is ignored: containerd reads default_runtime_name since 1.3"
    if asked.given(RESTART):
        yield from _other_way(asked[RESTART].lower(), ENGINES[engine])
    if ENGINES[engine].drop_ins.kind is DropInKind.NONE and asked["drop-in-config"]:
        yield "--drop-in-config is ignored: Docker has no drop-ins"
    if asked["config-mode"] == "hook" and ENGINES[engine].hook_dir:
        yield "--config-mode hook is deprecated"
    for name in ("config", "socket"):
        if asked.given(name) and not asked[name]:
            yield f"{asked.said[name].by} is empty: the usual path is taken"


def _other_way(mode: str, spec: EngineSpec) -> Iterator[str]:
    """Yield that an engine is reloaded in the one way that works, where another one was asked for."""
    if mode == "signal" and spec.reload is ReloadMethod.RESTART:
        yield f"{spec.title} is restarted by its unit: a signal does not make it read its config"
    if mode == "systemd" and spec.reload is ReloadMethod.HUP:
        yield f"{spec.title} gets SIGHUP: a restart by its unit would stop its containers"


def _usage() -> str:
    lines = [f"usage: {NAME} [DIRECTORY] [flags]", ""]
    for row in rows():
        flags = ", ".join(f"{'--' if len(name) > 1 else '-'}{name}" for name in row.names)
        lines += [f"  {flags}", f"      {row.help} {' '.join(f'[${name}]' for name in row.env)}".rstrip()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
