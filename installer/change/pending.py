"""What an engine has not read yet after a plan that did not restart it, and who restarts the engine.

The ledger keeps it as ``EngineRow.pending``, and status tells it in the words of ``describe_pending``.
"""

from typing import Final, assert_never

from installer.change.expected import expect_after_undo
from installer.change.install_texts import Candidate, InstallRequest
from installer.change.references import is_removed
from installer.change.restart import Restart, When
from installer.change.undo_texts import UndoCandidate, UndoRequest
from installer.engines import ENGINES
from installer.engines.config_edits import is_hook
from installer.errors import UNINSTALL_AGAIN, InstallerError
from installer.model.engine import EngineState, Extras
from installer.model.facts import EngineRow, Pending
from installer.model.options import RestartMode
from installer.model.steps import Reload

PENDING: Final = "pending"  # begins the state of an engine that has not read its configs
AT_NEXT_START: Final = "takes effect when dockerd starts the next time"


def find_pending(
    request: InstallRequest, candidate: Candidate, restart: Restart, expected: Reload
) -> Pending | None:
    """Return what an engine will not have read at the end of an install; None for nothing.

    Args:
        request: the engine, and the runtimes to serve.
        candidate: the chosen texts.
        restart: the decision about a restart.
        expected: what the engine has to serve in the end.
    """
    engine = request.engine
    if restart.when is When.WHEN_IDLE:
        return Pending.RESTART_WHEN_IDLE
    is_owners = request.options.restart_mode is RestartMode.NONE and engine.hook is None
    if is_owners and engine.serving is not None and not expected.is_served_by(engine):
        return Pending.RESTART_BY_OWNER
    return find_pending_cdi(engine, request.options.extras, asks_cdi=candidate.proposal.cdi)


def find_pending_cdi(engine: EngineState, extras: Extras, *, asks_cdi: bool) -> Pending | None:
    """Return the start that an engine needs to serve CDI devices; None if no start is needed.

    Args:
        engine: the engine, with its answer.
        extras: the further settings of the install.
        asks_cdi: the texts switch CDI on.
    """
    serving = engine.serving
    by_signal = engine.kind.reads_config_on_signal
    wants_cdi = asks_cdi or (by_signal and extras.cdi)
    # ``serving.cdi`` counts, whatever the release: some releases have CDI switched on by default.
    if serving is None or serving.cdi or not wants_cdi:
        return None
    if serving.cdi is None:
        return Pending.CDI_UNSUPPORTED
    return Pending.CDI_AT_NEXT_START if by_signal else None


def describe_pending(row: EngineRow) -> str:
    """Return what is pending of an engine, and who acts, as the end of a sentence; "" for nothing."""
    if row.pending is None:
        return ""
    kind = ENGINES[row.name]
    cdi_setting = f"{'.'.join(kind.cdi_key)} in {row.config or kind.config}"
    match row.pending:
        case Pending.RESTART_WHEN_IDLE:
            return "its restart, as soon as it creates no container (--restart-mode when-idle)"
        case Pending.RESTART_BY_OWNER:
            return "its restart or reload, which --restart-mode none leaves to you"
        case Pending.RESTART_AFTER_UNDO:
            return "its restart: until then it may start our programs, which stay for that"
        case Pending.CDI_AT_NEXT_START:
            return f"{cdi_setting} {AT_NEXT_START}"
        case Pending.CDI_UNSUPPORTED:
            program = "dockerd" if kind.reads_config_on_signal else kind.title
            return f"{cdi_setting} has no effect, for this {program} has no CDI"
        case _:
            assert_never(row.pending)


def explain_still_served(request: UndoRequest, candidate: UndoCandidate) -> InstallerError | None:
    """Return the reason why an engine may still start our programs after an undo that does not restart it.

    Args:
        request: the engine, as observed before the undo.
        candidate: the accepted texts.

    Returns:
        An error that keeps the toolkit in place; None if the engine starts none of our programs.
    """
    engine = request.engine
    if engine.kind.built_in_runtime:
        return None
    if engine.stopped or engine.crashing or engine.failed or engine.disabled:
        return None
    if request.configs:
        if not candidate.writes:  # the engine accepts no text: the undo changes nothing
            return None
        if all(is_hook(each) for each in request.configs):  # CRI-O sees by itself that a hook is gone
            return None

    reason = _explain_served_default(request, candidate) or _explain_served_runtimes(request, candidate)
    if not reason:
        return None
    # A dockerd that is signalled keeps a runtime that its file does not name any more: only a restart helps.
    restart = f"run systemctl restart {engine.unit}" if engine.unit else f"restart {engine.title}"
    problem = f"undo everything ({reason}, because it was not restarted)"
    return InstallerError(problem, remedy=f"{restart}, then {UNINSTALL_AGAIN}", code="restart-pending")


def _explain_served_default(request: UndoRequest, candidate: UndoCandidate) -> str:
    """Return the reason if our runtime is the default in force, and the texts have another, or ""."""
    default = request.engine.served.default
    default_after = candidate.after.default if candidate.after is not None else ""
    if candidate.demoted and default in request.row.runtimes and default != default_after:
        return f"{request.engine.title} still has {default} as its default"
    return ""


def _explain_served_runtimes(request: UndoRequest, candidate: UndoCandidate) -> str:
    """Return the reason if runtimes in force start programs that the undo removes, or ""."""
    engine = request.engine
    removed = []
    for entry in expect_after_undo(request, candidate).absent:
        if is_removed(request.facts, str(entry.binary), request.options.layout):
            removed.append(entry)
    if engine.serving is None:
        names = ", ".join(entry.name for entry in removed)
        reason = f"it is not known whether {engine.title} still serves {names}: {engine.silence_reason}"
    else:
        binaries = engine.serving.binaries
        served = [entry.name for entry in removed if binaries.get(entry.name) == str(entry.binary)]
        names = ", ".join(served)
        reason = f"{engine.title} still serves {names}"
    return reason if names else ""
