"""NVIDIA's command line and environment, from nvidia.toml, read as NVIDIA's tool reads them.

Click has another grammar: here an empty variable counts, a bool takes no word, long names take one dash
(compatibility.md#grammar).
"""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from typing import Any, Final

from msgspec import Struct, convert

from installer.errors import Option, UsageError

TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
ENGINE_OF: Final = {"DOCKER": "docker", "CONTAINERD": "containerd", "CRIO": "crio"}
# Another's path cannot be meant (compatibility.md#d38).
OWN_ENGINE_ONLY: Final = frozenset({"config", "socket"})
OLD_WORDS: Final = ("toolkit-args", "runtime-args")  # the second counts before the first
EMPTY: Final = {"bool": False, "text": "", "words": ""}
# Set by the GPU Operator and by images, and of no concern to the installer.
FOREIGN: Final = frozenset(
    {"HOST_ROOT", "IS_HOST_DRIVER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
)
ALIKE: Final = 0.9
LENGTHS_APART: Final = 2
NO_SHORT: Final[Mapping[str, str]] = {}
SPECIAL: Final = {"h": "help", "help": "help", "v": "version", "version": "version"}


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One flag of nvidia.toml, which says what each field is; ``short`` are its own flags by engine."""

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
        """All its names, the long ones first."""
        return (self.name, *self.also)

    def default_for(self, name: str) -> Any:
        """Return what it holds where it is not set."""
        return self.default[name] if isinstance(self.default, dict) else self.default


class Setting(Struct, frozen=True):
    """What one flag holds, and who said so: ``--flag``, a variable, or "" if not set."""

    value: Any
    by: str = ""


class CommandLine(Struct, frozen=True):
    """A command line, read: what each flag holds by its first name; ``special`` is help or version, or ""."""

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
    """Return an option of a remedy as it is said here: by a flag, which beats all else, or a variable."""
    row = next((row for row in rows() if option.name in {row.own, *row.names}), None)
    if row is None:
        return f"toolkit-installer's {option}"
    value = f"={option.value}" if option.value else ""
    return f"--{row.name}{value} ({row.env[0]})"


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandLine:
    """Return what a command line and an environment ask for; UsageError where a word makes no sense."""
    line, arguments = _parse(arguments)
    if special := next((name for name in SPECIAL.values() if name in line), ""):
        return CommandLine({}, special=special)
    by_name = {row.name: row for row in rows()}
    runtime = by_name["runtime"]
    engine = _resolve(runtime, "docker", [line], environment).value
    if engine not in runtime.choices:
        expected = ", ".join(runtime.choices)
        raise UsageError(f"configure the runtime {engine!r}", remedy=f"give one of {expected}")
    lines = [line]
    for row in (by_name[name] for name in OLD_WORDS):
        try:
            words = shlex.split(_resolve(row, engine, [line], environment).value)
        except ValueError as error:
            problem = f"read --{row.name} ({str(error).lower()})"
            raise UsageError(problem, remedy="close the quotation") from error
        lines.insert(1, _parse(words, row.short.get(engine, NO_SHORT))[0])
    settings = {row.name: _resolve(row, engine, lines, environment) for row in rows()}
    warnings = [*_find_unheeded(settings, environment)]
    # What follows a flag that takes no word, as in --no-runtime-config false (compatibility.md#grammar).
    bools = [word for word in arguments if word in TRUE | FALSE]
    warnings += [f"the argument {word} is ignored" for word in bools]
    # In the form of 2021 the one argument is the directory to install into.
    words, by = [word for word in arguments if word not in bools], settings["toolkit-install-dir"].by
    if words[1:]:
        problem = f"take the argument {words[1]!r} (one directory is all there can be)"
        raise UsageError(problem, remedy="give all else as flags, see --help")
    if words and not words[0].startswith("/"):
        problem = f"install into {words[0]!r} (it is not an absolute path)"
        raise UsageError(problem, remedy="give an absolute path")
    if words and by.startswith("-"):
        warnings.append(f"{words[0]} is ignored: {by} says where to install")
    elif words:
        settings["toolkit-install-dir"] = Setting(words[0], "the first argument")
    return CommandLine(settings, tuple(warnings))


def _parse(words: Sequence[str], short: Mapping[str, str] = NO_SHORT) -> tuple[dict[str, Setting], list[str]]:
    """Return what each flag holds by its first name, ``help`` and ``version`` alone, and the arguments."""
    known = {name: row for row in rows() for name in row.names}
    known |= {alias: known[name] for alias, name in short.items()}
    flags: dict[str, Setting] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return flags, rest + left
        if word == "help" and not rest:
            return {"help": Setting(value=True)}, []
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        flag, equals, text = word.partition("=")
        name = flag.removeprefix("-").removeprefix("-")
        if name in SPECIAL and name not in short:
            return {SPECIAL[name]: Setting(value=True)}, []
        if name not in known:
            raise UsageError(f"use {flag} (there is no such flag)", remedy="see --help for those there are")
        row = known[name]
        if not equals and row.kind == "bool":
            text = "true"
        elif not equals and not left:
            raise UsageError(f"use {flag} (it needs a value)", remedy=f"write {flag}=VALUE")
        elif not equals:
            text = left.pop(0)
        value = _read_value(row, text, flag)
        if row.kind == "list" and row.name in flags:
            value = [*flags[row.name].value, *value]
        flags[row.name] = Setting(value, flag)
    return flags, rest


def _resolve(
    row: Row, engine: str, lines: Sequence[Mapping[str, Setting]], environment: Mapping[str, str]
) -> Setting:
    """Return what a flag holds: by the first line or the first variable that says it, else its default."""
    for line in lines:
        if row.name in line:
            return line[row.name]
    for variable in row.env:
        of = ENGINE_OF.get(variable.partition("_")[0], engine)
        if variable in environment and (row.name not in OWN_ENGINE_ONLY or of == engine):
            text = environment[variable]
            empty = EMPTY.get(row.kind, row.default_for(engine))
            return Setting(_read_value(row, text, variable) if text else empty, variable)
    return Setting(row.default_for(engine))


def _read_value(row: Row, text: str, by: str) -> Any:
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
    """Yield what is set and does not count: behind an empty variable, or misspelt."""
    for row in rows():
        by = settings[row.name].by
        later = row.env[row.env.index(by) + 1 :] if by in row.env and not environment[by] else ()
        for variable in filter(environment.get, later):
            yield f"{variable} is ignored: {by} is set, although empty, and comes first"
    known = {variable for row in rows() for variable in row.env}
    for name in sorted(environment.keys() - known - FOREIGN):
        for other in sorted(known):
            near = abs(len(name) - len(other)) <= LENGTHS_APART and name[-1:] == other[-1:]
            if near and SequenceMatcher(None, name, other).ratio() >= ALIKE:
                yield f"the variable {name} is not known: is {other} meant?"
                break
