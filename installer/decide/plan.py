"""Facts and Options in, steps out: what an install would do, without doing any of it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from installer.decide import restarts
from installer.decide.choice import Choice
from installer.decide.configs import without_us
from installer.decide.data import dataclass, field, replace
from installer.decide.effect import flat
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError, NotIdleError, Option, Remedy, UndoIncompleteError
from installer.decide.facts import Container, EngineFacts, Facts
from installer.decide.former import after_install
from installer.decide.inode import File
from installer.decide.mode import mode_of
from installer.decide.options import Drift, Options, RestartMode
from installer.decide.part import Part, attempted, id_of, rows_of
from installer.decide.parts import cdi, device_nodes, directories, engine, gpus, node, nri, toolkit
from installer.decide.parts.cdi import OWNER
from installer.decide.reloading import in_progress
from installer.decide.rows import Record, ToolkitRow
from installer.decide.steps import Reload, Step, WriteConfig
from installer.decide.texts import Ask, files_without_us, texts_alone
from installer.decide.toolkit import FOR_CDI, WHOLE
from installer.decide.toolkit_config import low_level_words

MODES: Final = ("", ".cdi", ".legacy")


@dataclass(frozen=True, slots=True)
class Plan:
    """A sum of parts, in the order of their steps, and what the ledger says before them and after.

    ``final`` is None where nothing is held any more. ``unproven`` names the engines that nobody will ask
    whether they serve what their config says. ``digest`` is that of all an engine's answer depends on. An
    undo stays incomplete for the containers ``in_use``, and for what is ``needed``. ``seen`` holds the digest
    of each config as it was read, "" where there was none; ``release`` is the toolkit's version, if it tells.
    ``pending`` tells why an engine is not restarted yet, ``due`` are those whose restart an earlier plan has
    left for later, and ``earlier`` what was written for it then: a roll-back takes that back as well.
    ``unmade`` is why there is no specification of all GPUs although a driver is loaded.
    """

    parts: tuple[Part, ...]
    in_progress: Record
    final: Record | None
    engines: Mapping[str, EngineFacts]
    digest: str = ""
    unproven: tuple[str, ...] = ()
    in_use: tuple[Container, ...] = ()
    seen: Mapping[PurePosixPath, str] = field(default_factory=dict)
    release: tuple[int, ...] | None = None
    pending: Mapping[str, NotIdleError] = field(default_factory=dict)
    due: frozenset[str] = frozenset()
    earlier: tuple[WriteConfig, ...] = ()
    unmade: InstallerError | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done, in this order."""
        return tuple(step for part in self.parts for step in part.steps)

    @property
    def why(self) -> tuple[str, ...]:
        """Why, for each step."""
        return tuple(why for part in self.parts for _, why in part.reasons)

    @property
    def reloaded(self) -> tuple[str, ...]:
        """The engines that read their configs anew."""
        return tuple(step.engine for step in self.steps if isinstance(step, Reload))

    @property
    def backups(self) -> tuple[File, ...]:
        """What is saved ahead of all steps."""
        return tuple(file for part in self.parts for file in part.backups)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the owner should know, and what stops nothing."""
        return tuple(note for part in self.parts for note in part.notes)

    @property
    def obstacles(self) -> tuple[InstallerError, ...]:
        """What keeps the plan from being carried out."""
        return tuple(error for part in self.parts for error in part.obstacles)

    @property
    def needed(self) -> tuple[InstallerError, ...]:
        """Why something of ours stays after an undo."""
        return tuple(error for part in self.parts for error in part.needed)

    def already_serves(self, reload: Reload) -> bool:
        """Tell whether an engine served what a reload is to bring about, when it was asked."""
        engine = self.engines.get(reload.engine)
        return engine is not None and engine.serving is not None and reload.satisfied_by(engine.serving)

    def and_part(self, part: Part) -> "Plan":
        """Return the plan with one part more."""
        return replace(self, parts=(*self.parts, part))


def entries_for(options: Options) -> tuple[RuntimeEntry, ...]:
    """Return the three runtimes as NVIDIA writes them (engine-facts.md#nvidia-runtimes).

    A custom name takes the place of ``nvidia``; one of the other two only chooses the default.
    """
    standard = tuple(f"nvidia{mode.replace('.', '-')}" for mode in MODES)
    chosen = options.runtime_name
    names = standard if chosen in standard else (chosen, *standard[1:])
    return tuple(
        RuntimeEntry(
            name,
            options.layout.toolkit / f"nvidia-container-runtime{mode}",
            default=options.set_as_default and name == chosen,
        )
        for name, mode in zip(names, MODES, strict=True)
    )


def plan_install(facts: Facts, options: Options, ask: Ask = texts_alone) -> Plan:
    """Return the steps that make the host serve our runtimes, or our devices by CDI; none where it does."""
    mode, reason = mode_of(facts.engines, facts.held, options)
    by_cdi = mode.by_cdi
    entries = () if by_cdi else entries_for(options)
    chosen, refused = engine.choices(entries, facts, options, ask) if not by_cdi else ((), ())
    engines = [engine.install(choice, entries, facts, options) for choice in chosen]
    words = [word for choice in chosen for word in choice.decision.low_level]
    # Containers may run on the toolkit: where no config is written it wraps what it wraps now.
    now = facts.held.toolkit.rendered if chosen and facts.held.toolkit else facts.toolkit.config
    if not any(choice.writes for choice in chosen):
        with suppress(InstallerError):  # it is no TOML, and is written anew
            words = [*low_level_words(now or "")] or words
    low_level = options.low_level or engine.low_level(words, facts, options)
    shipped = FOR_CDI if by_cdi else WHOLE
    payload = attempted(toolkit.ID, lambda: toolkit.install(facts, options, low_level, shipped))
    specification, of_gpus = cdi.install(facts, options), gpus.install(facts, options, reason)
    plugin = nri.install(facts, options, ask)
    parts = (
        node.install(facts, entries),
        *(Part(id_of(name), obstacles=(error,), refused=True) for name, error in facts.refused.items()),
        *refused,
        device_nodes.install(facts, options),
        payload,
        directories.install(facts, (specification, of_gpus, plugin, *engines)),
        specification,
        of_gpus,
        plugin,
        *map(engine.find_runtimes, chosen),
        *engines,
        toolkit.sweep(facts, payload),
    )
    return _installed(parts, facts, options, chosen)


def _installed(parts: tuple[Part, ...], facts: Facts, options: Options, chosen: tuple[Choice, ...]) -> Plan:
    """Return the sum of the parts of an install."""
    held, rows = facts.held, rows_of(parts)
    configs = sorted(rows.configs, key=lambda row: row.engine == OWNER)  # the specification comes last
    final = after_install(
        held,
        replace(
            rows, configs=tuple(configs), pid_file=held.pid_file, published=held.published, finished=True
        ),
    )
    steps = [step for part in parts for step in part.steps]
    pending = {
        each.engine.name: restarts.not_idle(each.engine, each.engine.creating)
        for each in chosen
        if each.waits
    }
    plan = Plan(
        parts,
        in_progress(held, final, steps),
        final,
        {each.name: each for each in facts.engines},
        _digest(facts, options, rows.toolkit),
        unproven=tuple(
            each.engine.name
            for each in chosen
            if each.engine.hook is not None
            or each.engine.name in pending
            or (options.restart_mode is RestartMode.NONE and not each.engine.serves(each.reload))
        ),
        seen=facts.digests,
        release=facts.version,
        pending=pending,
        due=frozenset(row.name for row in held.engines if row.restart_due),
        earlier=tuple(write for each in chosen for write in _earlier(each, facts)),
        unmade=facts.gpus.unmade if facts.gpus else None,
    )
    return plan.and_part(Part("failed-before", obstacles=_refused_before(plan, held, options)))


def _earlier(choice: Choice, facts: Facts) -> Iterator[WriteConfig]:
    """Yield what earlier installs have written, and a restart brings into force only now.

    Where the engine does not serve that, it is taken back as if it were of this plan.
    """
    engine = choice.engine
    due = any(row.restart_due for row in facts.held.engines if row.name == engine.name)
    for path, without in files_without_us(engine, facts).items() if due and choice.reloads else ():
        now = facts.contents.get(path)
        if now != without:
            yield WriteConfig(engine.name, path, without, now)


def _digest(facts: Facts, options: Options, payload: ToolkitRow | None) -> str:
    """Return the digest of all an engine's answer depends on: what failed once fails the same way again."""
    engines = []
    for each in facts.engines:
        files = [without_us(path, facts).file for path in each.files]
        texts = [file.digest if file else "" for file in files]
        serves = _served(each) if ENGINES[each.name].reload is not ReloadMethod.HUP else ()
        engines.append(
            (each.name, each.version, each.build, each.unit, each.start, each.config, serves, *texts)
        )
    asked = replace(options, retry=False, drift=Drift.AUTO)
    if asked.restart_mode is RestartMode.WHEN_IDLE:  # when it is restarted changes nothing of its answer
        asked = replace(asked, restart_mode=RestartMode.AUTO)
    asked = replace(asked, metrics_textfile=None, nfd_features=None, metrics_listen=None)
    words = repr((engines, payload.version if payload else "", asked))
    return sha256(words.encode()).hexdigest()


def _served(engine: EngineFacts) -> tuple[object, ...]:
    """Return what an engine serves; one that is signalled may have kept what a failed try told it."""
    if engine.serving is None:
        return ()
    handlers = sorted(
        (name, sorted(map(repr, flat(one.table)))) for name, one in engine.serving.handlers.items()
    )
    return (engine.serving.default, handlers)


def _refused_before(plan: Plan, held: Record, options: Options) -> tuple[InstallerError, ...]:
    """Return why a plan that would reload an engine is not tried again as it is."""
    failed = held.failed
    reloads = any(isinstance(step, Reload) for step in plan.steps) or plan.pending
    if failed is None or not reloads or options.retry or failed.digest != plan.digest:
        return ()
    problem = f"configure again what failed before ({failed.problem})"
    if not held.finished and held.toolkit is not None:
        return (
            UndoIncompleteError(
                problem,
                remedy="run toolkit-installer uninstall: the roll-back of it did not end well",
                code="failed-before",
            ),
        )
    remedy = Remedy("change config, payload, engine, unit or options, or try again with ", Option("retry"))
    return (InstallerError(problem, remedy=remedy, code="failed-before"),)
