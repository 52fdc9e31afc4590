"""The entry points ``nvidia-toolkit`` and ``nvidia-ctk-installer``: NVIDIA's command line, our work."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from installer.cli import log as logging
from installer.cli import nvidia_log, program
from installer.cli.nvidia_flags import CommandLine, read, rows
from installer.engines import ENGINES, list_generating
from installer.engines.dependencies import read_os_release
from installer.errors import Exit, InstallerError, UsageError
from installer.host.events import log
from installer.host.files import Host
from installer.host.inodes import is_mount_point, resolve_local
from installer.host.kernel import allow_files, list_mounts
from installer.model.engine import Extras, ReloadMethod
from installer.model.files import ROOT
from installer.model.nri import DEFAULT_SOCKET, Allowed, Identity, Nri
from installer.model.options import Cdi, Options, Places, RestartMode, RunRequest, ToolkitConfig

DEB_LIKE: Final = frozenset({"debian", "ubuntu"})
RPM_LIKE: Final = frozenset({"rhel", "fedora", "centos", "suse", "opensuse", "sles", "amzn", "azurelinux"})
OPERATORS: Final = PurePosixPath("/runtime")  # where the GPU Operator mounts what belongs to an engine
ARTIFACTS: Final = PurePosixPath("/artifacts")
# Flags with a path that are also checked where nothing reads it as one.
PATHS: Final = ("driver-root", "driver-root-ctr-path", "dev-root", "dev-root-ctr-path", "toolkit-source-root")
PID_NAME: Final = "toolkit.pid"
RESTART: Final = "restart-mode"
HIGHEST_NRI_INDEX: Final = 99
SOURCE: Final = re.compile(r"command|file(=.+)?")
# Vendor and class of a CDI device (CDI specification 0.8, "kind").
# One letter alone is allowed there, and ends engines that read it (engine-facts.md#cdi-kind-of-one-letter).
KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]")


def options_from(line: CommandLine) -> Options:
    """Return what a command line comes to, or raise UsageError before anything is touched."""
    _check(line)
    files_only = line["no-runtime-config"] or line["enable-nri-plugin"]
    view = _View.of(line)
    # Each of these may tell of a mount, so the mounts are known after them.
    install_dir = view.directory(line["toolkit-install-dir"])
    pid_file, hook = view.file(line["pid-file"]), None
    if ENGINES[line["runtime"]].hook_dir and line["config-mode"] == "hook":
        hook = view.file(str(PurePosixPath(line["hooks-dir"], line["hook-filename"])))
    places, cdi, nri = _places(line, view), _cdi(line, view), _nri(line, view)
    return Options(
        engines=() if files_only else tuple(places),
        toolkit_source=_source(line, view.host),
        install_dir=install_dir,
        host_root=view.root,
        mounts=tuple(view.mounts.items()),
        driver_root=line["driver-root"],
        toolkit=_toolkit(line),
        low_level=tuple(line["nvidia-container-runtime.runtimes"]),
        extras=Extras(
            cdi=line["enable-cdi-in-runtime"] if line.given("enable-cdi-in-runtime") else cdi is not None,
            annotations=tuple(line["nvidia-container-runtime-modes.cdi.annotation-prefixes"]),
            runtime_type=line["runtime-type"],
            override=_override(line["runtime-config-override"]),
        ),
        cdi=cdi,
        runtime_name=line["runtime-name"] or "nvidia",
        set_as_default=line["set-as-default"] and not ENGINES[next(iter(places))].built_in_runtime,
        places=places,
        crio_hook=hook,
        restart_mode=RestartMode.NONE if line[RESTART].lower() == "none" else RestartMode.AUTO,
        pid_file=pid_file,
        timeout_s=float(line["timeout"]),
        retry=line["retry"],
        nri=nri,
    )


class _View(Struct, frozen=True):
    """The paths of this container as the host's; ``mounts`` collects where the host's are found."""

    root: PurePosixPath
    host: Host
    mounts: dict[PurePosixPath, PurePosixPath]

    @classmethod
    def of(cls, line: CommandLine) -> "_View":
        root = resolve_local(_absolute(line["host-root"] or "/"))
        if _is_empty(root):
            root = ROOT
        view = cls(root, Host.under(root), {})
        for each in ("driver-root", "dev-root"):
            # A directory of the host may be found somewhere else, if its root does not bring it anyway.
            path = PurePosixPath(line[each] or line["driver-root"] or "/")
            if ROOT not in {root, path}:
                here = line[f"{each}-ctr-path"] or line["driver-root-ctr-path"] or "/"
                local = resolve_local(_absolute(here), root)
                if not local.is_relative_to(root) and path != local:
                    view.mounts[view.host.resolve(path)] = local
        return view

    def file(self, here: str, *guesses: PurePosixPath) -> PurePosixPath:
        """Return the host's path of a file: it is mounted by itself, or its directory is."""
        path = _absolute(here)
        if self.root != ROOT and is_mount_point(Path(resolve_local(path))):
            found = _find_host_path(path, self.host, self.root, guesses) or path
            # A file that is mounted by itself cannot be replaced: only through its directory.
            return found if _is_same(path, self.host, found) else self._map(path, guesses)
        return self._map(path.parent, [guess.parent for guess in guesses]) / path.name

    def directory(self, here: str) -> PurePosixPath:
        """Return the host's path of a directory."""
        return self._map(_absolute(here), ())

    def _map(self, here: PurePosixPath, guesses: Sequence[PurePosixPath]) -> PurePosixPath:
        """Return the host's path of ``here``; what no mount has brought is the host's path already."""
        real = resolve_local(here, *({self.root} - {ROOT}))
        if self.root == ROOT:
            # Without the host's root nothing can be compared: the operator's mounts are known by their place.
            found = guesses[0] if guesses and real.is_relative_to(OPERATORS) else None
        elif real.is_relative_to(self.root):
            return ROOT / real.relative_to(self.root)
        else:
            found = _find_host_path(here, self.host, self.root, guesses)
        if found and not (found == here and self.root == ROOT):
            self.mounts[self.host.resolve(found)] = real
        return found or here


def _find_host_path(
    local: PurePosixPath, host: Host, root: PurePosixPath, guesses: Sequence[PurePosixPath]
) -> PurePosixPath | None:
    """Return the path of the ``host`` of ``local``, which a mount has brought; None where none has.

    The kernel tells what is mounted where, and the path within its file system; ``guesses`` are what
    ``local`` may be on the host. The candidate whose mount point is the same inode below the host's ``root``
    is right. Where none is, a mount at just this place is taken for the first guess, or for the host's path
    of that name; a wider one (the container's own /run) has nothing to do with the host.
    """
    real = resolve_local(local, root)
    points = [(PurePosixPath(point), PurePosixPath(within)) for point, within in list_mounts()]
    above = [mount for mount in points if mount[0] != ROOT and real.is_relative_to(mount[0])]
    if not above:
        return None
    point, within = max(above, key=lambda mount: len(mount[0].parts))
    below = real.relative_to(point)
    named = [path for path in (*guesses, local, real) if ".." not in path.parts]
    cuts = [(path.parts, len(path.parts) - len(below.parts)) for path in named]
    outer = [PurePosixPath(*parts[:cut]) for parts, cut in cuts if cut > 0 and parts[cut:] == below.parts]
    tails = [PurePosixPath("/", *within.parts[cut:]) for cut in range(1, len(within.parts))]
    proven = next((path / below for path in (*outer, *tails) if _is_same(point, host, path)), None)
    # What hides the mount point's own inode below the host's root need not hide that of the directory in it.
    proven = proven or next((path for path in named if _is_same(real, host, path)), None)
    return proven or (named[0] if point == real else None)


def _is_same(local: PurePosixPath, host: Host, candidate: PurePosixPath) -> bool:
    """Tell whether ``local`` is what the host has at ``candidate``."""
    with suppress(OSError, InstallerError):
        return os.path.samestat(Path(local).stat(), host.place(candidate).local_path.stat())
    return False


def _is_empty(local: PurePosixPath) -> bool:
    """Tell whether there is nothing in a directory, or no directory."""
    with suppress(OSError):
        return not any(Path(local).iterdir())
    return True


def _absolute(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if not path.is_absolute():
        raise UsageError(f"use the path {text}", remedy="give an absolute path")
    return path


def _check(line: CommandLine) -> None:
    """Raise where a value is none of those that NVIDIA's tool takes."""
    for row in rows():
        value = line[row.name]
        if row.choices and (value.lower() if row.name == RESTART else value) not in row.choices:
            expected = ", ".join(choice for choice in row.choices if choice)
            raise UsageError(f"use {value!r} as --{row.name}", remedy=f"give one of {expected}")
    if not line["toolkit-install-dir"]:
        raise UsageError("install without a directory", remedy="name it with --root")
    if PurePosixPath(line["pid-file"]).name != PID_NAME:
        raise UsageError(f"use the pidfile {line['pid-file']!r}", remedy=f"give it the name {PID_NAME}")
    for source in (each for each in line["config-source"] if not SOURCE.fullmatch(each)):
        raise UsageError(f"use {source!r} as --config-source", remedy="give command, file or file=PATH")
    for value in (each for each in line["create-device-nodes"] if each not in {"", "none", "control"}):
        raise UsageError(f"use {value!r} as --create-device-nodes", remedy="give control or none")
    for name in PATHS:
        if line[name]:
            _absolute(line[name])
    if not KIND.fullmatch(line["cdi-kind"]):
        raise UsageError(f"use {line['cdi-kind']!r} as --cdi-kind", remedy="give it as VENDOR/CLASS")
    if line["nri-plugin-index"] > HIGHEST_NRI_INDEX:
        raise UsageError(f"use {line['nri-plugin-index']} as --nri-plugin-index", remedy="give 0 to 99")
    if line["enable-nri-plugin"] and not line["nri-namespace"]:
        raise UsageError("enable the NRI plugin without a namespace", remedy="name it with --nri-namespace")


def _nri(line: CommandLine, view: _View) -> Nri:
    """Return what the plugin is asked for, which ends with the daemon: without one there is none."""
    if not line["enable-nri-plugin"] or line["no-daemon"]:
        return Nri()
    namespaces = dict.fromkeys((line["nri-namespace"], *line["nri-management-cdi-device-namespaces"]))
    return Nri(
        view.file(line["nri-socket"], DEFAULT_SOCKET),
        Identity.of(Identity().name, f"{line['nri-plugin-index']:02}"),
        tuple(Allowed.of(f"{namespace}={line['cdi-kind']}") for namespace in namespaces),
        beside=True,
    )


def _source(line: CommandLine, host: Host) -> PurePosixPath:
    """Return where the toolkit is; packages suit the host's os-release, else whichever tool it has."""
    if line["toolkit-source-root"]:
        return PurePosixPath(line["toolkit-source-root"])
    kind: str = line["toolkit-package-type"]
    if kind in {"", "auto"}:
        release = read_os_release(host)
        families = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
        rpm, dpkg = (host.exists(PurePosixPath("/usr/bin", name)) for name in ("rpm", "dpkg"))
        by_rpm = families & RPM_LIKE or (rpm and not dpkg)
        kind = "rpm" if by_rpm and not families & DEB_LIKE else "deb"
    return ARTIFACTS / kind


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
    if line.given(prefixes := f"{section}.modes.cdi.annotation-prefixes"):
        given["cdi_annotation_prefixes"] = tuple(line[prefixes])
    return ToolkitConfig(
        **given,
        accept_envvar_when_unprivileged=line["accept-nvidia-visible-devices-envvar-when-unprivileged"],
        accept_volume_mounts=line["accept-nvidia-visible-devices-as-volume-mounts"],
        skip_mode_detection=line[f"{section}-hook.skip-mode-detection"],
        features=tuple(line["opt-in-features"]),
    )


def _cdi(line: CommandLine, view: _View) -> Cdi | None:
    if not (line["cdi-enabled"] and line["cdi-output-dir"]):
        return None
    driver, here = line["driver-root"] or "/", line["driver-root-ctr-path"] or "/"
    return Cdi(
        directory=view.directory(line["cdi-output-dir"]),
        kind=line["cdi-kind"],
        driver_root=driver,
        local_driver_root=here,
        dev_root=line["dev-root"] or driver,
        local_dev_root=line["dev-root-ctr-path"] or here,
        nodes={*line["create-device-nodes"]} == {"control"},
    )


def _override(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        tree = json.loads(text or "{}")
        if isinstance(tree, dict) and None not in tree.values():
            return tree
    raise UsageError("read --runtime-config-override (it is no JSON object)", remedy='write {"KEY": VALUE}')


def _places(line: CommandLine, view: _View) -> dict[str, Places]:
    """Return the engine that is asked for, and where it is."""
    engine = line["runtime"]
    row = ENGINES[engine]
    config = view.file(line["config"] or str(row.config), row.config)
    # NVIDIA's tool knows engines that write their config themselves as a containerd with other paths: one is
    # given the drop-in alone, and only their unit tells which of k3s and RKE2 it is.
    if names := list_generating(row.process, config, PurePosixPath(line["socket"])):
        first = ENGINES[names[0]]
        here = line["socket"] if line.given("socket") and line["socket"] else str(first.socket)
        drop_in = config if config.parent == first.drop_ins.directory else None
        return dict.fromkeys(names, Places(None, drop_in, view.file(here, first.socket)))
    socket, drop_in = view.file(line["socket"] or str(row.socket), row.socket), None
    if row.drop_ins.takes_ours and line["drop-in-config"]:
        usual = next(each for each in rows() if each.name == "drop-in-config").default_for(engine)
        guesses = [PurePosixPath(guess) for guess in (line["drop-in-config-host-path"], usual) if guess]
        drop_in = view.file(line["drop-in-config"], *guesses)
    return {engine: Places(config, drop_in, socket)}


NAME: Final = "nvidia-ctk-installer"


def main() -> None:
    """Do what NVIDIA's tool is asked to do, and exit with its codes: every error is 1."""
    program.main(lambda words: run(words, os.environ))


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Read, check, do; return the exit code."""
    nvidia_log.configure("auto")
    return min(logging.conclude(lambda: _run(arguments, environment), leaves=True), Exit.FAILED)


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    line = read(arguments, environment)
    if line.special:
        from installer.cli.version import describe_version

        lines = [f"{NAME} version {describe_version()}"]
        if line.special == "help":
            lines = [f"usage: {NAME} [DIRECTORY] [flags]", ""]
            for row in rows():
                names = (f"{'--' if len(name) > 1 else '-'}{name}" for name in row.names)
                lines += _wrap("  ", ", ".join(names))
                lines += _wrap("      ", " ".join((row.help, *(f"[${name}]" for name in row.env))))
        sys.stdout.write("\n".join(lines) + "\n")
        return Exit.OK
    options = options_from(line)
    allow_files()
    for warning in (*line.warnings, *_warnings(line, options)):
        log.warning("command line note", note=warning)
    from installer.lifecycle import install as daemon

    if line["no-daemon"]:
        return int(daemon.install(options))
    return int(daemon.run(RunRequest(options, nvidia=True, log_format=logging.current_format())))


def _wrap(indent: str, text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, 80, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _warnings(line: CommandLine, options: Options) -> Iterator[str]:
    """Yield what is taken otherwise than NVIDIA's tool would take it."""
    spec, mode = ENGINES[line["runtime"]], line[RESTART].lower() if line.given(RESTART) else ""
    if line["set-as-default"] and any(ENGINES[name].built_in_runtime for name in options.engines):
        yield "--set-as-default is ignored: start k3s or RKE2 with --default-runtime nvidia for that"
    if line["ignore-errors"]:
        yield "--ignore-errors is ignored: an installation is complete or not at all"
    if line["use-legacy-config"] and spec.drop_ins.is_imported:
        yield "--use-legacy-config is ignored: containerd reads default_runtime_name since 1.3"
    if mode == "signal" and spec.reload is ReloadMethod.RESTART:
        yield f"{spec.title} is restarted by its unit: a signal does not make it read its config"
    if mode == "systemd" and spec.reload is ReloadMethod.HUP:
        yield f"{spec.title} gets SIGHUP: a restart by its unit would stop its containers"
    if not spec.drop_ins.takes_ours and line["drop-in-config"]:
        yield "--drop-in-config is ignored: Docker has no drop-ins"
    if line["config-mode"] == "hook" and spec.hook_dir:
        yield "--config-mode hook is deprecated"
    for name in ("config", "socket"):
        if line.given(name) and not line[name]:
            yield f"{line.settings[name].by} is empty: the usual path is taken"
