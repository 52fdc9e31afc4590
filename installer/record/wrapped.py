"""The words that a unit's command gives to an engine at last, through a shell or a script too."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.inode import Kind
from installer.host.devices import size_of
from installer.host.files import Host

SHELLS: Final = frozenset({"sh", "bash", "dash", "ash"})
SCRIPT_BYTES: Final = 64 << 10
BETWEEN: Final = frozenset("();<>|&")
BEFORE: Final = frozenset({"exec", "env", "command", "then", "else", "do"})
ALL_GIVEN: Final = frozenset({"$@", "$*"})
UNKNOWN: Final = frozenset("$`*?[~{")  # what a shell makes of these is not known here


def engine_words(host: Host, words: Sequence[str], process: str) -> tuple[str, ...] | None:
    """Return the words that follow an engine's program; None where nobody can tell them for sure."""
    name = _name("".join(words[:1]))
    if name == process:
        return tuple(words[1:])
    if name in SHELLS:
        options = [index for index, word in enumerate(words[1:], 1) if word[:1] == "-" and word[1:2] != "-"]
        told = next((index + 1 for index in options if "c" in words[index]), len(words))
        if told < len(words):
            return _in_shell(words[told], process, words[told + 2 :])
        return _in_script(host, words[1:], process)
    # env, nice, numactl ...: the program is one of their words.
    found = [index for index, word in enumerate(words) if word[:1] == "/" and _name(word) == process]
    return tuple(words[found[0] + 1 :]) if found else _in_script(host, words, process)


def _in_script(host: Host, words: Sequence[str], process: str) -> tuple[str, ...] | None:
    path = PurePosixPath("".join(words[:1]))
    try:
        if not path.is_absolute() or size_of(host, path) > SCRIPT_BYTES or host.kind(path) is not Kind.FILE:
            return None
        file = host.read(path)
    except InstallerError:
        return None
    first, _, rest = (file.content if file else b"").decode(errors="replace").partition("\n")
    shell = first.startswith("#!") and SHELLS & {_name(word) for word in first[2:].split()}
    return _in_shell(rest, process, words[1:]) if shell else None


def _in_shell(text: str, process: str, given: Sequence[str]) -> tuple[str, ...] | None:
    """Return the words that a shell's text gives to a program which it starts in one place alone."""
    try:
        commands = [command for line in text.replace("\\\n", " ").splitlines() for command in _commands(line)]
    except ValueError:  # a text over several lines
        return None
    found = [command for each in commands if (command := _of(each, process)) is not None]
    if len(found) != 1:
        return None
    words = [word for each in found[0] for word in (given if each in ALL_GIVEN else (each,))]
    return None if any(UNKNOWN & {*word} for word in words) else tuple(words)


def _commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    for word in lexer:
        if BETWEEN.issuperset(word):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _of(command: Sequence[str], process: str) -> Sequence[str] | None:
    """Return the words after the program, if the command starts that."""
    for index, word in enumerate(command):
        if _name(word) == process:
            return command[index + 1 :]
        if word not in BEFORE and "=" not in word:
            return None
    return None


def _name(word: str) -> str:
    return PurePosixPath(word).name
