"""What an engine would have in force with other texts: its own program says so, and no disk is written to."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import text_of, tree_of
from installer.decide.effect import Effect
from installer.decide.engine_part import texts_alone
from installer.decide.engines import ENGINES, containerd_effect
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import File, Kind
from installer.decide.steps import Step, WriteConfig
from installer.decide.texts import Texts
from installer.host.files import Host
from installer.host.memory import Held, held_directory, held_texts
from installer.host.programs import ENVIRONMENT, Ran, run_in
from installer.record.cmdline import CONFIG, DROP_INS
from installer.record.live import PATH
from installer.record.started import Started, started, without

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
        program = self._program(engine)
        if ENGINES[engine.name].found_by or engine.hook is not None:
            return told
        if program is None:
            self._unasked[engine.name] = "its program is not known here"
            return told
        match engine.name:
            case "docker":
                ran = self._docker(program, engine, files)
            case "containerd":
                ran = self._containerd(program, engine, files)
            case _:
                ran = self._crio(program, engine, files)
        if ran is None:
            self._unasked[engine.name] = f"{program} cannot tell here"
            return told
        if ran.returncode and UNKNOWN_FLAG not in ran.stderr:
            return Effect({}, "", undefined=told.undefined, broken=f"{program}: {ran.last_line}")
        if engine.name != "containerd" or told.broken:
            return told
        try:
            return containerd_effect.effect_of(tomllib.loads(ran.stdout))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InstallerError(
                f"understand what {program} says of its config ({error})", remedy="report this as a bug"
            ) from error

    def _program(self, engine: EngineFacts) -> PurePosixPath | None:
        """Return what the engine runs, if it goes by its name: others would take the words differently."""
        name, host = ENGINES[engine.name].process, self._host
        if engine.exe is not None:
            return engine.exe if engine.exe.name == name and host.kind(engine.exe) is Kind.FILE else None
        return next((path for path in (place / name for place in PATH) if host.kind(path) is Kind.FILE), None)

    def _docker(
        self, program: PurePosixPath, engine: EngineFacts, files: Mapping[PurePosixPath, File]
    ) -> Ran | None:
        """Validate as the running dockerd was started: what a flag says may not stand in the file as well.

        Where nobody can tell how it was started, what the program has to say of the present config too, with
        which it runs, is no reason against another: it comes of flags or an environment that it has not got.
        """
        as_running = started(self._host, engine)
        ran = self._validated(program, engine, files.get(engine.config), as_running)
        if as_running is not None or ran is None or not ran.returncode or UNKNOWN_FLAG in ran.stderr:
            return ran
        before = self._validated(program, engine, self._contents.get(engine.config), None)
        return None if before is None or before.last_line == ran.last_line else ran

    def _validated(
        self, program: PurePosixPath, engine: EngineFacts, file: File | None, as_running: Started | None
    ) -> Ran | None:
        given = without(as_running.words, CONFIG[engine.name]) if as_running else ()
        with held_texts(1) as (root,):
            root.fill(text_of(file or File(b"{}"), engine.config))
            words = ("--validate", "--config-file", root.name, *given)
            return self._run(program, words, {engine.config: root}, as_running)

    def _containerd(
        self, program: PurePosixPath, engine: EngineFacts, files: Mapping[PurePosixPath, File]
    ) -> Ran | None:
        trees = {path: tree_of(file, path) for path, file in files.items()}
        texts = {path: text_of(file, path) for path, file in files.items()}
        read = [path for path, _ in containerd_effect.reachable(engine.config, trees)]
        with held_texts(len(read)) as held:
            places = dict(zip(read, held, strict=True))
            put = containerd_effect.as_read(engine.config, texts, trees, lambda path: places[path].name)
            for path, text in put.items():
                places[path].fill(text)
            words = ("--config", places[engine.config].name, "config", "dump")
            return self._run(program, words, places, started(self._host, engine))

    def _crio(
        self, program: PurePosixPath, engine: EngineFacts, files: Mapping[PurePosixPath, File]
    ) -> Ran | None:
        """Put the drop-ins into a directory of their own: CRI-O reads everything in it, whatever its name."""
        beside = engine.drop_in.parent if engine.drop_in else None
        texts = {
            path.relative_to(beside): text_of(file, path)
            for path, file in files.items()
            if beside and path.is_relative_to(beside)
        }
        with held_texts(1) as (root,), held_directory(texts) as drop_ins:
            root.fill(text_of(files.get(engine.config), engine.config))
            as_running = started(self._host, engine)
            told = without(as_running.words, (*CONFIG["crio"], *DROP_INS)) if as_running else ()
            words = ("--config", root.name, "--config-dir", drop_ins.name, *told, "config")
            places = {engine.config: root, beside or engine.config: drop_ins}
            return self._run(program, words, places, as_running)

    def _run(
        self,
        program: PurePosixPath,
        words: Sequence[str],
        places: Mapping[PurePosixPath, Held],
        as_running: Started | None = None,
    ) -> Ran | None:
        """Run a program that is given ``places``; in what it says they have the names that the host knows."""
        ran = run_in(
            self._host.here(ROOT),
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
