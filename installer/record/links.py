"""Where names lead that configs and engines have for programs: by links, mounts, a PATH, or in a script."""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import Facts
from installer.decide.inode import Kind
from installer.decide.layout import Layout
from installer.decide.options import Options
from installer.decide.references import programs_named
from installer.decide.toolkit import Artifact
from installer.host.files import Host
from installer.host.identity import Identity, identities_below, identity, script
from installer.record.started import PATH

COMMENT: Final = re.compile(r"(?m)^\s*#.*$")
WORD: Final = re.compile(r"[\w.+-]+")
SCRIPT_DEPTH: Final = 5  # of scripts that start each other
MOST_PROGRAMS: Final = 256  # that are opened to see whether they are scripts

Places = tuple[PurePosixPath, ...]


class Ours:
    """The files of the toolkit, by what they are and not by a name; looked at where a name does not tell.

    Where another toolkit stands in the place of ours, as ``theirs`` says, those of our versions.
    """

    def __init__(self, host: Host, layout: Layout, *, theirs: bool = False) -> None:
        self.layout = layout
        self._host = host
        self._theirs = theirs
        self._listed: dict[tuple[Host, PurePosixPath], frozenset[str]] = {}

    @cached_property
    def files(self) -> Mapping[Identity, PurePosixPath]:
        """Those that are installed."""
        places = (() if self._theirs else (self.layout.toolkit,)) + (self.layout.versions,)
        return {what: path for place in places for what, path in identities_below(self._host, place).items()}

    def behind(self, host: Host, path: PurePosixPath, places: Places = PATH) -> PurePosixPath | None:
        """Return the file of the toolkit that a path leads to, or a script there names; None for another.

        So does a script that such a script names, by its path or by a word that is looked for in ``places``.
        """
        what = identity(host, path)
        if what is None or not self.files or what in self.files:  # nothing but a plain file is opened
            return self.files.get(what) if what else None
        seen, waiting = {what}, [path]
        for _ in range(SCRIPT_DEPTH):
            named = [each for one in waiting for each in self._named_in(host, one, places)]
            waiting = []
            for each in dict.fromkeys(named):
                found = self._identity(host, each)
                if found is None:
                    continue
                if found in self.files:
                    return self.files[found]
                if found not in seen and len(seen) < MOST_PROGRAMS:
                    seen.add(found)
                    waiting.append(each)
        return None

    def _named_in(self, host: Host, path: PurePosixPath, places: Places) -> Iterator[PurePosixPath]:
        """Yield the programs that a script names; a directory that it names may be one of its PATH."""
        said = COMMENT.sub("", script(host, path))
        if not said:
            return
        paths, words = [PurePosixPath(word) for word in paths_in(said, self.layout)], {*WORD.findall(said)}
        yield from paths
        for place in dict.fromkeys((path.parent, *paths, *places)):
            yield from (place / name for name in self._names(host, place) & words)

    def _names(self, host: Host, place: PurePosixPath) -> frozenset[str]:
        if (host, place) not in self._listed:
            self._listed[host, place] = frozenset()
            with suppress(InstallerError):
                self._listed[host, place] = frozenset(host.names(place))
        return self._listed[host, place]

    @staticmethod
    def _identity(host: Host, path: PurePosixPath) -> Identity | None:
        with suppress(InstallerError):
            return identity(host, path)
        return None


def links_named(host: Host, facts: Facts, layout: Layout) -> dict[str, PurePosixPath]:
    """Return where each program really is that something names otherwise, the install-dir as well.

    A link that a stranger could have placed leads nowhere: he decides nothing.
    """
    found, ours, paths = {}, Ours(host, layout), paths_of(facts)
    places = tuple(dict.fromkeys(place for path in paths for place in path))
    for value in dict.fromkeys((str(layout.install_dir), *programs_of(facts))):
        for path in candidates(host, value, paths):
            with suppress(InstallerError):
                real = host.resolve(path)
                leads = real if real.is_relative_to(layout.home) else ours.behind(host, real, places)
                if (leads or real) != path:
                    found[value] = leads or real
                if leads is not None:
                    break
    return found


def paths_of(facts: Facts) -> tuple[Places, ...]:
    """Return the PATHs by which engines find programs, each once."""
    return tuple(dict.fromkeys((*(path for engine in facts.engines for path in engine.paths), PATH)))


def unnamed(host: Host, words: Iterable[str], paths: Iterable[Places]) -> Iterator[PurePosixPath]:
    """Yield the programs that engines with these PATHs start by a word that no config has to name."""
    wanted = re.compile("|".join(fnmatch.translate(word) for word in words))
    for path in paths:
        found: dict[str, PurePosixPath] = {}
        for place in path:
            with suppress(InstallerError):
                for name in filter(wanted.match, host.names(place)):
                    if host.kind(place / name) is Kind.FILE:
                        found.setdefault(name, place / name)
        yield from found.values()


def programs_of(facts: Facts) -> Iterator[str]:
    """Yield each program that configs, other files, flags and running engines name."""
    for path, file in facts.contents.items():
        yield from programs_named(file, path)
    for values in facts.handed.values():
        yield from values
    for engine in facts.engines:
        yield from (*engine.flags.runtimes.values(), *engine.next_flags.runtimes.values())
        yield from engine.serving.binaries.values() if engine.serving else ()


def candidates(host: Host, value: str, paths: Iterable[Places]) -> Iterator[PurePosixPath]:
    """Yield where a program is, as engines with these PATHs look for it."""
    if "/" in value:
        yield from [PurePosixPath(value)] if value.startswith("/") else []
        return
    for path in paths if value else ():
        with suppress(InstallerError):
            yield from [place / value for place in path if host.kind(place / value) is Kind.FILE][:1]


def paths_in(said: str, layout: Layout) -> list[str]:
    """Return every word of a text that is a path: YAML, which has no parser here, scripts and JSON alike."""
    ours = re.escape(str(layout.install_dir))  # which may hold what ends a word
    words = rf"""(?<![^\s"'=:,;\[({{<|>])(?:{ours}|/)[^\s\0"',:;\[\](){{}}<|>]*"""
    return re.findall(words, COMMENT.sub("", said).replace("\\/", "/"))


def loops(host: Host, options: Options, artifacts: Iterable[Artifact]) -> Iterator[InstallerError]:
    """Yield which program of the host's is not its own but leads to our toolkit, and so to itself."""
    ours = Ours(host, options.layout)
    for artifact in artifacts if options.in_place else ():
        if ours.behind(host, artifact.own_path) is not None:
            yield InstallerError(
                f"use {artifact.own_path} where it is (it leads into {options.layout.toolkit}: to itself)",
                remedy=Remedy("install the package again, or choose another ", Option("toolkit-source")),
                code="payload-unusable",
            )
