"""NVIDIA's command line and environment, from nvidia.toml, read as NVIDIA's tool reads them.

Click has another grammar: here an empty variable counts, a bool takes no word, long names take one dash
(compatibility.md#grammar).
"""

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from typing import Any, Final

from msgspec import Struct, convert

from installer.errors import Option, UsageError

TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
ENGINE_OF: Final = {"DOCKER": "docker", "CONTAINERD": "containerd", "CRIO": "crio"}
# A variable with the name of another engine does not count for these flags (compatibility.md#d38).
OWN_ENGINE_ONLY: Final = frozenset({"config", "socket"})
OLD_WORDS: Final = ("toolkit-args", "runtime-args")  # the second counts before the first
EMPTY: Final = {"bool": False, "text": "", "words": ""}
# Variables that the GPU Operator and images set, and that the installer ignores.
FOREIGN: Final = frozenset(
    {"HOST_ROOT", "IS_HOST_DRIVER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
)
ALIKE: Final = 0.9
LENGTHS_APART: Final = 2
NO_SHORT: Final[Mapping[str, str]] = {}
SPECIAL: Final = {"h": "help", "help": "help", "v": "version", "version": "version"}


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One flag of nvidia.toml, whose head explains the fields; ``short`` are flags of old words by engine."""

    name: str
    default: Any
    help: str
    env: tuple[str, ...]
    also: tuple[str, ...] = ()
    kind: str = "text"
    choices: tuple[str, ...] = ()
    short: Mapping[str, Mapping[str, str]] = {}
    ours: str = ""
    own: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the long names first."""
        return (self.name, *self.also)

    def default_for(self, name: str) -> Any:
        """Return the default for an engine."""
        return self.default[name] if isinstance(self.default, dict) else self.default


class Setting(Struct, frozen=True):
    """The value of a flag and its source: ``--flag``, a variable, or "" for the default."""

    value: Any
    by: str = ""


class CommandLine(Struct, frozen=True):
    """A command line: the setting of each flag by the first name; ``special`` is help, version, or ""."""

    settings: Mapping[str, Setting]
    warnings: tuple[str, ...] = ()
    special: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    def given(self, name: str) -> bool:
        """Tell whether this flag is set."""
        return bool(self.settings[name].by)


@cache
def rows() -> tuple[Row, ...]:
    """Return all flags."""
    flags = tomllib.loads(files("installer.cli").joinpath("nvidia.toml").read_text())["flag"]
    for name, row in flags.items():
        usual = {"name": name, "env": [re.sub("[-.]", "_", name).upper()]}
        flags[name] = {**usual, "default": EMPTY.get(row.get("kind", "text"), []), **row}
    return convert([*flags.values()], tuple[Row, ...])


def spell_option(option: Option) -> str:
    """Return an option of a remedy as a flag of NVIDIA's with its variable, or as a flag of our own."""
    for row in rows():
        if option.name == row.own or option.name in row.names:
            value = f"={option.value}" if option.value else ""
            return f"--{row.name}{value} ({row.env[0]})"
    return f"toolkit-installer's {option}"


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandLine:
    """Return the settings of a command line and an environment.

    Raises:
        UsageError: a flag is unknown, or a value makes no sense.
    """
    flags, words = _parse(arguments)
    for special in SPECIAL.values():
        if special in flags:
            return CommandLine({}, special=special)

    by_name = {row.name: row for row in rows()}
    runtime = by_name["runtime"]
    engine = _resolve(runtime, "docker", [flags], environment).value
    if engine not in runtime.choices:
        expected = ", ".join(runtime.choices)
        raise UsageError(f"configure the runtime {engine!r}", remedy=f"give one of {expected}")

    lines = [flags]
    for name in OLD_WORDS:
        row = by_name[name]
        old_words = _split_words(row, _resolve(row, engine, [flags], environment).value)
        old_flags, _ = _parse(old_words, row.short.get(engine, NO_SHORT))
        lines.insert(1, old_flags)
    settings = {row.name: _resolve(row, engine, lines, environment) for row in rows()}
    warnings = list(_find_unheeded(settings, environment))

    # Words after a flag that takes none, as in --no-runtime-config false (compatibility.md#grammar).
    bools = [word for word in words if word in TRUE | FALSE]
    warnings += [f"the argument {word} is ignored" for word in bools]
    # In the form of 2021 the one argument is the directory to install into.
    directory = _only_directory([word for word in words if word not in bools])
    source = settings["toolkit-install-dir"].by
    if directory and source.startswith("-"):
        warnings.append(f"{directory} is ignored: {source} says where to install")
    elif directory:
        settings["toolkit-install-dir"] = Setting(directory, "the first argument")
    return CommandLine(settings, tuple(warnings))


def _split_words(row: Row, text: str) -> list[str]:
    """Return the words of the command line in an old variable; raise UsageError for an open quotation."""
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"read --{row.name} ({str(error).lower()})"
        raise UsageError(problem, remedy="close the quotation") from error


def _only_directory(arguments: Sequence[str]) -> str:
    """Return the only argument, "" without arguments; raise UsageError unless it is an absolute path."""
    if not arguments:
        return ""
    if len(arguments) > 1:
        problem = f"take the argument {arguments[1]!r} (one directory is all there can be)"
        raise UsageError(problem, remedy="give all else as flags, see --help")
    if not arguments[0].startswith("/"):
        problem = f"install into {arguments[0]!r} (it is not an absolute path)"
        raise UsageError(problem, remedy="give an absolute path")
    return arguments[0]


def _parse(words: Sequence[str], short: Mapping[str, str] = NO_SHORT) -> tuple[dict[str, Setting], list[str]]:
    """Parse a command line.

    Args:
        words: the command line.
        short: further names of flags.

    Returns:
        The settings of the given flags by first name, or ``help`` or ``version`` alone; and the arguments.
    """
    known = _rows_by_name(short)
    flags: dict[str, Setting] = {}
    arguments: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            return flags, arguments + remaining
        if word == "help" and not arguments:
            return {"help": Setting(value=True)}, []
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        flag, equals, text = word.partition("=")
        name = flag.removeprefix("-").removeprefix("-")
        if name in SPECIAL and name not in short:
            return {SPECIAL[name]: Setting(value=True)}, []
        if name not in known:
            raise UsageError(f"use {flag} (there is no such flag)", remedy="see --help for those there are")
        row = known[name]
        if not equals:
            text = _take_value(row, flag, remaining)
        value = _read_value(row, text, flag)
        if row.kind == "list" and row.name in flags:
            value = [*flags[row.name].value, *value]
        flags[row.name] = Setting(value, flag)
    return flags, arguments


def _rows_by_name(short: Mapping[str, str]) -> dict[str, Row]:
    """Return the flags by each of their names; ``short`` are further names, each with a known name."""
    by_name = {}
    for row in rows():
        for name in row.names:
            by_name[name] = row
    aliases = {alias: by_name[name] for alias, name in short.items()}
    return by_name | aliases


def _take_value(row: Row, flag: str, remaining: list[str]) -> str:
    """Return the text of a flag without ``=``: "true", or the next word, taken from ``remaining``."""
    if row.kind == "bool":
        return "true"
    if not remaining:
        raise UsageError(f"use {flag} (it needs a value)", remedy=f"write {flag}=VALUE")
    return remaining.pop(0)


def _resolve(
    row: Row, engine: str, lines: Sequence[Mapping[str, Setting]], environment: Mapping[str, str]
) -> Setting:
    """Return the setting of a flag: of the first line or the first variable with the flag, or the default."""
    for line in lines:
        if row.name in line:
            return line[row.name]
    for variable in row.env:
        if variable not in environment:
            continue
        engine_of_variable = ENGINE_OF.get(variable.partition("_")[0], engine)
        if row.name in OWN_ENGINE_ONLY and engine_of_variable != engine:
            continue
        text = environment[variable]
        if text:
            return Setting(_read_value(row, text, variable), variable)
        return Setting(EMPTY.get(row.kind, row.default_for(engine)), variable)
    return Setting(row.default_for(engine))


def _read_value(row: Row, text: str, by: str) -> Any:
    """Return the value of a text by the kind of its flag; raise UsageError for a text of another kind."""
    match row.kind:
        case "bool" if text not in TRUE | FALSE:
            problem = f"read {text!r} in {by} (it is neither true nor false)"
            raise UsageError(problem, remedy="write true or false")
        case "bool":
            return text in TRUE
        case "list":
            return [item.strip() for item in text.split(",")] if text else []
        case "number" if not text.isdecimal():
            raise UsageError(f"read {text!r} in {by} (it is no number)", remedy="give a number")
        case "number":
            return int(text)
        case _:
            return text


def _find_unheeded(settings: Mapping[str, Setting], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each variable without effect: behind an empty variable, or misspelt."""
    for row in rows():
        source = settings[row.name].by
        if source not in row.env or environment[source]:
            continue
        later = row.env[row.env.index(source) + 1 :]
        for variable in later:
            if environment.get(variable):
                yield f"{variable} is ignored: {source} is set, although empty, and comes first"

    known: set[str] = set()
    for row in rows():
        known.update(row.env)
    for name in sorted(environment.keys() - known - FOREIGN):
        meant = _find_alike(name, known)
        if meant is not None:
            yield f"the variable {name} is not known: is {meant} meant?"


def _find_alike(name: str, known: Collection[str]) -> str | None:
    """Return the first known variable with almost the same name; None without one."""
    for other in sorted(known):
        near = abs(len(name) - len(other)) <= LENGTHS_APART and name[-1:] == other[-1:]
        if near and SequenceMatcher(None, name, other).ratio() >= ALIKE:
            return other
    return None
