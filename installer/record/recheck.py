"""The gate once more, right before an engine reads its configs: somebody may have written to them since."""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import ConflictError, InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.restarts import elsewhere
from installer.decide.steps import Step, WriteConfig
from installer.host.files import Host
from installer.record.configs import contents_of, with_readable_configs
from installer.record.started import with_flags
from installer.record.trial import Trials


def refuse_changed(
    host: Host, engine: EngineFacts, seen: Mapping[PurePosixPath, str], done: Iterable[Step]
) -> None:
    """Raise where an engine would not come up with what others have written since the gate was asked.

    ``seen`` are the digests of what was read then, ``done`` the steps since. Where nothing has changed but by
    these nobody is asked.

    Raises:
        ConflictError: it would not; or it is signalled, and nobody knows what it makes of such a text.
    """
    if error := with_flags(host, engine).not_restarted:
        raise ConflictError(error.problem, remedy=error.remedy, code=error.code)
    try:
        broken = _broken(host, engine, {**seen, **_written(done)})
    except InstallerError as error:
        broken = error.problem
    if broken:
        verb = "reload" if ENGINES[engine.name].reload is ReloadMethod.HUP else "restart"
        raise ConflictError(
            f"{verb} {engine.title} ({broken})",
            remedy=f"look at what has just been written to the config of {engine.title}, then run again",
        )


def _written(steps: Iterable[Step]) -> dict[PurePosixPath, str]:
    return {
        step.path: step.after.digest if step.after else "" for step in steps if isinstance(step, WriteConfig)
    }


def _broken(host: Host, engine: EngineFacts, expected: Mapping[PurePosixPath, str]) -> str:
    """Return why an engine would not come up, "" where it would or nothing has changed."""
    now = with_readable_configs(host, ENGINES[engine.name], engine)
    now = replace(now, files=tuple(dict.fromkeys((*now.files, *engine.files))))
    contents = contents_of(host, now.files)
    changed = [
        path for path, file in contents.items() if (file.digest if file else "") != expected.get(path, "")
    ]
    changed += sorted(now.unreadable - engine.unreadable)
    if not changed:
        return ""
    names = ", ".join(map(str, changed))
    if ENGINES[engine.name].reload is ReloadMethod.HUP:
        return f"somebody else has just written {names}"
    after = Trials(host, contents)(now, contents)
    if engine.serving is None and after.rest_digest:
        return ""  # its CRI is off, and was before
    reason = after.fatal or "; ".join(error.problem for error in elsewhere(engine, after))
    return reason and f"it would not come up again, somebody else has just written {names}: {reason}"
