"""Decide whether an engine is restarted: by an install, by an undo, and by a roll-back.

A restart takes the engine's API away for as long as it lasts, and brings into force whatever others have
edited since the engine's start. So an engine is restarted only if it does not serve what it should, and only
if its next start, compared with what is in force, ends nothing (``engines/next_start.py``).

"Restart" stands for whatever makes an engine read its config: Docker gets a signal and reloads, k0s restarts
its containerd by itself.
"""

from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from msgspec import Struct

from installer.change.expected import expect_after_undo
from installer.change.install_texts import Candidate, InstallRequest
from installer.change.references import is_removed
from installer.change.undo_texts import UndoCandidate, UndoRequest, list_ours
from installer.engines import next_start
from installer.engines.config_edits import is_hook, read_present
from installer.engines.reload_plan import serves_as_before
from installer.errors import InstallerError, Remedy
from installer.model.engine import EffectiveConfig, EngineState, Extras
from installer.model.options import RestartMode
from installer.model.steps import TRY_AGAIN, Reload

DUE: Final = "its restart, as soon as it creates no container (--restart-mode when-idle)"
PENDING: Final = "pending"  # begins the state of an engine that has not read its configs
AT_NEXT_START: Final = "takes effect when dockerd starts the next time"
LEFT: Final = "its restart or reload, which --restart-mode none leaves to you"
UNREAD: Final = "its restart: until then it may start our programs, which stay for that"


class When(Enum):
    """When an engine is restarted."""

    NOW = auto()
    NOT_NEEDED = auto()
    WHEN_IDLE = auto()  # the engine is creating containers: it is restarted after that
    LEFT_TO_OWNER = auto()  # restart-mode is none, or the engine reads hooks by itself


class Restart(Struct, frozen=True):
    """The answer: when an engine is restarted, the reason, and the errors against the restart."""

    when: When
    reason: str
    refusals: tuple[InstallerError, ...] = ()  # why it may not be restarted, for NOW and WHEN_IDLE

    @property
    def is_wanted(self) -> bool:
        """Whether the engine is to be restarted, now or later."""
        return self.when in {When.NOW, When.WHEN_IDLE}


def decide_for_install(
    request: InstallRequest, candidate: Candidate, expected: Reload, after: EffectiveConfig | None
) -> Restart:
    """Decide whether an install restarts an engine, by the first applicable rule.

    Args:
        request: the engine, and the runtimes to serve.
        candidate: the chosen texts.
        expected: what the engine has to serve in the end.
        after: the config in force after a restart; None if unknown.
    """
    engine = request.engine
    if request.options.restart_mode is RestartMode.NONE:
        return Restart(When.LEFT_TO_OWNER, "--restart-mode is none")
    if engine.hook is not None:
        return Restart(When.LEFT_TO_OWNER, "the engine reads hooks without a restart")

    removes_keys = any(change.taken_back for change in candidate.changes)
    is_served = expected.is_served_by(engine)
    if is_served and not removes_keys and not _repairs_program(request, candidate):
        return Restart(When.NOT_NEEDED, "the engine serves everything already")

    accepts = request.options.accept_pending
    refusals = tuple(
        next_start.explain_refusals(engine, after, request.facts, expected.names, accepts_pending=accepts)
    )
    if engine.creating:
        return Restart(When.WHEN_IDLE, "the engine is creating containers", refusals)
    return Restart(When.NOW, "the engine does not serve everything", refusals)


def _repairs_program(request: InstallRequest, candidate: Candidate) -> bool:
    """Tell whether a write repairs a config in force with a missing program."""
    engine = request.engine
    if not (candidate.writes and engine.missing_programs):
        return False
    return bool(request.dry_run(engine, read_present(engine, request.facts)).broken)


def decide_for_undo(request: UndoRequest, candidate: UndoCandidate, expected: Reload) -> Restart:
    """Decide whether an undo restarts an engine, by the first applicable rule.

    Args:
        request: the engine, and the rows of the engine.
        candidate: the texts without us, or without our default alone.
        expected: what the engine has to serve in the end.
    """
    need = _find_need_of_undo(request, candidate, expected)
    if need.when is not When.NOW:
        return need
    ours = list_ours(request.row, candidate)
    return Restart(need.when, need.reason, _find_refusals_of_undo(request, candidate, ours))


def _find_need_of_undo(request: UndoRequest, candidate: UndoCandidate, expected: Reload) -> Restart:
    """Decide whether an undo needs a restart, allowed or not."""
    engine = request.engine
    finished = request.facts.record.finished
    never_read = request.row.restart_due  # the engine has never read a config of ours

    if request.options.restart_mode is RestartMode.NONE:
        return Restart(When.LEFT_TO_OWNER, "--restart-mode is none")
    nothing_to_read = _explain_nothing_to_read(engine, candidate)
    if nothing_to_read:
        return Restart(When.NOT_NEEDED, nothing_to_read)
    if engine.serving is None:
        return Restart(When.NOW, "it is not known what the engine serves")
    if engine.outdated and not never_read:
        return Restart(When.NOW, "the configs were changed after the engine's start")
    if not expected.satisfied_by(engine.serving):
        return Restart(When.NOW, "the engine serves something of ours")
    if finished and not candidate.changes:
        return Restart(When.NOT_NEEDED, "no text changes")
    if expected.present and not candidate.demoted:
        return Restart(When.NOW, "others define runtimes by our names, which look alike before and after")
    if not finished and engine.kind.reads_config_on_signal:
        return Restart(When.NOW, "a signal of an install that was killed may still be on its way")
    if never_read:
        return Restart(When.NOT_NEEDED, "the engine has never read a config of ours")
    if not _serves_rest(engine.serving, candidate):
        return Restart(When.NOW, "the engine has read our config, and other settings of it change")
    return Restart(When.NOT_NEEDED, "the engine serves nothing of ours, and all else as before")


def _explain_nothing_to_read(engine: EngineState, candidate: UndoCandidate) -> str:
    """Return the reason why an engine has nothing to read after an undo, or ""."""
    if not candidate.writes:
        # An engine that looks for the toolkit by itself does not find it at its next start. The files of
        # another said what we wanted before us.
        return "we have no config to write"
    if engine.stopped:
        return "a stopped engine reads its configs at its start"
    if engine.disabled:
        return "an engine without CRI serves nothing of ours"
    if candidate.start_failure:
        return "the engine does not start, with our edits or without"
    return ""


def _serves_rest(serving: EffectiveConfig, candidate: UndoCandidate) -> bool:
    """Tell whether an engine without our runtimes has everything else in force."""
    now = candidate.now
    after = candidate.after
    if now is None or after is None or after.broken:
        return True
    # The engine may have the default that we gave it. It does not tell about the rest of its config, so the
    # rest may not change.
    if serving.default != after.default:
        return False
    return now.cdi == after.cdi and now.rest_digest == after.rest_digest


def _find_refusals_of_undo(
    request: UndoRequest, candidate: UndoCandidate, ours: Collection[str]
) -> tuple[InstallerError, ...]:
    """Return the reasons against a restart by an undo; the owner gets the whole remedy."""
    engine = request.engine
    accepts = request.options.accept_pending
    refusals = [
        *next_start.explain_refusals(engine, candidate.after, request.facts, ours, accepts_pending=accepts)
    ]
    if not refusals and engine.serving is None and engine.kind.reads_config_on_signal:
        # A silent dockerd does not tell whether it has obeyed a signal.
        problem = f"verify that {engine.title} no longer serves our runtimes ({engine.silence_reason})"
        remedy = f"make it answer, then {TRY_AGAIN}"
        refusals.append(InstallerError(problem, remedy=remedy, code="engine-not-proven"))
    if not refusals or engine.kind.restarts_itself:
        return tuple(refusals)

    written = ", ".join(str(write.path) for write in candidate.writes)
    state = "names our default no more" if candidate.demoted else "is without us"
    until = f"{written} {state}, and the toolkit stays until {engine.title} has read that"
    completed = []
    for refusal in refusals:
        # A remedy with options stays one: each entry point spells them by itself.
        parts = refusal.remedy.parts if isinstance(refusal.remedy, Remedy) else (refusal.remedy,)
        remedy = Remedy(*parts, f"; {until}")
        completed.append(InstallerError(refusal.problem, remedy=remedy, code=refusal.code))
    return tuple(completed)


def decide_for_rollback(
    engine: EngineState, tried: Reload | None, in_force: EffectiveConfig | None = None
) -> Restart:
    """Decide whether a roll-back restarts an engine.

    Args:
        engine: the engine as observed before the failed plan.
        tried: the restart of the failed plan; None if the plan failed before the restart.
        in_force: the config of an engine asked after its failed reload; None if unknown.
    """
    if tried is None:
        return Restart(When.NOT_NEEDED, "the engine was not restarted")
    if engine.serving is None:
        return Restart(When.NOT_NEEDED, "the engine was silent before")
    if engine.kind.reads_config_on_signal and serves_as_before(engine, in_force):
        # dockerd would refuse this reload for the same reason.
        return Restart(When.NOT_NEEDED, "the engine has refused the reload, and serves what it served before")
    if engine.kind.built_in_runtime:
        return Restart(When.NOT_NEEDED, "the engine finds the toolkit by itself")
    return Restart(When.NOW, "the engine has to serve what it served before")


def explain_still_served(request: UndoRequest, candidate: UndoCandidate) -> InstallerError | None:
    """Return an error if an engine may still start our programs, for the undo does not restart the engine."""
    row = request.row
    engine = request.engine
    if engine.kind.built_in_runtime:
        return None
    if engine.stopped or engine.crashing or engine.failed or engine.disabled:
        return None
    # If the engine accepts no text, nothing changes. CRI-O watches its hooks.
    only_hooks = all(is_hook(each) for each in request.configs)
    if request.configs and (not candidate.writes or only_hooks):
        return None

    removed = []
    for entry in expect_after_undo(request, candidate).absent:
        if is_removed(request.facts, str(entry.binary), request.options.layout):
            removed.append(entry)
    if engine.serving is None:
        names = [entry.name for entry in removed]
        reason = (
            f"it is not known whether {engine.title} still serves {', '.join(names)}: {engine.silence_reason}"
        )
    else:
        binaries = engine.serving.binaries
        names = [entry.name for entry in removed if binaries.get(entry.name) == str(entry.binary)]
        reason = f"{engine.title} still serves {', '.join(names)}"
    default = engine.served.default
    default_after = candidate.after.default if candidate.after is not None else ""
    if candidate.demoted and default in row.runtimes and default != default_after:
        names = [default]
        reason = f"{engine.title} still has {default} as its default"
    if not names:
        return None
    # A dockerd that is signalled keeps a runtime that its file does not name any more: only a restart helps.
    restart = f"run systemctl restart {engine.unit}" if engine.unit else f"restart {engine.title}"
    problem = f"undo everything ({reason}, for it was not restarted)"
    return InstallerError(problem, remedy=f"{restart}, then {TRY_AGAIN}", code="restart-pending")


def explain_pending(
    request: InstallRequest, candidate: Candidate, decision: Restart, expected: Reload
) -> str:
    """Return the texts not yet in force after an install, and until when; "" for none."""
    engine = request.engine
    if decision.when is When.WHEN_IDLE:
        return DUE
    is_owners = request.options.restart_mode is RestartMode.NONE and engine.hook is None
    if is_owners and engine.serving is not None and not expected.is_served_by(engine):
        return LEFT
    return explain_pending_cdi(engine, request.options.extras, asks_cdi=candidate.proposal.cdi)


def explain_pending_cdi(engine: EngineState, extras: Extras, *, asks_cdi: bool) -> str:
    """Return, in words, the start that an engine needs to serve CDI devices; "" for none."""
    serving = engine.serving
    by_signal = engine.kind.reads_config_on_signal
    # ``serving.cdi`` counts, whatever the release: some releases have CDI switched on by default.
    if serving is None or serving.cdi or not (asks_cdi or (by_signal and extras.cdi)):
        return ""

    key = ".".join(engine.kind.cdi_key)
    program = "dockerd" if by_signal else engine.title
    if serving.cdi is None:
        return f"{key} in {engine.config} has no effect, for this {program} has no CDI"
    if by_signal:
        return f"{key} in {engine.config} {AT_NEXT_START}"
    return ""
