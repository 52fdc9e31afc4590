"""Why a runtime of ours stays with an engine though an undo was asked for."""

from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.part import TRY_AGAIN


def needed_next(found: EngineFacts | None, names: frozenset[str]) -> dict[str, InstallerError]:
    """Return which runtime of ours the next start of an engine needs that runs without such a flag."""
    name = found.next_flags.default if found else ""
    if found is None or name not in names or name == found.flags.default:
        return {}
    error = InstallerError(
        f"take the runtime {name} away from {found.title} (its unit starts it with --default-runtime {name})",
        remedy=f"take that out of the unit, then {TRY_AGAIN}",
        code="runtime-needed",
    )
    return {name: error}


def default_of_others(engine: EngineFacts, name: str, paths: str) -> InstallerError:
    """Return why a runtime of ours stays that its engine's owner has made the default."""
    if name == engine.flags.default:
        return InstallerError(
            f"take the runtime {name} away from {engine.title} "
            f"(it was started with --default-runtime {name})",
            remedy=f"start {engine.title} without that, then {TRY_AGAIN}",
            code="runtime-needed",
        )
    return InstallerError(
        f"take the runtime {name} away from {engine.title} (it was made the default in {paths})",
        remedy=f"name another default runtime there, then {TRY_AGAIN}",
        code="runtime-needed",
    )
