"""What is asked for that is about runtimes of ours: by CDI alone it is refused, or told to have no effect.

Only what differs from its default counts: a manifest may set all its variables.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from installer.decide.errors import UsageError
from installer.decide.options import RUNTIME_NAME, Options, RestartMode

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


def runtime_asked_by(options: Options) -> tuple[str, ...]:
    """Return the flags that were given and need a runtime of ours."""
    return _given(NEEDS_RUNTIME, options)


def refuse_runtime_by_cdi(options: Options) -> None:
    """Raise where engines are to be left alone, and a runtime is asked for all the same.

    Raises:
        UsageError: always in that case.
    """
    flags = runtime_asked_by(options)
    if options.mode.by_cdi and flags:
        raise UsageError(
            f"leave engines to CDI alone with {' and '.join(flags)}",
            remedy=f"leave {'that' if len(flags) == 1 else 'those'} out, or use --mode runtime",
        )


def without_effect(options: Options) -> str:
    """Return what is to be said of flags that change nothing where no engine is changed; "" for nothing."""
    flags = _given(OF_RUNTIMES, options)
    have = "has" if len(flags) == 1 else "have"
    return (
        f"{' and '.join(flags)} {have} no effect by CDI: no engine is configured or restarted"
        if flags
        else ""
    )


def _given(rows: Asked, options: Options) -> tuple[str, ...]:
    return tuple(flag for flag, asked in rows if asked(options))
