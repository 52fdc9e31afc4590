"""How containers get their GPUs on this node, and why: in the words of the engines that run."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts
from installer.decide.for_runtimes import runtime_asked_by
from installer.decide.options import GPU_KIND, Mode, Options
from installer.decide.rows import Record

Version: TypeAlias = tuple[int, ...]
SPEC_DIR: Final = PurePosixPath("/var/run/cdi")
SPECIFICATION: Final = SPEC_DIR / f"{GPU_KIND.replace('/', '-')}.json"
# What an engine may call it: the one is a link to the other on every system of today.
SPEC_DIRS: Final = frozenset({SPEC_DIR, PurePosixPath("/run/cdi")})
# By process: the first release that hands the CDI devices of a kubelet on; earlier ones only read files.
HANDS_OVER: Final[Mapping[str, Version]] = {"crio": (1, 28)}
# By process: with which release, or setting, an engine has CDI (engine-facts.md#cdi-in-force).
WITH_CDI: Final[Mapping[str, str]] = {
    "containerd": "containerd 2.0 has CDI switched on, 1.7 with enable_cdi = true in its config, restarted",
    "dockerd": "Docker 28.2 has CDI switched on, 25 with features.cdi = true in daemon.json, restarted",
    "crio": "CRI-O hands such devices over from 1.28 on",
}
# By process: the version of a specification that a release, and later ones, read at the most, None where
# nobody has looked (engine-facts.md#cdi-in-force).
READS: Final[Mapping[str, tuple[tuple[Version, Version | None], ...]]] = {
    "containerd": (
        ((2, 3), (1, 1, 0)),
        ((2, 1), (1, 0, 0)),
        ((2, 0), (0, 8, 0)),
        ((1, 7, 16), (0, 7, 0)),
        ((0,), (0, 5, 0)),
    ),
    "crio": (((1, 35), (1, 1, 0)), ((1, 34), (1, 0, 0)), ((1, 30), (0, 7, 0)), ((0,), (0, 6, 0))),
    "dockerd": (((26, 1), None), ((0,), (0, 6, 0))),
}


def highest_read(engines: Iterable[EngineFacts]) -> Version | None:
    """Return the version of a specification up to which all of the engines read; None where nobody knows."""
    found = [read_by(each.name, each.version) for each in engines if each.version]
    return min((read for read in found if read is not None), default=None)


def read_by(name: str, version: Version) -> Version | None:
    """Return the version of a specification up to which an engine reads; None if nobody knows."""
    return next((read for since, read in READS[ENGINES[name].process] if version >= since), None)


def mode_of(engines: Iterable[EngineFacts], held: Record, options: Options) -> tuple[Mode, str]:
    """Return the mode, never ``auto``, and for ``auto`` why it is this one."""
    if options.mode is not Mode.AUTO:
        return options.mode, ""
    against = next(_for_runtimes(tuple(engines), held, options), "")
    if against:
        return Mode.RUNTIME, against
    return Mode.CDI, "every engine has CDI in effect, and nobody asks for a runtime: nothing is restarted"


def _for_runtimes(engines: tuple[EngineFacts, ...], held: Record, options: Options) -> Iterator[str]:
    """Yield why engines are to serve runtimes of ours."""
    if held.engines:
        yield f"{held.engines[0].title} has runtimes of ours already"
    if flags := runtime_asked_by(options):
        yield f"a runtime is asked for by {' and '.join(flags)}"
    if not engines:
        yield "no engine is to be asked"
    for engine in engines:
        if lacks := lacking(engine):
            yield f"{engine.title} takes no devices by CDI ({lacks})"


def lacking(engine: EngineFacts) -> str:
    """Return why containers of this engine get no devices by CDI, in its own words; "" where they do."""
    serving = engine.serving
    if serving is None:
        return engine.silence
    if serving.cdi is None:
        return "it knows nothing of CDI"
    if not serving.cdi:
        return "it says that CDI is switched off"
    if engine.version and engine.version < HANDS_OVER.get(ENGINES[engine.name].process, ()):
        return f"{'.'.join(map(str, engine.version))} does not hand over what a kubelet asks for"
    if not SPEC_DIRS & {*serving.cdi_dirs}:
        return (
            f"it reads specifications in {' and '.join(map(str, serving.cdi_dirs)) or 'no directory'} alone"
        )
    return ""


def against_cdi(engines: Iterable[EngineFacts], held: Record) -> Iterator[InstallerError]:
    """Yield what stands against CDI alone on this node."""
    for row in held.engines:
        yield InstallerError(
            f"leave {row.title} to CDI (it has runtimes of ours since an earlier install)",
            remedy=Remedy("run toolkit-installer uninstall first, or keep ", Option("mode", "runtime")),
            code="mode-unusable",
        )
    for engine in engines:
        if engine.serving is None:
            yield InstallerError(
                f"ask {engine.title} whether it takes devices by CDI ({engine.silence})",
                remedy=engine.remedy
                or Remedy(
                    f"start {engine.title}, see why it does not answer, or leave it out of ",
                    Option("runtime"),
                ),
                code="engine-not-answering",
            )
        elif lacks := lacking(engine):
            since = WITH_CDI[ENGINES[engine.name].process]
            yield InstallerError(
                f"give containers of {engine.title} GPUs by CDI ({lacks})",
                remedy=Remedy("use ", Option("mode", "runtime"), f"; {since}"),
                code="mode-unusable",
            )
