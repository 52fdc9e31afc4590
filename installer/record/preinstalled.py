"""Where an engine starts NRI plugins from, as its own program says, and whether it could start ours."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts, Facts, PluginFile
from installer.decide.nri.relay import PATH, PROGRAMS, SHELL, plugin_name
from installer.decide.options import Options
from installer.decide.parts.nri import CALLED
from installer.host.files import Host
from installer.host.programs import is_program
from installer.record.started import command_line
from installer.record.trial import Trials


def plugin_file(host: Host, options: Options, facts: Facts) -> PluginFile | None:
    """Return where the program goes that leads the engine to the plugin; None where none is asked for."""
    if not (options.serves_nri and options.nri.preinstalled):
        return None
    try:
        engine = _engine(facts.engines)
        directory = Trials(host, facts.contents)(engine, {}).nri_plugins
    except InstallerError as error:
        return PluginFile(lacking=(error,))
    if directory is None:
        return PluginFile(lacking=(_refusal(f"{engine.name} does not tell from where it starts plugins"),))
    against = tuple(_against(host, directory))
    return PluginFile(directory / plugin_name(options.nri), against, command_line(host, engine))


def _engine(engines: Iterable[EngineFacts]) -> EngineFacts:
    """Return the one engine that is to start it."""
    found = [engine for engine in engines if ENGINES[engine.name].process in CALLED]
    if len(found) != 1:
        names = " and ".join(engine.name for engine in found) or "none"
        raise _refusal(f"one engine with NRI has to be on the node, and there is {names}")
    return found[0]


def _against(host: Host, directory: PurePosixPath) -> Iterator[InstallerError]:
    """Yield what keeps the engine from starting a script there."""
    missing = [str(SHELL)] if not is_program(host, SHELL) else []
    missing += [
        name for name in PROGRAMS if not any(is_program(host, PurePosixPath(place, name)) for place in PATH)
    ]
    if missing:
        yield _refusal(f"the node has no {' and no '.join(missing)}")
    for word in host.mounted(directory):
        yield _refusal(f"the file system of {directory} is mounted {word}")


def _refusal(why: str) -> InstallerError:
    return InstallerError(
        f"let the engine start a way to the NRI plugin ({why})",
        remedy=Remedy("leave out ", Option("nri-preinstalled"), ": the plugin connects by NRI's socket"),
        code="nri-unusable",
    )
