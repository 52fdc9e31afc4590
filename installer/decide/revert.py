"""How one engine takes up its configs without us, and when it need not."""

from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.facts import EngineFacts, Facts
from installer.decide.kept import Least
from installer.decide.options import RestartMode
from installer.decide.reloading import take_up
from installer.decide.steps import Reload, Step


def revert(
    reload: Reload, least: Least, found: EngineFacts | None, facts: Facts, restart_mode: RestartMode
) -> list[Step]:
    """Return the steps for one engine; one that is stopped will read its file anyway."""
    writes = least.attempt.writes
    # One that looks for the toolkit by itself will not find it at its next start; one whose files said
    # what we wanted before we came has nothing to read.
    unread = not writes or restart_mode is RestartMode.NONE
    asleep = unread or found is None or found.stopped
    # After an unclean end a SIGHUP may still be on its way; another one costs dockerd nothing.
    sure = ENGINES[reload.engine].reload is not ReloadMethod.HUP or facts.held.finished
    told = found.serving if found is not None and not found.outdated else None
    if reload.present and not reload.demoted:
        # What others say of the same handlers looks alike before and after.
        sure = facts.held.finished and all(step.before == step.after for step in writes)
    wrote = any(step.before != step.after for step in writes) or not facts.held.finished
    sure = sure and (not wrote or _in_force(told, least.now, least.after))
    forgotten = asleep or (sure and told is not None and reload.satisfied_by(told))
    if forgotten:
        return [step for step in writes if step.before != step.after]
    # Whatever dockerd has by now: somebody may have told it more since we asked.
    return take_up(writes, reload, None, found)


def _in_force(told: Effect | None, now: Effect | None, after: Effect | None) -> bool:
    """Tell whether an engine has what its files come to without us, though they come to something else now.

    Where none of our runtimes is served any more it may still have the default that we gave it. Of all else
    it does not tell, so nothing else may change.
    """
    if told is None or now is None or after is None or after.broken:
        return True
    return told.default == after.default and (now.cdi, now.rest) == (after.cdi, after.rest)
