"""Do the work of ``nvidia-toolkit`` and ``nvidia-ctk-installer``, as NVIDIA's command line asks for it."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from installer.cli import log as logging
from installer.cli import nvidia_log, program
from installer.cli.flags import make_turns
from installer.cli.nvidia_flags import CommandLine, read, rows
from installer.engines import ENGINES, list_generating
from installer.engines.dependencies import read_os_release
from installer.errors import Exit, InstallerError, UsageError
from installer.host.events import log
from installer.host.files import Host
from installer.host.inodes import is_mount_point, resolve_local
from installer.host.kernel import allow_files, list_mounts
from installer.model.engine import Extras
from installer.model.files import ROOT
from installer.model.nri import DEFAULT_SOCKET, Allowed, Identity, Nri
from installer.model.options import (
    Cdi,
    OnExit,
    Options,
    Places,
    RestartMode,
    RunRequest,
    ToolkitConfig,
    TurnOptions,
)

DEB_LIKE: Final = frozenset({"debian", "ubuntu"})
RPM_LIKE: Final = frozenset({"rhel", "fedora", "centos", "suse", "opensuse", "sles", "amzn", "azurelinux"})
OPERATORS: Final = PurePosixPath("/runtime")  # the GPU Operator mounts the files of an engine below this path
ARTIFACTS: Final = PurePosixPath("/artifacts")
# Flags whose path is checked, although another part of the program may never read it.
PATHS: Final = ("driver-root", "driver-root-ctr-path", "dev-root", "dev-root-ctr-path", "toolkit-source-root")
PID_NAME: Final = "toolkit.pid"
RESTART: Final = "restart-mode"
HIGHEST_NRI_INDEX: Final = 99
SOURCE: Final = re.compile(r"command|file(=.+)?")
# Vendor and class of a CDI device (CDI specification 0.8, "kind").
# The specification allows a single letter, which ends the engines that read it
# (engine-facts.md#cdi-kind-of-one-letter).
KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]")


def options_from(line: CommandLine) -> Options:
    """Build the options of a command line.

    Raises:
        UsageError: a value is refused; nothing was touched.
    """
    _check(line)
    view = _View.of(line)
    # Each path may reveal a mount, so ``view.mounts`` is complete only after all of them.
    install_dir = view.directory(line["toolkit-install-dir"])
    pid_file = view.file(line["pid-file"])
    hook = None
    if ENGINES[line["runtime"]].hook_dir and line["config-mode"] == "hook":
        hook = view.file(str(PurePosixPath(line["hooks-dir"], line["hook-filename"])))
    places = _places(line, view)
    cdi = _cdi(line, view)
    nri = _nri(line, view)

    engines = tuple(places)
    if line["no-runtime-config"] or line["enable-nri-plugin"]:
        engines = ()
    cdi_in_engine = cdi is not None
    if line.given("enable-cdi-in-runtime"):
        cdi_in_engine = line["enable-cdi-in-runtime"]
    restart_mode = RestartMode.AUTO
    if line[RESTART].lower() == "none":
        restart_mode = RestartMode.NONE
    first_engine = next(iter(places))

    return Options(
        engines=engines,
        toolkit_source=_source(line, view.host),
        install_dir=install_dir,
        host_root=view.root,
        mounts=tuple(view.mounts.items()),
        driver_root=line["driver-root"],
        toolkit=_toolkit(line),
        low_level=tuple(line["nvidia-container-runtime.runtimes"]),
        extras=Extras(
            cdi=cdi_in_engine,
            annotations=tuple(line["nvidia-container-runtime-modes.cdi.annotation-prefixes"]),
            runtime_type=line["runtime-type"],
            override=_override(line["runtime-config-override"]),
        ),
        cdi=cdi,
        runtime_name=line["runtime-name"] or "nvidia",
        set_as_default=line["set-as-default"] and not ENGINES[first_engine].built_in_runtime,
        places=places,
        crio_hook=hook,
        restart_mode=restart_mode,
        pid_file=pid_file,
        timeout_s=float(line["timeout"]),
        accept_pending=line["accept-pending"],
        retry=line["retry"],
        on_exit=OnExit(line["on-exit"]),
        daemonset=line["daemonset"],
        node_name=line["node-name"],
        turns=_turns(line),
        nri=nri,
    )


class _View(Struct, frozen=True):
    """The host's paths for paths of this container; ``mounts`` collects the mounts on the way."""

    root: PurePosixPath
    host: Host
    mounts: dict[PurePosixPath, PurePosixPath]

    @classmethod
    def of(cls, line: CommandLine) -> "_View":
        root = resolve_local(_absolute(line["host-root"] or "/"))
        if _is_empty(root):
            root = ROOT
        view = cls(root, Host.under(root), {})
        view._add_mount(line, "driver-root")
        view._add_mount(line, "dev-root")
        return view

    def _add_mount(self, line: CommandLine, flag: str) -> None:
        """Note this container's path of a host directory outside the host's root."""
        path = PurePosixPath(line[flag] or line["driver-root"] or "/")
        if ROOT in {self.root, path}:
            return
        given = line[f"{flag}-ctr-path"] or line["driver-root-ctr-path"] or "/"
        local = resolve_local(_absolute(given), self.root)
        if not local.is_relative_to(self.root) and path != local:
            self.mounts[self.host.resolve(path)] = local

    def file(self, text: str, *guesses: PurePosixPath) -> PurePosixPath:
        """Return the host's path of a file; either the file or the directory is mounted."""
        path = _absolute(text)
        if self.root != ROOT and is_mount_point(Path(resolve_local(path))):
            host_path = _find_host_path(path, self.host, self.root, guesses) or path
            if _is_same(path, self.host, host_path):
                return host_path
            # A file that is mounted by itself cannot be replaced, except through its directory.
            return self._map(path, guesses)
        return self._map(path.parent, [guess.parent for guess in guesses]) / path.name

    def directory(self, text: str) -> PurePosixPath:
        """Return the host's path of a directory."""
        return self._map(_absolute(text), ())

    def _map(self, local: PurePosixPath, guesses: Sequence[PurePosixPath]) -> PurePosixPath:
        """Return the host's path of ``local``; without a mount, ``local`` is the host's path already."""
        if self.root == ROOT:
            real = resolve_local(local)
            # Without the host's root nothing can be compared: the operator's mounts are known by their place.
            host_path = guesses[0] if guesses and real.is_relative_to(OPERATORS) else None
        else:
            real = resolve_local(local, self.root)
            if real.is_relative_to(self.root):
                return ROOT / real.relative_to(self.root)
            host_path = _find_host_path(local, self.host, self.root, guesses)
        if host_path is None:
            return local
        if self.root != ROOT or host_path != local:
            self.mounts[self.host.resolve(host_path)] = real
        return host_path


def _find_host_path(
    local: PurePosixPath, host: Host, root: PurePosixPath, guesses: Sequence[PurePosixPath]
) -> PurePosixPath | None:
    """Return the host's path of ``local``, a path in a mount of this container; None without a mount.

    The kernel tells the mount points, and the mounted directory within its file system. A candidate is proven
    if the host has the inode of the mount point at its path. Without a proven candidate, a mount at exactly
    ``local`` counts as the first guess, or as the host's path of the same name; a wider mount (the
    container's own /run) has nothing to do with the host.

    Args:
        local: the path as this process sees it.
        host: the host.
        root: the host's root as this process sees it.
        guesses: paths that ``local`` may have on the host.
    """
    real = resolve_local(local, root)
    mount = _find_nearest_mount(real)
    if mount is None:
        return None
    mount_point, mounted = mount
    below = real.relative_to(mount_point)
    named = [path for path in (*guesses, local, real) if ".." not in path.parts]

    for candidate in _list_candidates(named, below, mounted):
        if _is_same(mount_point, host, candidate):
            return candidate / below

    # The host's root may hide the inode of the mount point, and yet show the inode of the path in it.
    for path in named:
        if _is_same(real, host, path):
            return path
    return named[0] if mount_point == real else None


def _find_nearest_mount(real: PurePosixPath) -> tuple[PurePosixPath, PurePosixPath] | None:
    """Return the lowest mount point above ``real``, and the mounted directory within its file system."""
    nearest = None
    for point, mounted in list_mounts():
        mount_point = PurePosixPath(point)
        if mount_point == ROOT or not real.is_relative_to(mount_point):
            continue
        if nearest is None or len(mount_point.parts) > len(nearest[0].parts):
            nearest = (mount_point, PurePosixPath(mounted))
    return nearest


def _list_candidates(
    named: Sequence[PurePosixPath], below: PurePosixPath, mounted: PurePosixPath
) -> Iterator[PurePosixPath]:
    """Yield paths that a mount point may have on the host.

    Args:
        named: paths that may be the host's path of something below the mount point.
        below: the path of the same thing below the mount point.
        mounted: the mounted directory within its file system.
    """
    for path in named:
        cut = len(path.parts) - len(below.parts)
        if cut > 0 and path.parts[cut:] == below.parts:
            yield PurePosixPath(*path.parts[:cut])
    for cut in range(1, len(mounted.parts)):
        yield PurePosixPath("/", *mounted.parts[cut:])


def _is_same(local: PurePosixPath, host: Host, candidate: PurePosixPath) -> bool:
    """Tell whether ``local`` and the host's ``candidate`` are the same file or directory."""
    with suppress(OSError, InstallerError):
        return os.path.samestat(Path(local).stat(), host.place(candidate).local_path.stat())
    return False


def _is_empty(local: PurePosixPath) -> bool:
    """Tell whether a directory is empty or missing."""
    with suppress(OSError):
        return not any(Path(local).iterdir())
    return True


def _absolute(text: str) -> PurePosixPath:
    """Return a path; raise UsageError if the path is relative."""
    path = PurePosixPath(text)
    if not path.is_absolute():
        raise UsageError(f"use the path {text}", remedy="give an absolute path")
    return path


def _check(line: CommandLine) -> None:
    """Raise UsageError for a value against the rules of NVIDIA's tool."""
    _check_choices(line)
    if not line["toolkit-install-dir"]:
        raise UsageError("install without a directory", remedy="name it with --root")
    if PurePosixPath(line["pid-file"]).name != PID_NAME:
        raise UsageError(f"use the pidfile {line['pid-file']!r}", remedy=f"give it the name {PID_NAME}")
    for source in line["config-source"]:
        if not SOURCE.fullmatch(source):
            raise UsageError(f"use {source!r} as --config-source", remedy="give command, file or file=PATH")
    for nodes in line["create-device-nodes"]:
        if nodes not in {"", "none", "control"}:
            raise UsageError(f"use {nodes!r} as --create-device-nodes", remedy="give control or none")
    for name in PATHS:
        if line[name]:
            _absolute(line[name])
    if not KIND.fullmatch(line["cdi-kind"]):
        raise UsageError(f"use {line['cdi-kind']!r} as --cdi-kind", remedy="give it as VENDOR/CLASS")
    if line["nri-plugin-index"] > HIGHEST_NRI_INDEX:
        raise UsageError(f"use {line['nri-plugin-index']} as --nri-plugin-index", remedy="give 0 to 99")
    if line["enable-nri-plugin"] and not line["nri-namespace"]:
        raise UsageError("enable the NRI plugin without a namespace", remedy="name it with --nri-namespace")


def _check_choices(line: CommandLine) -> None:
    """Raise UsageError for a value outside the choices of a flag."""
    for row in rows():
        given = line[row.name]
        value = given.lower() if row.name == RESTART else given
        if row.choices and value not in row.choices:
            expected = ", ".join(choice for choice in row.choices if choice)
            raise UsageError(f"use {given!r} as --{row.name}", remedy=f"give one of {expected}")


def _nri(line: CommandLine, view: _View) -> Nri:
    """Build the options of the NRI plugin; without a daemon no plugin runs."""
    if not line["enable-nri-plugin"] or line["no-daemon"]:
        return Nri()
    socket = view.file(line["nri-socket"], DEFAULT_SOCKET)
    identity = Identity.of(Identity().name, f"{line['nri-plugin-index']:02}")
    namespaces = dict.fromkeys((line["nri-namespace"], *line["nri-management-cdi-device-namespaces"]))
    allowed = tuple(Allowed.of(f"{namespace}={line['cdi-kind']}") for namespace in namespaces)
    return Nri(socket, identity, allowed, beside=True)


def _turns(line: CommandLine) -> TurnOptions:
    """Build the options of restarts by turns."""
    fields = ("release", "max_restarting", "stop_after", "canary", "soak")
    return make_turns({field: line[field.replace("_", "-")] for field in fields})


def _source(line: CommandLine, host: Host) -> PurePosixPath:
    """Return the root of the toolkit; the kind of its packages suits the host, unless a flag names it."""
    if line["toolkit-source-root"]:
        return PurePosixPath(line["toolkit-source-root"])
    kind: str = line["toolkit-package-type"]
    if kind in {"", "auto"}:
        kind = _find_package_kind(host)
    return ARTIFACTS / kind


def _find_package_kind(host: Host) -> str:
    """Return "deb" or "rpm": by the os-release of the host, else by the host's package tool."""
    release = read_os_release(host)
    families = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    has_rpm = host.exists(PurePosixPath("/usr/bin/rpm"))
    has_dpkg = host.exists(PurePosixPath("/usr/bin/dpkg"))
    if families & DEB_LIKE:
        return "deb"
    if families & RPM_LIKE or (has_rpm and not has_dpkg):
        return "rpm"
    return "deb"


def _toolkit(line: CommandLine) -> ToolkitConfig:
    section = "nvidia-container-runtime"
    texts = {
        "runtime_debug": line[f"{section}.debug"],
        "log_level": line[f"{section}.log-level"],
        "mode": line[f"{section}.mode"],
        "cdi_default_kind": line[f"{section}.modes.cdi.default-kind"],
        "cli_debug": line["nvidia-container-cli.debug"],
    }
    given = {name: text for name, text in texts.items() if text}
    prefixes = f"{section}.modes.cdi.annotation-prefixes"
    if line.given(prefixes):
        given["cdi_annotation_prefixes"] = tuple(line[prefixes])
    return ToolkitConfig(
        **given,
        accept_envvar_when_unprivileged=line["accept-nvidia-visible-devices-envvar-when-unprivileged"],
        envvar_by_host=False,  # NVIDIA's tool does not look at the host's config.toml
        accept_volume_mounts=line["accept-nvidia-visible-devices-as-volume-mounts"],
        skip_mode_detection=line[f"{section}-hook.skip-mode-detection"],
        features=tuple(line["opt-in-features"]),
    )


def _cdi(line: CommandLine, view: _View) -> Cdi | None:
    if not line["cdi-enabled"] or not line["cdi-output-dir"]:
        return None
    driver_root = line["driver-root"] or "/"
    local_driver_root = line["driver-root-ctr-path"] or "/"
    return Cdi(
        directory=view.directory(line["cdi-output-dir"]),
        kind=line["cdi-kind"],
        driver_root=driver_root,
        local_driver_root=local_driver_root,
        dev_root=line["dev-root"] or driver_root,
        local_dev_root=line["dev-root-ctr-path"] or local_driver_root,
        nodes={*line["create-device-nodes"]} == {"control"},
    )


def _override(text: str) -> dict[str, Any]:
    """Return the settings in a JSON object; raise UsageError for any other text, and for a null in it."""
    with suppress(ValueError):
        tree = json.loads(text or "{}")
        if isinstance(tree, dict) and None not in tree.values():
            return tree
    raise UsageError("read --runtime-config-override (it is no JSON object)", remedy='write {"KEY": VALUE}')


def _places(line: CommandLine, view: _View) -> dict[str, Places]:
    """Return the paths of the requested engine, by name."""
    engine = line["runtime"]
    kind = ENGINES[engine]
    config = view.file(line["config"] or str(kind.config), kind.config)

    # NVIDIA's tool treats k3s and RKE2, which write their config themselves, as a containerd with other
    # paths: they get the drop-in alone, and only their unit tells which of the two is there.
    names = list_generating(kind.process, config, PurePosixPath(line["socket"]))
    if names:
        first = ENGINES[names[0]]
        socket = str(first.socket)
        if line.given("socket") and line["socket"]:
            socket = line["socket"]
        drop_in = config if config.parent == first.drop_ins.directory else None
        return dict.fromkeys(names, Places(None, drop_in, view.file(socket, first.socket)))

    host_socket = view.file(line["socket"] or str(kind.socket), kind.socket)
    drop_in = None
    if kind.drop_ins.takes_ours and line["drop-in-config"]:
        row = next(each for each in rows() if each.name == "drop-in-config")
        guesses = [line["drop-in-config-host-path"], row.default_for(engine)]
        drop_in = view.file(line["drop-in-config"], *[PurePosixPath(guess) for guess in guesses if guess])
    return {engine: Places(config, drop_in, host_socket)}


NAME: Final = "nvidia-ctk-installer"


def main() -> None:
    """Do the work of the command line, and exit with a code of NVIDIA's tool: 1 for every error."""
    program.main(_run_in_environment)


def _run_in_environment(arguments: Sequence[str]) -> int:
    return run(arguments, os.environ)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Read, check and do the work; return the exit code."""
    nvidia_log.configure("auto")
    code = logging.conclude(partial(_run, arguments, environment), leaves=True)
    return min(code, Exit.FAILED)


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    line = read(arguments, environment)
    if line.special:
        lines = _help_lines() if line.special == "help" else _version_lines()
        sys.stdout.write("\n".join(lines) + "\n")
        return Exit.OK
    options = options_from(line)
    allow_files()
    for warning in (*line.warnings, *_warnings(line, options)):
        log.warning("note made", note=warning)
    from installer.lifecycle import install as daemon

    if line["no-daemon"]:
        return int(daemon.install(options))
    return int(daemon.run(RunRequest(options, nvidia=True, log_format=logging.current_format())))


def _version_lines() -> list[str]:
    from installer.host.own_version import describe_version

    return [f"{NAME} version {describe_version()}"]


def _help_lines() -> list[str]:
    lines = [f"usage: {NAME} [DIRECTORY] [flags]", ""]
    for row in rows():
        flags = [f"--{name}" if len(name) > 1 else f"-{name}" for name in row.names]
        variables = [f"[${name}]" for name in row.env]
        lines += _wrap("  ", ", ".join(flags))
        lines += _wrap("      ", " ".join((row.help, *variables)))
    return lines


def _wrap(indent: str, text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, 80, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _warnings(line: CommandLine, options: Options) -> Iterator[str]:
    """Yield a note for each flag with another effect than in NVIDIA's tool."""
    kind = ENGINES[line["runtime"]]
    mode = line[RESTART].lower() if line.given(RESTART) else ""
    if line["set-as-default"] and any(ENGINES[name].built_in_runtime for name in options.engines):
        yield "--set-as-default is ignored: start k3s or RKE2 with --default-runtime nvidia for that"
    if line["ignore-errors"]:
        yield "--ignore-errors is ignored: an installation is complete or not at all"
    if line["use-legacy-config"] and kind.drop_ins.is_imported:
        yield "--use-legacy-config is ignored: containerd reads default_runtime_name since 1.3"
    if mode == "signal" and kind.is_restarted:
        yield f"{kind.title} is restarted by its unit: a signal does not make it read its config"
    if mode == "systemd" and kind.reads_config_on_signal:
        yield f"{kind.title} gets SIGHUP: a restart by its unit would stop its containers"
    if not kind.drop_ins.takes_ours and line["drop-in-config"]:
        yield "--drop-in-config is ignored: Docker has no drop-ins"
    if line["config-mode"] == "hook" and kind.hook_dir:
        yield "--config-mode hook is deprecated"
    for name in ("config", "socket"):
        if line.given(name) and not line[name]:
            yield f"{line.settings[name].by} is empty: the usual path is taken"
