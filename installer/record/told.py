"""How a step that was done is told in the log."""

from typing import assert_never

from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.steps import (
    ConcreteStep,
    FindRuntimes,
    InstallVersion,
    MakeDeviceNodes,
    MakeDirectory,
    ProveUnused,
    Reload,
    RemoveDeviceNodes,
    RemoveDirectory,
    RemoveToolkit,
    RemoveVersion,
    SwitchToolkit,
    WriteConfig,
    paths_of,
)


def past(step: ConcreteStep) -> str:
    """Return the event that a step is when it is done."""
    match step:
        case MakeDirectory():
            return "directory made"
        case RemoveDirectory():
            return "directory removed"
        case FindRuntimes():
            return "runtimes found by the engine"
        case WriteConfig(_, _, _, after):
            return "config written" if after else "config removed"
        case InstallVersion():
            return "toolkit installed"
        case RemoveVersion() | RemoveToolkit() | SwitchToolkit(None, None):
            return "toolkit removed"
        case SwitchToolkit():
            return "toolkit switched"
        case Reload(engine):
            by_itself = ENGINES[engine].reload is ReloadMethod.ITSELF
            return "engine restarted by itself" if by_itself else "engine reloaded"
        case MakeDeviceNodes():
            return "device nodes made"
        case RemoveDeviceNodes():
            return "device nodes removed"
        case ProveUnused():
            return "no container found on our runtimes"
        case _:
            assert_never(step)


def fields(step: ConcreteStep) -> dict[str, str]:
    """Return the facts of that event."""
    match step:
        case MakeDirectory(path) | RemoveDirectory(path):
            return {"path": str(path)}
        case MakeDeviceNodes(nodes) | RemoveDeviceNodes(nodes):
            return {"paths": paths_of(nodes)}
        case WriteConfig(engine, path):
            return {"engine": engine, "path": str(path)}
        case InstallVersion(version) | RemoveVersion(version):
            return {"version": version}
        case SwitchToolkit(_, after):
            return {"target": after or "previous"}
        case Reload(engine) | FindRuntimes(engine):
            return {"engine": engine}
        case RemoveToolkit() | ProveUnused():
            return {}
        case _:
            assert_never(step)
