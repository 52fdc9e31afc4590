"""Decide whether an engine is restarted: by an install, by an undo, and by a roll-back.

A restart takes the engine's API away for as long as it lasts, and brings into force whatever others have
edited since the engine's start. So there are three questions:

1. Need: does the engine serve already what it should? The rules stand in this module: the first rule that
   applies decides.
2. Danger: would the next start, compared with what is in force, end something? ``engines/next_start.py``
   yields the errors. An install with such an error is refused. An undo writes its texts and restarts nothing.
3. Moment: is the engine creating containers, with --restart-mode when-idle? ``run`` restarts it after that.

"Restart" stands for whatever makes an engine read its config: Docker gets a signal and reloads, k0s restarts
its containerd by itself. The steps of a restart are planned in ``engines/reload_plan.py`` and carried out in
``engines/reload.py``. What an engine without a restart has not read is recorded by ``pending.py``.
"""

from enum import Enum, auto

from msgspec import Struct

from installer.change.install_texts import Candidate, InstallRequest
from installer.change.undo_texts import UndoCandidate, UndoRequest, list_ours
from installer.engines import next_start
from installer.engines.config_texts import read_present
from installer.engines.reload_plan import serves_as_before
from installer.errors import UNINSTALL_AGAIN, InstallerError, Remedy
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.options import RestartMode
from installer.model.steps import Reload


class When(Enum):
    """When an engine is restarted."""

    NOW = auto()  # as a step of this plan
    NOT_NEEDED = auto()
    WHEN_IDLE = auto()  # by ``run``, as soon as the engine creates no container
    LEFT_TO_OWNER = auto()  # restart-mode is none, or the engine reads hooks by itself


class Restart(Struct, frozen=True):
    """The answer: when an engine is restarted, the reason, and the errors against the restart."""

    when: When
    reason: str
    refusals: tuple[InstallerError, ...] = ()  # why it may not be restarted; only for NOW and WHEN_IDLE

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

    need = _explain_need_of_install(request, candidate, expected)
    if not need:
        return Restart(When.NOT_NEEDED, "the engine serves everything already")

    refusals = tuple(
        next_start.explain_refusals(
            engine, after, request.facts, expected.names, accepts_pending=request.options.accept_pending
        )
    )
    if engine.creating:
        return Restart(When.WHEN_IDLE, f"{need}, and is creating containers", refusals)
    return Restart(When.NOW, need, refusals)


def _explain_need_of_install(request: InstallRequest, candidate: Candidate, expected: Reload) -> str:
    """Return the reason why an engine has to read the texts of an install, or ""."""
    engine = request.engine
    if not expected.is_served_by(engine):
        return "the engine does not serve everything"
    if any(change.taken_back for change in candidate.changes):
        return "the engine may have keys of an earlier install in force"
    if candidate.writes and engine.missing_programs:
        present = request.dry_run(engine, read_present(engine, request.facts))
        if present.broken:
            return "the engine would not start with the present texts, and a program is missing"
    return ""


def decide_for_undo(request: UndoRequest, candidate: UndoCandidate, expected: Reload) -> Restart:
    """Decide whether an undo restarts an engine. An undo waits for no idle engine.

    Args:
        request: the engine, and the rows of the engine.
        candidate: the texts without us, or without our default alone.
        expected: what the engine has to serve in the end.

    Returns:
        The answer. With refusals the texts may be written, but the engine may not be restarted: our runtimes,
        and our default, stay in force until its owner restarts it, and the toolkit stays as long.
    """
    need = _find_need_of_undo(request, candidate, expected)
    if need.when is not When.NOW:
        return need
    return Restart(need.when, need.reason, _find_refusals_of_undo(request, candidate))


def _find_need_of_undo(request: UndoRequest, candidate: UndoCandidate, expected: Reload) -> Restart:
    """Decide whether an undo needs a restart, allowed or not, by the first applicable rule."""
    engine = request.engine
    if request.options.restart_mode is RestartMode.NONE:
        return Restart(When.LEFT_TO_OWNER, "--restart-mode is none")
    reason = _explain_nothing_to_read(engine, candidate)
    if reason:
        return Restart(When.NOT_NEEDED, reason)

    # Something of ours is in force, or may be.
    reason = _explain_ours_in_force(request, expected)
    if reason:
        return Restart(When.NOW, reason)
    if request.facts.record.finished and not candidate.changes:
        return Restart(When.NOT_NEEDED, "no text changes")
    reason = _explain_doubt(request, candidate, expected)
    if reason:
        return Restart(When.NOW, reason)

    # No runtime and no default of ours is in force. The other settings of our config may be.
    if request.row.restart_due:
        return Restart(When.NOT_NEEDED, "the engine has never read a config of ours")
    if not _keeps_rest(engine, candidate):
        return Restart(When.NOW, "the engine has read our config, and other settings of it change")
    return Restart(When.NOT_NEEDED, "the engine serves nothing of ours, and all else as before")


def _explain_nothing_to_read(engine: EngineState, candidate: UndoCandidate) -> str:
    """Return the reason why an engine has nothing to read after an undo, or ""."""
    if not candidate.writes:
        # k3s and RKE2 look for the toolkit at each start, and do not find it at the next. Or the files had
        # all that we wanted, before our install.
        return "we have no config to write"
    if engine.stopped:
        return "a stopped engine reads its configs at its start"
    if engine.disabled:
        return "an engine without CRI serves nothing of ours"
    if candidate.start_failure:
        return "the engine does not start, with our edits or without"
    return ""


def _explain_ours_in_force(request: UndoRequest, expected: Reload) -> str:
    """Return the reason why an engine has something of ours in force, or may have it, or ""."""
    engine = request.engine
    if engine.serving is None:
        return "it is not known what the engine serves"
    # An engine that was never restarted for us has read none of the texts that we wrote since its start.
    if engine.outdated and not request.row.restart_due:
        return "the configs were changed after the engine's start"
    if not expected.satisfied_by(engine.serving):
        return "the engine serves something of ours"
    return ""


def _explain_doubt(request: UndoRequest, candidate: UndoCandidate, expected: Reload) -> str:
    """Return the reason why an engine's answer does not show that nothing of ours is in force, or ""."""
    if expected.present and not candidate.demoted:
        return "others define runtimes by our names, which look alike before and after"
    if not request.facts.record.finished and request.engine.kind.reads_config_on_signal:
        return "a signal of an install that was killed may still be on its way"
    return ""


def _keeps_rest(engine: EngineState, candidate: UndoCandidate) -> bool:
    """Tell whether an engine has in force what the texts without us say besides runtimes.

    The engine may have the default that we gave. It does not tell about the rest of its config: the rest is
    the same if no text changes the rest.
    """
    now = candidate.now
    after = candidate.after
    if now is None or after is None or after.broken:
        return True
    if engine.served.default != after.default:
        return False
    return now.cdi == after.cdi and now.rest_digest == after.rest_digest


def _find_refusals_of_undo(request: UndoRequest, candidate: UndoCandidate) -> tuple[InstallerError, ...]:
    """Return the reasons why an undo may not restart an engine; the remedies name what the undo leaves."""
    engine = request.engine
    refusals = [
        *next_start.explain_refusals(
            engine,
            candidate.after,
            request.facts,
            list_ours(request.row, candidate),
            accepts_pending=request.options.accept_pending,
        )
    ]
    if not refusals and engine.serving is None and engine.kind.reads_config_on_signal:
        # A silent dockerd does not tell whether it has obeyed a signal.
        problem = f"verify that {engine.title} no longer serves our runtimes ({engine.silence_reason})"
        remedy = f"make it answer, then {UNINSTALL_AGAIN}"
        refusals.append(InstallerError(problem, remedy=remedy, code="engine-not-proven"))
    if engine.kind.restarts_itself:  # an undo that may not restart it writes nothing
        return tuple(refusals)
    return tuple(_name_what_stays(refusal, engine, candidate) for refusal in refusals)


def _name_what_stays(
    refusal: InstallerError, engine: EngineState, candidate: UndoCandidate
) -> InstallerError:
    """Add to the remedy of a refused restart: the texts are written, and the toolkit stays."""
    until = f"{_describe_written(candidate)}the toolkit stays until {engine.title} has read that"
    # A remedy with options stays one: each entry point spells them by itself.
    parts = refusal.remedy.parts if isinstance(refusal.remedy, Remedy) else (refusal.remedy,)
    remedy = Remedy(*parts, f"; {until}")
    return InstallerError(refusal.problem, remedy=remedy, code=refusal.code)


def _describe_written(candidate: UndoCandidate) -> str:
    """Describe the removed and the written configs as the beginning of a sentence; "" without any."""
    removed = []
    written = []
    for write in candidate.writes:
        if write.after is None:
            removed.append(str(write.path))
        else:
            written.append(str(write.path))

    text = ""
    if removed:
        verb = "is" if len(removed) == 1 else "are"
        text += f"{' and '.join(removed)} {verb} removed, "
    if written:
        if candidate.demoted:
            state = "names our default no more" if len(written) == 1 else "name our default no more"
        else:
            state = "is without us" if len(written) == 1 else "are without us"
        text += f"{' and '.join(written)} {state}, "
    return f"{text}and " if text else ""


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
