"""How containers get their GPUs on this node, and why: in the words of the engines that run."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from installer.engines import ENGINES
from installer.errors import InstallerError, Option, Remedy
from installer.model.engine_spec import Version
from installer.model.facts import EngineState
from installer.model.options import GPU_KIND, RUNTIME_NAME, Mode, Options, RestartMode
from installer.model.record import Record

SPEC_DIR: Final = PurePosixPath("/var/run/cdi")
SPECIFICATION: Final = SPEC_DIR / f"{GPU_KIND.replace('/', '-')}.json"
# What an engine may call it: the one is a link to the other on every system of today.
SPEC_DIRS: Final = frozenset({SPEC_DIR, PurePosixPath("/run/cdi")})


def highest_read(engines: Iterable[EngineState]) -> Version | None:
    """Return the version of a specification up to which all of the engines read; None if unknown."""
    found = [read_by(each.name, each.version) for each in engines if each.version]
    return min((read for read in found if read is not None), default=None)


def read_by(name: str, version: Version) -> Version | None:
    """Return the version of a specification up to which an engine reads; None if unknown."""
    return next((read for since, read in ENGINES[name].cdi.reads if version >= since), None)


def mode_of(engines: Iterable[EngineState], record: Record, options: Options) -> tuple[Mode, str]:
    """Return the mode, never ``auto``, and for ``auto`` why it is this one."""
    if options.mode is not Mode.AUTO:
        return options.mode, ""
    against = next(_for_runtimes(tuple(engines), record, options), "")
    if against:
        return Mode.RUNTIME, against
    return Mode.CDI, "every engine has CDI in effect, and no runtime was asked for: nothing is restarted"


def _for_runtimes(engines: tuple[EngineState, ...], record: Record, options: Options) -> Iterator[str]:
    """Yield why engines are to serve runtimes of ours."""
    if record.engines:
        yield f"{record.engines[0].title} has runtimes of ours already"
    if flags := [flag for flag, asked in NEEDS_RUNTIME if asked(options)]:
        yield f"a runtime is asked for by {' and '.join(flags)}"
    if not engines:
        yield "no engine is to be asked"
    for engine in engines:
        if lacks := lacking(engine):
            yield f"{engine.title} takes no devices by CDI ({lacks})"


def lacking(engine: EngineState) -> str:
    """Return why containers of this engine get no devices by CDI, in its own words; "" where they do."""
    serving = engine.serving
    if serving is None:
        return engine.silence
    if serving.cdi is None:
        return "it knows nothing of CDI"
    if not serving.cdi:
        return "it says that CDI is switched off"
    if engine.version and engine.version < engine.spec.cdi.hands_over:
        return f"{'.'.join(map(str, engine.version))} does not hand over what a kubelet asks for"
    if not SPEC_DIRS & {*serving.cdi_dirs}:
        return (
            f"it reads specifications in {' and '.join(map(str, serving.cdi_dirs)) or 'no directory'} alone"
        )
    return ""


def against_cdi(engines: Iterable[EngineState], record: Record) -> Iterator[InstallerError]:
    """Yield what stands against CDI alone on this node."""
    for row in record.engines:
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
            since = engine.spec.cdi.since
            yield InstallerError(
                f"give containers of {engine.title} GPUs by CDI ({lacks})",
                remedy=Remedy("use ", Option("mode", "runtime"), f"; {since}"),
                code="mode-unusable",
            )


Asked: TypeAlias = tuple[tuple[str, Callable[[Options], bool]], ...]
# Who gives one of these relies on a runtime: without it containers would be refused, or start without a GPU.
NEEDS_RUNTIME: Final[Asked] = (
    ("--set-as-default", lambda options: options.set_as_default),
    ("--runtime-name", lambda options: options.runtime_name != RUNTIME_NAME),
    ("--crio-hook", lambda options: options.crio_hook is not None),
    (
        "--accept-nvidia-visible-devices-as-volume-mounts",
        lambda options: options.toolkit.accept_volume_mounts,
    ),
)
# What one of these says about engines and their runtimes is so in any case, where none is changed.
OF_RUNTIMES: Final[Asked] = (
    ("--config", lambda options: any(each.config for each in options.places.values())),
    ("--drop-in-config", lambda options: any(each.drop_in for each in options.places.values())),
    ("--restart-mode", lambda options: options.restart_mode is not RestartMode.AUTO),
    ("--retry", lambda options: options.retry),
    (
        "--no-accept-nvidia-visible-devices-envvar-when-unprivileged",
        lambda options: not options.toolkit.accept_envvar_when_unprivileged,
    ),
)


def without_effect(options: Options) -> str:
    """Return what is to be said of flags that change nothing where no engine is changed; "" for nothing."""
    flags = [flag for flag, asked in OF_RUNTIMES if asked(options)]
    if not flags:
        return ""
    have = "has" if len(flags) == 1 else "have"
    return f"{' and '.join(flags)} {have} no effect by CDI: no engine is configured or restarted"
