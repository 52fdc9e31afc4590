"""What an engine would have in force with other texts: its own program says so, and no disk is written to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import text_of
from installer.decide.data import replace
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.row import Check, Question
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import File, Kind
from installer.decide.steps import Step, WriteConfig
from installer.decide.texts import Texts, texts_alone
from installer.host.files import Host
from installer.host.memory import Held, held_directory, held_texts
from installer.host.programs import ENVIRONMENT, Ran, run_in
from installer.record.started import PATH, Started, started, without

ANSWER_S: Final = 5.0
ROOT: Final = PurePosixPath("/")
UNKNOWN_FLAG: Final = "unknown flag"  # dockerd 20.10 has no --validate


class Trials:
    """Asks engines' own programs, in the host's own root, each question once.

    Texts are handed over in memory: no secret of a config gets onto a disk, and nothing is
    left by a crash. Where a program cannot be run the texts alone have to tell; the running engine is asked
    afterwards in any case.
    """

    def __init__(self, host: Host, contents: Texts) -> None:
        self._host = host
        self._contents = contents
        self._unasked: dict[str, str] = {}
        self._known: dict[tuple[str, tuple[tuple[PurePosixPath, str], ...]], Effect] = {}

    def unvalidated(self, steps: Iterable[Step]) -> Iterator[str]:
        """Yield the engines that are given a text which their programs have not read, and why."""
        written = {step.engine for step in steps if isinstance(step, WriteConfig)}
        for name, reason in self._unasked.items():
            if name in written:
                yield f"the config of {name} is not validated: {reason}"

    def __call__(self, engine: EngineFacts, texts: Texts) -> Effect:
        """Return what ``engine`` would have in force with ``texts`` in the place of those that lie there.

        Raises:
            InstallerError: its program says what nobody understands.
        """
        there = {path: self._contents.get(path) for path in engine.files} | dict(texts)
        files = {path: file for path, file in there.items() if file is not None}
        key = engine.name, tuple((path, files[path].digest) for path in sorted(files))
        if key not in self._known:
            self._known[key] = self._asked(engine, files)
        return self._known[key]

    def _asked(self, engine: EngineFacts, files: Mapping[PurePosixPath, File]) -> Effect:
        try:
            told = texts_alone(engine, files)
        except InstallerError as error:
            told = Effect({}, "", broken=error.problem)
        row, program = ENGINES[engine.name], self._program(engine)
        if row.check is None or engine.hook is not None:
            return told
        if program is None:
            self._unasked[engine.name] = "its program is not known here"
            return told
        check = row.check(_question(engine, files))
        ran = self._ran(program, engine, check)
        if ran is None:
            self._unasked[engine.name] = f"{program} cannot tell here"
            return told
        if ran.returncode and UNKNOWN_FLAG not in ran.stderr:
            return Effect({}, "", undefined=told.undefined, broken=f"{program}: {ran.last_line}")
        return told if told.broken or check.says is None else check.says(ran.stdout)

    def _program(self, engine: EngineFacts) -> PurePosixPath | None:
        """Return what the engine runs, if it goes by its name: others would take the words differently."""
        row, host = ENGINES[engine.name], self._host
        name = row.process
        if engine.exe is not None:
            return engine.exe if engine.exe.name == name and host.kind(engine.exe) is Kind.FILE else None
        usual = (row.program,) if row.program else tuple(place / name for place in PATH)
        return next((path for path in usual if host.kind(path) is Kind.FILE), None)

    def _ran(self, program: PurePosixPath, engine: EngineFacts, check: Check) -> Ran | None:
        """Ask as the running engine was started.

        Where nobody can tell how, what a program whose answer depends on it has to say of the present config
        too, with which it runs, is no reason against another: it comes of flags or an environment that it has
        not got.
        """
        as_running = started(self._host, engine)
        ran = self._staged(program, check, as_running)
        if as_running is not None or not check.by_start:
            return ran
        if ran is None or not ran.returncode or UNKNOWN_FLAG in ran.stderr:
            return ran
        present = {path: file for path in engine.files if (file := self._contents.get(path))}
        ask = ENGINES[engine.name].check
        before = self._staged(program, ask(_question(engine, present)), None) if ask else None
        return None if before is None or before.last_line == ran.last_line else ran

    def _staged(self, program: PurePosixPath, check: Check, as_running: Started | None) -> Ran | None:
        """Put the texts where only the program finds them, and run it."""
        with ExitStack() as stack:
            held = stack.enter_context(held_texts(len(check.paths)))
            places = dict(zip(check.paths, held, strict=True))
            for path, text in check.texts(lambda path: places[path].name).items():
                places[path].fill(text)
            for path, texts in check.beside.items():
                places[path] = stack.enter_context(held_directory(texts))
            told = as_running.words if as_running and check.given is not None else ()
            given = without(told, check.given or ())
            words = [places[word].name if isinstance(word, PurePosixPath) else word for word in check.words]
            return self._run(program, [*words, *given, *check.last], places, as_running)

    def _run(
        self,
        program: PurePosixPath,
        words: Sequence[str],
        places: Mapping[PurePosixPath, Held],
        as_running: Started | None = None,
    ) -> Ran | None:
        """Run a program that is given ``places``; in what it says they have the names that the host knows."""
        ran = run_in(
            self._host.local_path(ROOT),
            [str(program), *words],
            timeout_s=ANSWER_S,
            environment=ENVIRONMENT | dict(as_running.environment if as_running else {}),
            fds=[place.fd for place in places.values()],
        )
        if ran is None:
            return None
        said = ran.stderr
        # The longest first: /proc/self/fd/1 begins the name of /proc/self/fd/11 too.
        for path, place in sorted(places.items(), key=lambda each: -len(each[1].name)):
            said = said.replace(place.name, str(path))
        return replace(ran, stderr=said)


def _question(engine: EngineFacts, files: Mapping[PurePosixPath, File]) -> Question:
    texts = {path: text_of(file, path) for path, file in files.items()}
    rendered = ENGINES[engine.name].rendered(engine.config) or engine.config
    return Question(engine.config, engine.drop_in, texts, text_of(engine.rendered, rendered))
