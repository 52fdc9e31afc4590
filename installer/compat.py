"""The entry points ``nvidia-toolkit`` and ``nvidia-ctk-installer``: NVIDIA's command line, our work."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from installer import log as logging
from installer.compat_options import RESTART, options_from
from installer.compat_words import Asked, read, rows, spelt
from installer.decide.engines import ENGINES
from installer.decide.engines.row import DropIns, Engine, ReloadMethod
from installer.decide.errors import Exit, InstallerError
from installer.decide.options import Options
from installer.host import signals
from installer.host.events import log
from installer.host.limits import refuse_few_files, refuse_little_memory
from installer.host.streams import open_standard_streams
from installer.record.internal import internal_errors

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
        sys.stdout.write(_usage() if asked.special == "help" else f"{NAME} version {_version()}\n")
        return Exit.OK
    options = options_from(asked)
    refuse_little_memory()
    refuse_few_files()
    for warning in (*asked.warnings, *_warnings(asked, options)):
        log.warning("command line note", note=warning)
    from installer import daemon

    return int(daemon.install(options) if asked["no-daemon"] else daemon.run(options))


def _warnings(asked: Asked, options: Options) -> Iterator[str]:
    """Yield what is taken otherwise than NVIDIA's tool would take it."""
    engine = asked["runtime"]
    if asked["set-as-default"] and any(ENGINES[name].finds for name in options.engines):
        yield "--set-as-default is ignored: start k3s or RKE2 with --default-runtime nvidia for that"
    if asked["ignore-errors"]:
        yield "--ignore-errors is ignored: an installation is complete or not at all"
    if asked["use-legacy-config"] and ENGINES[engine].drop_ins is DropIns.IMPORTED:
        yield "--use-legacy-config is ignored: containerd reads default_runtime_name since 1.3"
    if asked.given(RESTART):
        yield from _other_way(asked[RESTART].lower(), ENGINES[engine])
    if ENGINES[engine].drop_ins is DropIns.NONE and asked["drop-in-config"]:
        yield "--drop-in-config is ignored: Docker has no drop-ins"
    if asked["config-mode"] == "hook" and ENGINES[engine].hook_dir:
        yield "--config-mode hook is deprecated"
    for name in ("config", "socket"):
        if asked.given(name) and not asked[name]:
            yield f"{asked.said[name].by} is empty: the usual path is taken"


def _other_way(mode: str, engine: Engine) -> Iterator[str]:
    """Yield that an engine is reloaded in the one way that works, where another one was asked for."""
    if mode == "signal" and engine.reload is ReloadMethod.RESTART:
        yield f"{engine.title} is restarted by its unit: a signal does not make it read its config"
    if mode == "systemd" and engine.reload is ReloadMethod.HUP:
        yield f"{engine.title} gets SIGHUP: a restart by its unit would stop its containers"


def _usage() -> str:
    lines = [f"usage: {NAME} [DIRECTORY] [flags]", ""]
    for row in rows():
        flags = ", ".join(f"{'--' if len(name) > 1 else '-'}{name}" for name in row.names)
        lines += [f"  {flags}", f"      {row.help} {' '.join(f'[${name}]' for name in row.env)}".rstrip()]
    return "\n".join(lines) + "\n"


def _version() -> str:
    from importlib.metadata import version

    return version("node-toolkit-installer")


if __name__ == "__main__":
    main()
