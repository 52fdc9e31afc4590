"""The engines that run here: each is asked what it serves, and its process where its configs are."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import PurePosixPath

from installer.decide.data import dataclass, replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import Engine
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts
from installer.decide.options import Options, Places
from installer.decide.rows import Record
from installer.host.files import Host
from installer.record import reads, units
from installer.record.below import RESTART, silence
from installer.record.cmdline import overruling, state_of
from installer.record.configs import with_configs, with_drop_in
from installer.record.engines import ASK_S, Answer, ask, is_held
from installer.record.hints import refuse_generated, refuse_unknown, without_cri
from installer.record.located import awaited, located_again
from installer.record.started import with_flags


@dataclass(frozen=True, slots=True)
class Found:
    """The engines that are asked for and run here.

    The ``notes`` are about the others, ``overruled`` is what stands against what is asked for; ``refused``
    tells, by the name of an engine, why nobody knows its configs.
    """

    engines: tuple[EngineFacts, ...]
    notes: tuple[str, ...]
    overruled: tuple[InstallerError, ...]
    refused: Mapping[str, InstallerError]


def running_engines(host: Host, options: Options, held: Record) -> Found:
    """Return the engines that are asked for and run here, and what is to be said of them.

    Raises:
        InstallerError: none of them runs here, or one cannot be taken for what it is.
    """
    found: list[EngineFacts] = []
    notes: list[str] = []
    overruled: list[InstallerError] = []
    refused: dict[str, InstallerError] = {}
    for name in options.engine_names:
        engine = ENGINES[name]
        facts = looked_for(engine, options)
        facts, answer = located_again(host, facts, ask_for(host, engine, facts, options), held, options)
        if options.auto and (answer.stopped or answer.disabled or _hangs_below(name, answer, found, held)):
            notes += _left_alone(host, name, answer, found)
            continue
        if answer.another:
            raise answer.another
        facts = answered(host, facts, answer)
        if engine.finds and facts.unit not in engine.units:
            if not facts.unit:
                refuse_unknown(host, facts)
            continue  # its sibling, on the same socket
        overruled += _overruling(engine, facts, _cmdline(answer), options)
        process = reads.process_of(host, facts, answer.peer)
        facts = reads.with_places(host, facts, process.cmdline, options.places.get(name, Places()))
        try:
            facts = with_drop_in(host, engine, facts)
            overruled += reads.unread(host, facts, process.cmdline)
            found.append(_with_configs(host, engine, facts, process.at_s))
        except InstallerError as error:  # what is wrong with the others is to be told as well
            refused[name] = error
    if not (found or refused) and options.engine_names:
        raise _nobody_runs(options, notes)
    return Found(tuple(found), tuple(notes), tuple(overruled), refused)


def _with_configs(host: Host, engine: Engine, facts: EngineFacts, began_s: float | None) -> EngineFacts:
    ours = (facts.drop_in,) if facts.drop_in is not None else ()
    facts = replace(facts, outdated=reads.outdated(host, engine, began_s, ours))
    if engine.generated is None:
        refuse_generated(facts)
    return with_configs(host, engine, facts)


def _hangs_below(name: str, answer: Answer, found: Iterable[EngineFacts], held: Record) -> bool:
    """Tell whether an engine that does not answer is only what keeps another from answering."""
    silent = answer.serving is None and not answer.failed and name not in held.served
    return silent and any(each.serving is None and ENGINES[each.name].uses == name for each in found)


def _left_alone(host: Host, name: str, answer: Answer, found: Iterable[EngineFacts]) -> Iterator[str]:
    """Yield why an engine that nobody asked for by name is not configured, though somebody answers."""
    if answer.disabled:
        yield f"left {name} alone: {without_cri(host, [each.name for each in found])}"
    if answer.another:
        yield f"left {name} alone: {answer.another.reason}"


def _overruling(
    engine: Engine, facts: EngineFacts, words: tuple[str, ...], options: Options
) -> Iterator[InstallerError]:
    """Yield what of the command line of an engine, or of its next start, stands against what is asked for."""
    against = [*overruling(engine, words, options, "it was started")]
    yield from against or overruling(engine, facts.next_words, options, "its unit starts it")
    yield from reads.moving(facts, words)


def looked_for(engine: Engine, options: Options) -> EngineFacts:
    """Return where an engine is looked for: where the operator says, else at its usual places."""
    places = options.places.get(engine.name, Places())
    return EngineFacts(
        engine.name,
        places.config or engine.config,
        places.drop_in or engine.drop_in,
        options.crio_hook if engine.hook_dir else None,
        (),
        places.socket or engine.socket,
        engine.unit,
    )


def _nobody_runs(options: Options, notes: Iterable[str]) -> InstallerError:
    sockets = ", ".join(dict.fromkeys(str(ENGINES[name].socket) for name in options.engine_names))
    return InstallerError(
        f"find a running engine ({'; '.join(notes) or f'nobody listens on {sockets}'})",
        remedy=Remedy(
            "start one, or name it with ", Option("runtime"), " and its socket with ", Option("socket")
        ),
        code="engine-not-found",
    )


def ask_for(
    host: Host, engine: Engine, facts: EngineFacts, options: Options, awaits_s: float = inf
) -> Answer:
    """Ask an engine what it serves, and again while it only starts, for ``awaits_s`` at most."""
    if is_held(host, engine, facts.socket, facts.unit):
        return Answer(stopped=True, silence=f"{facts.unit} is stopped, and systemd listens for it")
    socket, timeout_s = host.local_path(facts.socket), min(ASK_S, options.timeout_s)
    return awaited(host, facts, ask(engine, socket, timeout_s=timeout_s), awaits_s)


def _cmdline(answer: Answer) -> tuple[str, ...]:
    return answer.peer.cmdline if answer.peer else ()


def answered(host: Host, facts: EngineFacts, answer: Answer) -> EngineFacts:
    """Return the facts with what an engine has said, and what its process tells."""
    exe = PurePosixPath(answer.peer.exe) if answer.peer and answer.peer.exe else None
    waits = answer.serving is None and not (answer.stopped or answer.failed)
    why = silence(host, facts, _cmdline(answer)) if waits else ""
    facts = replace(
        facts,
        # A process that is seen tells by itself which unit it is in, be it none.
        unit=(answer.peer.unit or "") if answer.peer else _unit(host, facts, answer),
        version=answer.version,
        serving=answer.serving,
        silence=why or answer.silence,
        remedy=RESTART if why else answer.remedy,
        stopped=answer.stopped,
        pid=answer.peer.pid if answer.peer else None,
        exe=exe,
        build=host.build_of(exe) if exe else "",
        state=(answer.serving and answer.serving.state)
        or state_of(host, ENGINES[facts.name], _cmdline(answer), facts.config),
    )
    return with_flags(host, facts)


def _unit(host: Host, facts: EngineFacts, answer: Answer) -> str:
    """Return the unit of an engine whose process is not seen: of several, the one that runs."""
    candidates = ENGINES[facts.name].units
    if answer.stopped or facts.unit not in candidates:
        return facts.unit
    return next((unit for unit in candidates if units.runs(host, unit)), "")
