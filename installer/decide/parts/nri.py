"""The NRI plugin beside ``run``: it changes nothing, and needs an engine that does what it asks."""

from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts
from installer.decide.nri.served import refuse_dropping
from installer.decide.options import Options
from installer.decide.part import Part

ID: Final = "nri"
# By process: what an engine calls itself towards a plugin. One that is not here has no NRI.
CALLED: Final = {"containerd": "containerd", "crio": "cri-o"}


def install(facts: Facts, options: Options) -> Part:
    """Return what stands against the plugin: every engine of the node would start containers without devices.

    An engine whose version nobody knows yet tells it to the plugin.
    """
    if not options.serves_nri:
        return Part(ID)
    against = [*map(_against, facts.engines)]
    return Part(ID, obstacles=tuple(each for each in against if each) if all(against) else ())


def _against(engine: EngineFacts) -> InstallerError | None:
    called = CALLED.get(ENGINES[engine.name].process, "")
    if not called:
        return InstallerError(
            f"serve {engine.name} by NRI (it has no NRI)",
            remedy="use another mode for it: its containers take devices by --device",
            code="nri-unusable",
        )
    if not engine.version:
        return None
    try:
        refuse_dropping(called, ".".join(map(str, engine.version)))
    except InstallerError as error:
        return error
    return None
