"""Whether systemd would start an engine's unit again: a unit may have been edited since its start."""

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.inode import Kind
from installer.host.devices import size_of
from installer.host.files import Host
from installer.host.programs import is_program, run_in
from installer.host.unit_start import Condition, UnitStart

RUN_S: Final = 2.0
RUN_DIRECTORIES: Final = (PurePosixPath("/run"), PurePosixPath("/var/run"))
TESTS: Final = frozenset({"test", "["})
CHANGE_NO_FILES: Final = frozenset({*TESTS, "modprobe"})
WILDCARDS: Final = frozenset("*?[")


def missing(host: Host, start: UnitStart) -> str:
    """Return what a start needs and would not find; "" where nothing is missed that can be looked for."""
    found = (
        *_unfulfilled(host, start.conditions),
        *(f"its EnvironmentFile {path} is not there" for path in start.needed if not _there(host, path)),
        *(() if start.elsewhere else _without_programs(host, start)),
        *(() if start.elsewhere else _failing(host, start)),
    )
    return next(iter(found), "")


def _unfulfilled(host: Host, conditions: Iterable[Condition]) -> Iterator[str]:
    """Yield which conditions keep a unit from its start; one that cannot be judged from here holds."""
    for kind in ("Condition", "Assert"):
        of_kind = [each for each in conditions if each.setting.startswith(kind)]
        wrong = [each for each in of_kind if not _holds(host, each, each.setting.removeprefix(kind))]
        one_of = [each for each in of_kind if each.either]
        if one_of and all(each in wrong for each in one_of):
            yield f"none of {', '.join(map(str, one_of))} holds"
        yield from (f"{each} does not hold" for each in wrong if not each.either)


def _holds(host: Host, condition: Condition, about: str) -> bool:
    path, judge = PurePosixPath(condition.value), _JUDGES.get(about)
    # What the service itself has put there may go with it, and come back with it.
    passing = condition.negated and any(path.is_relative_to(place) for place in RUN_DIRECTORIES)
    if judge is None or passing or not path.is_absolute():
        return True
    try:
        return judge(host, path) is not condition.negated
    except InstallerError:
        return True


def _matches(host: Host, pattern: PurePosixPath) -> bool:
    """Tell whether a name fits a pattern, whose wildcards are in its last part; others are not judged."""
    if set(str(pattern.parent)) & WILDCARDS:
        raise InstallerError(f"look for {pattern}", remedy="look for it on the node", code="unit-failed")
    return any(fnmatchcase(name, pattern.name) for name in host.names(pattern.parent))


_JUDGES: Final[dict[str, Callable[[Host, PurePosixPath], bool]]] = {
    "PathExists": lambda host, path: host.kind(path) is not Kind.ABSENT,
    "PathExistsGlob": _matches,
    "PathIsDirectory": lambda host, path: host.kind(path) is Kind.DIRECTORY,
    "PathIsSymbolicLink": lambda host, path: host.link_target(path) is not None,
    "DirectoryNotEmpty": lambda host, path: bool(host.names(path)),
    "FileNotEmpty": lambda host, path: size_of(host, path) > 0,
    "FileIsExecutable": is_program,
}


def _there(host: Host, value: str) -> bool:
    """Tell whether an environment file is there; its name may be a pattern."""
    path = PurePosixPath(value)
    try:
        return _matches(host, path) if set(value) & WILDCARDS else host.kind(path) is not Kind.ABSENT
    except InstallerError:
        return True


def _without_programs(host: Host, start: UnitStart) -> Iterator[str]:
    commands = [(each.setting, each.words) for each in start.before if not each.optional]
    for setting, words in (*commands, ("ExecStart", start.words)):
        program = PurePosixPath("".join(words[:1]))
        try:
            # A word is looked for along a path that systemd has and we do not know.
            absent = program.is_absolute() and not is_program(host, program)
        except InstallerError:
            absent = False
        if absent:
            yield f"its {setting} {program} is no program"


def _failing(host: Host, start: UnitStart) -> Iterator[str]:
    """Yield which looks at files before the start come out badly: of all commands these alone do no harm.

    One behind another command may look for what that makes, and one for an absence at what goes with the
    service.
    """
    for command in start.before:
        program = PurePosixPath("".join(command.words[:1])).name
        if program not in CHANGE_NO_FILES:
            return
        told = " ".join(command.words)
        if program not in TESTS or command.optional or "!" in command.words or "$" in told:
            continue
        ran = run_in(host.local_path(PurePosixPath("/")), command.words, timeout_s=RUN_S)
        if ran is not None and ran.returncode:
            yield f"its {command.setting} {told} fails"
