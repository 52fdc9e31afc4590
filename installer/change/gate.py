"""The gate: texts are written only if the engine starts with them and all else stays in force as it was.

The engine's own program tells what texts bring into force (a dry run). For an install,
``choose_install_texts`` compares what is in force without us and now with what each candidate brings; for an
undo, ``choose_undo_texts`` does. The first candidate without a problem is accepted.
"""

from collections.abc import Collection
from functools import partial
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from installer.change.expected import expect_after_install, expect_after_undo
from installer.change.install_texts import (
    Candidate,
    InstallRequest,
    find_changes,
    find_unserved,
    has_recovered_rows,
    is_in_force,
    keep_present_texts,
    list_former_names,
    make_candidate,
    read_inherited,
)
from installer.change.restart import Restart, When, decide_for_install, decide_for_undo
from installer.change.undo_texts import (
    UndoCandidate,
    UndoRequest,
    find_unwritable,
    list_ours,
    make_undo_candidate,
)
from installer.config_text import Edit, leaves
from installer.engines import next_start
from installer.engines.config_edits import ConfigChange, files_without_us, predict_without_our_files
from installer.engines.config_keys import DEFAULT, group_of, runtime_of
from installer.engines.config_texts import Texts, read_configs, read_present, tree_of
from installer.errors import UNINSTALL_AGAIN, InstallerError
from installer.model.effective import EffectiveConfig, find_disturbances
from installer.model.engine import EngineState, Proposal
from installer.model.facts import Facts
from installer.model.options import RestartMode
from installer.model.steps import Reload


class AcceptedInstall(Struct, frozen=True):
    """The chosen candidate for an install of an engine."""

    engine: EngineState
    candidate: Candidate
    expected: Reload  # what the engine has to serve in the end
    restart: Restart
    after: EffectiveConfig | None = None  # in force after the steps; None: nothing is written, or unknown
    repairs_our_texts: bool = False  # the present texts have keys of ours and are fatal


class AcceptedUndo(Struct, frozen=True):
    """The chosen candidate for an undo of an engine."""

    candidate: UndoCandidate
    expected: Reload  # what the engine has to serve in the end
    restart: Restart
    refusals: tuple[InstallerError, ...]  # of the candidates before, whose texts are not written


class _Compared(Struct, frozen=True):
    """The configs of an engine to compare with the config of each candidate.

    Attributes:
        before: In force without us.
        with_additions: In force without us, but with the additions of others to our files.
        now: In force by the present texts.
        names: Our runtimes, and the runtimes of others in our files.
        ours: Our runtimes, and the runtimes of earlier installs.
        present_texts: The texts of ``now``.
        texts_without_us: The texts of ``before``.
    """

    before: EffectiveConfig
    with_additions: EffectiveConfig
    now: EffectiveConfig
    names: frozenset[str]
    ours: frozenset[str]
    present_texts: Texts
    texts_without_us: Texts


def choose_install_texts(request: InstallRequest) -> AcceptedInstall:
    """Choose the first candidate with our runtimes in force and everything else kept.

    Raises:
        InstallerError: all candidates are refused; the error is about the first.
    """
    engine = request.engine
    texts_without_us = files_without_us(engine, request.facts)
    present_texts = {path: request.facts.contents.get(path) for path in texts_without_us}
    configs = read_configs(engine, texts_without_us)
    state = _complete_silent(request, present_texts)
    propose = partial(engine.kind.propose, state, configs, request.entries, request.options.extras)

    # The plainest proposal, by the texts alone: if nothing is to be done, no program is asked.
    plainest = next(iter(propose(None)))
    plainest_changes = find_changes(request, plainest)
    by_texts = _accept(request, make_candidate(request, plainest, plainest_changes))
    if engine.kind.built_in_runtime or _needs_nothing(request, by_texts):
        return by_texts

    compared = _ask_compared(request, texts_without_us, present_texts)
    refusals: list[InstallerError] = []
    for proposal in propose(compared.before):
        changes = plainest_changes
        if proposal.files != plainest.files:  # the texts of equal files, perhaps megabytes, are made once
            changes = find_changes(request, proposal)
        tried = _try_proposal(request, proposal, changes, compared)
        if isinstance(tried, AcceptedInstall):
            return tried
        refusals.append(tried)

    if _serves_despite_lost_ledger(request, by_texts, compared.now):
        return _accept(request, keep_present_texts(by_texts.candidate, request.facts), compared.now)
    raise refusals[0]  # every engine proposes at least one candidate


def _complete_silent(request: InstallRequest, present_texts: Texts) -> EngineState:
    """Return the engine as asked for proposals: a silent engine of ours serves what its files define."""
    engine = request.engine
    if request.row is None or engine.serving is not None:
        return engine
    return replace(engine, serving=read_inherited(request, present_texts))


def _try_proposal(
    request: InstallRequest, proposal: Proposal, changes: tuple[ConfigChange, ...], compared: _Compared
) -> AcceptedInstall | InstallerError:
    """Accept a proposal by the answer of the engine's program, or return the reason against its texts."""
    candidate = make_candidate(request, proposal, changes)
    if candidate.only_adds and _is_in_force_unwritten(request, proposal, compared):
        candidate = keep_present_texts(candidate, request.facts)

    after = request.dry_run(request.engine, {**compared.present_texts, **candidate.texts})
    refusal = _find_install_refusal(request, candidate, compared, after)
    if refusal is not None:
        return refusal
    return replace(
        _accept(request, candidate, after), repairs_our_texts=_repairs_our_texts(request, compared)
    )


def _needs_nothing(request: InstallRequest, accepted: AcceptedInstall) -> bool:
    """Tell whether an install has nothing to write and nothing to restart."""
    if accepted.candidate.writes or accepted.restart.when is When.NOW:
        return False
    return is_in_force(request, accepted.candidate)


def _repairs_our_texts(request: InstallRequest, compared: _Compared) -> bool:
    """Tell whether an install repairs our earlier texts, with which the engine would serve nothing."""
    if not compared.now.fatal:
        return False
    has_our_keys = compared.present_texts != compared.texts_without_us
    return has_our_keys or compared.now.undefined in request.names


def _ask_compared(request: InstallRequest, texts_without_us: Texts, present_texts: Texts) -> _Compared:
    """Ask the engine's program for the configs to compare with candidates.

    Raises:
        InstallerError: as ``_ask_before_us``.
    """
    before = _ask_before_us(request, texts_without_us)
    with_additions = before
    if present_texts != texts_without_us:
        # What others have put into a file of ours is in force as well, and has to stay in force.
        with_additions = predict_without_our_files(
            request.engine, request.facts, present_texts, request.dry_run
        )
    return _Compared(
        before=before,
        with_additions=with_additions,
        now=request.dry_run(request.engine, present_texts),
        names=request.names | (with_additions.handlers.keys() - before.handlers.keys()),
        ours=request.names | list_former_names(request),
        present_texts=present_texts,
        texts_without_us=texts_without_us,
    )


def _find_install_refusal(
    request: InstallRequest, candidate: Candidate, compared: _Compared, after: EffectiveConfig
) -> InstallerError | None:
    """Return the reason why an engine may not get the texts of a candidate; None for texts to write.

    Args:
        request: the engine, and the runtimes to serve.
        candidate: the texts.
        compared: the configs to compare with.
        after: the config in force with the texts.
    """
    problems = _find_problems(request, candidate, compared, after)
    doubt = candidate.proposal.doubt
    # A doubt comes from the texts. The answer of the engine's own program overrules it.
    is_doubtful = doubt is not None and not after.is_complete
    if not problems and not is_doubtful:
        return None
    return doubt or _refuse_proposal(request, candidate.proposal, compared.present_texts, problems)


def _find_problems(
    request: InstallRequest, candidate: Candidate, compared: _Compared, after: EffectiveConfig
) -> list[str]:
    """Return, in words, why the config ``after`` a candidate would not do."""
    problems = [*find_unserved(request, candidate.proposal, after)]
    problems += find_disturbances(compared.before, after, compared.names)
    with_additions = compared.with_additions
    if not (problems or with_additions.broken or with_additions.undefined):
        problems += find_disturbances(with_additions, after, compared.ours)
    return problems


def _ask_before_us(request: InstallRequest, texts_without_us: Texts) -> EffectiveConfig:
    """Return the config of an engine in force without us.

    Raises:
        InstallerError: the engine refuses the config without us, or the program is of another major version.
    """
    engine = request.engine
    before = request.dry_run(engine, texts_without_us)
    if before.broken and before.undefined in request.names:
        # A removed toolkit leaves such a config: its default runtime is gone. The install repairs that.
        before = replace(before, broken="")
    if before.broken:
        raise InstallerError(
            f"configure {engine.title} in {engine.config} (it refuses the config it has: {before.broken})",
            remedy=f"{before.remedy or 'correct that config'}, then run again",
            code="config-refused",
        )
    other_major = next_start.explain_other_major(engine, before)
    if other_major is not None and request.options.restart_mode is not RestartMode.NONE:
        raise other_major  # what the other program makes of our text is not the reason
    return before


def _is_in_force_unwritten(request: InstallRequest, proposal: Proposal, compared: _Compared) -> bool:
    """Tell whether an engine with the present texts serves our runtimes and all else as before."""
    now = compared.now
    if not now.is_complete or now.fatal:
        return False
    if any(find_unserved(request, proposal, now)):
        return False
    if any(find_disturbances(compared.before, now, compared.names)):
        return False
    return bool(now.cdi) or not proposal.cdi


def _serves_despite_lost_ledger(
    request: InstallRequest, by_texts: AcceptedInstall, now: EffectiveConfig
) -> bool:
    """Tell whether an engine stays unchanged: everything is in force and the ledger is lost.

    Without a ledger the texts without us are a guess, and a comparison with a guess does not count.
    """
    candidate = by_texts.candidate
    if not has_recovered_rows(request):
        return False
    removes_runtimes = bool(by_texts.expected.absent)
    if removes_runtimes or any(change.taken_back for change in candidate.changes):
        return False
    wants_default = any(entry.default for entry in request.entries)
    has_unwanted_default = now.default in request.names and not wants_default
    lacks_cdi = candidate.proposal.cdi and not now.cdi
    if has_unwanted_default or now.broken or lacks_cdi:
        return False
    return not any(find_unserved(request, candidate.proposal, now))


def _refuse_proposal(
    request: InstallRequest, proposal: Proposal, present_texts: Texts, problems: list[str]
) -> InstallerError:
    """Refuse a proposal; the remedy names the files of others with our runtimes."""
    ours = [files.path for files in proposal.files]
    words = [f"runtimes.{name}".encode() for name in request.names]
    beside = []
    for path, file in present_texts.items():
        if file and path not in ours and any(word in file.content for word in words):
            beside.append(str(path))
    return InstallerError(
        f"configure {request.engine.name} in {', '.join(map(str, ours))} and leave all else as it is "
        f"({'; '.join(problems)})",
        remedy=f"correct {' and '.join(beside) or 'the config that it has now'}, then run again",
        code="config-disturbs-others",
    )


def _accept(
    request: InstallRequest, candidate: Candidate, after: EffectiveConfig | None = None
) -> AcceptedInstall:
    """Accept a candidate; ``after`` is None if no program was asked."""
    expected = expect_after_install(request, candidate, after)
    return AcceptedInstall(
        engine=request.engine,
        candidate=candidate,
        expected=expected,
        restart=decide_for_install(request, candidate, expected, after),
        after=after,
    )


def choose_undo_texts(request: UndoRequest, *, keeps_runtimes: bool) -> AcceptedUndo:
    """Choose the first writable candidate that the engine accepts, or none of the texts.

    The candidates: without us (unless ``keeps_runtimes``), without our default, unchanged.
    """
    refusals: list[InstallerError] = []
    for demoted in (False, True):
        if keeps_runtimes and not demoted:
            continue
        candidate = make_undo_candidate(request, demoted=demoted)
        expected = expect_after_undo(request, candidate)
        decision = decide_for_undo(request, candidate, expected)
        refusal = find_unwritable(request.facts, candidate)
        if refusal is None:
            refusal = _find_refusal(request, candidate, is_restarted=decision.is_wanted)
        if refusal is None:
            return AcceptedUndo(candidate, expected, decision, tuple(refusals))
        refusals.append(refusal)
    unchanged = UndoCandidate(rows=request.configs, kept_rows=request.configs)
    decision = Restart(When.NOT_NEEDED, "no text is written")
    return AcceptedUndo(unchanged, expect_after_undo(request, unchanged), decision, tuple(refusals))


def _find_refusal(
    request: UndoRequest, candidate: UndoCandidate, *, is_restarted: bool
) -> InstallerError | None:
    """Return the reason why an engine may not get the texts of a candidate, by the first applicable rule.

    Args:
        request: the engine, and the rows of the engine.
        candidate: the texts, with the predictions of the engine's program for now and after.
        is_restarted: the engine would be restarted for the texts.

    Returns:
        The reason; None for texts that may be written.

    Raises:
        InstallerError: a text is not valid any more.
    """
    now = candidate.now
    after = candidate.after
    refusal = _refuse_default(request.engine, candidate, request.facts, list_ours(request.row, candidate))
    if refusal is not None:
        return refusal
    if now is None or after is None:  # no program was asked
        return None
    if now.fatal:
        return _refuse_fatal(request.engine, candidate, after, is_restarted=is_restarted)
    if not candidate.changes or _was_undefined_before_us(request, candidate, after):
        return None

    problems = _find_undo_problems(request, candidate, now, after)
    if not problems:
        return None
    remedy = _find_remedy(request, candidate)
    return _refuse_texts(request.engine, candidate, "; ".join(problems), remedy)


def _was_undefined_before_us(request: UndoRequest, candidate: UndoCandidate, after: EffectiveConfig) -> bool:
    """Tell whether the default runtime has no definition after the undo, as it had none before us."""
    edited_runtimes = {runtime_of(edit.key) for edit in _list_edits(candidate)}
    if not after.undefined or after.undefined not in edited_runtimes:
        return False
    return not _is_edited_by_others(request.facts, candidate)


def _list_edits(candidate: UndoCandidate) -> list[Edit]:
    """Return our edits of an engine's configs."""
    return list(chain.from_iterable(config.edits for config in candidate.rows))


def _find_undo_problems(
    request: UndoRequest, candidate: UndoCandidate, now: EffectiveConfig, after: EffectiveConfig
) -> list[str]:
    """Return, in words, what the texts of a candidate would change besides our runtimes; none for no change.

    The config after the undo has to equal one of two configs:

    - the present config;
    - the config without the unedited files of our own. A file of our own may replace settings of others, and
      these come back when the undo removes the file.
    """
    without_our_files = predict_without_our_files(
        request.engine_without_us, request.facts, read_present(request.engine, request.facts), request.dry_run
    )
    of_present = _compare_after_undo(request, candidate, now, after)
    of_files_of_others = _compare_after_undo(request, candidate, without_our_files, after)
    if not of_present or not of_files_of_others:
        return []
    return list(dict.fromkeys((*of_present, *of_files_of_others)))


def _compare_after_undo(
    request: UndoRequest, candidate: UndoCandidate, before: EffectiveConfig, after: EffectiveConfig
) -> list[str]:
    """Return, in words, the differences of two configs besides our runtimes and our default."""
    if any(group_of(edit.key, request.row.name) == DEFAULT for edit in _list_edits(candidate)):
        # Our default goes, and the default that our own file had hidden comes back.
        before = replace(before, default=after.default)
    return [*find_disturbances(before, after, list_ours(request.row, candidate))]


def _find_remedy(request: UndoRequest, candidate: UndoCandidate) -> str:
    """Return the act of the owner by which the engine would accept the texts of a candidate."""
    # In a file that we made, additions of others stay; they are not read without our import.
    kept = []
    for config, write in zip(request.configs, candidate.writes, strict=True):
        if not config.original and write.after is not None and write.path != request.engine.config:
            kept.append(str(write.path))
    if kept:
        return f"move what was added to {', '.join(kept)} to a file of its own"
    return "correct that config"


def _refuse_fatal(
    engine: EngineState, candidate: UndoCandidate, after: EffectiveConfig, *, is_restarted: bool
) -> InstallerError | None:
    """Return the reason not to undo the edits of an engine with a fatal present config; None for none.

    Our keys do not repair the config and may go. The undo is refused only if the engine would be restarted,
    and would not start.
    """
    # An engine that is down and whose CRI is switched off may be restarted as it is.
    may_restart = engine.serving is None and after.is_complete
    if not after.fatal or may_restart or not is_restarted:
        return None
    reason = f"it would not start again with its present config: {after.fatal}"
    return _refuse_texts(engine, candidate, reason, after.remedy or "correct that config")


def _is_edited_by_others(facts: Facts, candidate: UndoCandidate) -> bool:
    """Tell whether others have edited a config of ours, and the undo does not restore the text before us."""
    digests: set[str] = set()
    for config in candidate.rows:
        digests.update(config.ours)
    for write in candidate.writes:
        if write.before is None or write.before.digest in digests:
            continue
        if tree_of(write.after, write.path) != tree_of(facts.originals.get(write.path), write.path):
            return True
    return False


def _refuse_default(
    engine: EngineState, candidate: UndoCandidate, facts: Facts, ours: Collection[str]
) -> InstallerError | None:
    """Return the error if our runtime has to stay as the default of an engine; None if not."""
    flag_now = engine.flags.default
    flag_later = engine.next_flags.default
    undefined = ""
    if candidate.after is not None and candidate.now is not None and not candidate.now.fatal:
        undefined = candidate.after.undefined

    if not candidate.demoted and flag_later in ours and flag_later != flag_now:
        name = flag_later
        reason = f"its unit starts it with --default-runtime {flag_later}"
        remedy = "take that out of the unit"
    elif undefined not in ours:
        return None
    elif undefined == flag_now:
        name = flag_now
        reason = f"it was started with --default-runtime {flag_now}"
        remedy = f"start {engine.title} without that"
    else:
        name = undefined
        naming = _list_files_naming(engine, candidate, facts, undefined)
        reason = f"it was made the default in {naming}"
        remedy = "name another default runtime there"
    problem = f"remove the runtime {name} from {engine.title} ({reason})"
    return InstallerError(problem, remedy=f"{remedy}, then {UNINSTALL_AGAIN}", code="runtime-needed")


def _refuse_texts(engine: EngineState, candidate: UndoCandidate, reason: str, remedy: str) -> InstallerError:
    paths = ", ".join(str(write.path) for write in candidate.writes)
    problem = f"undo our edits of {paths} and leave all else of {engine.title} as it is ({reason})"
    return InstallerError(problem, remedy=f"{remedy}, then {UNINSTALL_AGAIN}", code="config-disturbs-others")


def _list_files_naming(engine: EngineState, candidate: UndoCandidate, facts: Facts, default: str) -> str:
    """Return the files with the default runtime; none if several files make up the value."""
    texts = {**read_present(engine, facts), **candidate.texts}
    wanted = (engine.kind.default_key, default)
    naming = []
    for path, file in texts.items():
        for key, value in leaves(tree_of(file, path)):
            if (key[-1], value) == wanted:
                naming.append(str(path))
                break
    return ", ".join(naming)
