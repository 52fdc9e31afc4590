"""What dockerd has in force after a start or a SIGHUP with a daemon.json, and the texts that lead there.

A start takes the file alone. A SIGHUP lays it over what dockerd has: a key that is missing changes nothing,
so a removed key is sticky; and each release has texts that it refuses, or dies of, depending on what it has.
A default that it was told by a flag may not stand in the file as well: it neither starts nor reloads. The
runtimes of flags join those of the file at a start; a SIGHUP with a file that names any takes them away.
The releases that this was measured with: engine-facts.md#dockerd-reload.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, Value, Want, apply, parse
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Flags, Runtime
from installer.model.files import File, Meta

RUNTIMES: Final = "runtimes"
DEFAULT: Final = "default-runtime"
BUILT_IN: Final = "runc"
FIELDS: Final = ("path", "runtimeArgs", "runtimeType", "options")
LATER: Final = (23,)  # from here on dockerd reads runtimes as 26.1.5 does; the releases before as 20.10.24
OLD_SHIMS: Final = ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")  # as 20.10 lists them
BOM: Final = b"\xef\xbb\xbf"

NO_FLAGS: Final = Flags()

Version = tuple[int, ...] | None


class Refused(Struct, frozen=True):
    """dockerd does not take a text up: it stays as it was, or ``dies``.

    ``remedy`` is "" where the text is what has to be corrected.
    """

    words: str
    dies: bool = False
    remedy: str = ""


def effect(
    file: File | None, path: PurePosixPath, version: Version, flags: Flags = NO_FLAGS
) -> EffectiveConfig:
    """Return what dockerd has in force when it is started with ``file`` as its daemon.json.

    ``broken`` says why it does not start; ``undefined`` is the default that it does not start for.
    """
    try:
        tree = _read(file, path, version)
        said = _said(tree)
        for words in _flaws(tree, said, version, flags):
            return EffectiveConfig(_handlers({}), BUILT_IN, ready=False, broken=words)
    except InstallerError as error:
        return EffectiveConfig(_handlers({}), BUILT_IN, ready=False, broken=error.problem)
    handlers = _handlers(_of_flags(flags) | dict(said.runtimes or {}))
    default = said.default or flags.default or BUILT_IN
    old = version is not None and version < LATER
    # 20.10 looks for a default of the text in the text alone.
    known = _handlers(said.runtimes or {}) if old and said.default else handlers
    if not _defined(default, known, version):
        named = "--default-runtime" if flags.default else "default-runtime"
        words = f'its {named} "{default}" is not defined'
        return EffectiveConfig(handlers, default, ready=False, undefined=default, broken=words)
    return EffectiveConfig(handlers, default)


def reloaded(
    in_force: EffectiveConfig,
    file: File | None,
    path: PurePosixPath,
    version: Version,
    flags: Flags = NO_FLAGS,
) -> EffectiveConfig | Refused:
    """Return what a dockerd that has ``in_force`` in force has after a SIGHUP with ``file``."""
    try:
        tree = _read(file, path, version)
        said = _said(tree)
    except InstallerError as error:
        return Refused(error.problem)
    for words in _flaws(tree, said, version, flags):
        return Refused(words)
    old = version is not None and version < LATER
    if old and said.default and not _defined(said.default, _handlers(said.runtimes or {}), version):
        # 20.10 looks for it in the text alone.
        return Refused(f"specified default runtime '{said.default}' does not exist")
    if old and said.null:
        return Refused("assignment to entry in nil map", dies=True)
    handlers = in_force.handlers if said.runtimes is None else _handlers(said.runtimes)
    default = said.default or (in_force.default if old or file else BUILT_IN)
    # 20.10 forgets its shims in a reload with a map, and dies of a default that it has lost.
    if not (default in handlers if old else _defined(default, handlers, version)):
        words, remedy = f"specified default runtime '{default}' does not exist", ""
        if default == flags.default:
            words = f"it was started with --default-runtime {default}, and that would not be defined"
            remedy = f"define {default} in {path}, or start Docker without that flag, then run again"
        return Refused(words, dies=old, remedy=remedy)
    return replace(in_force, handlers=handlers, default=default)


def same(one: EffectiveConfig, other: EffectiveConfig) -> bool:
    """Tell whether two effects have the same runtimes and default, as far as dockerd tells them.

    Its list leaves out type and options of a runtime, and has shims that come and go.
    """
    return one.default == other.default and _told(one) == _told(other)


def told_otherwise(in_force: EffectiveConfig, wanted: EffectiveConfig) -> Iterator[tuple[str, bool]]:
    """Yield the runtimes that dockerd has and a start would not give it so; true for those it would lack."""
    told, defined = _told(in_force), _told(wanted)
    yield from ((name, name not in defined) for name in sorted(told) if told[name] != defined.get(name))


def forgotten(in_force: EffectiveConfig, version: Version) -> tuple[str, ...]:
    """Return the names of its own that dockerd takes off its list in each reload, until its next start."""
    old = version is not None and version < LATER
    return tuple(name for name in OLD_SHIMS if name in in_force.handlers) if old else ()


def route(
    in_force: EffectiveConfig | None,
    target: File | None,
    path: PurePosixPath,
    version: Version,
    flags: Flags = NO_FLAGS,
) -> tuple[File | None, ...]:
    """Return the texts through which dockerd comes to have what a start with ``target`` would give it.

    One SIGHUP follows the first of them, and none a second: that changes nothing any more. ``in_force`` is
    what dockerd has now, None where that is not known for sure.

    Raises:
        InstallerError: dockerd takes up no text that leads there, or dies of it.
    """
    versions = (version,) if version is not None else ((20, 10), (28,))
    if (
        target is not None
        and in_force is not None
        and all(_leads_there(in_force, target, path, each, flags) for each in versions)
    ):
        return (target,)
    middle, _ = explicit(target, path, flags)
    found = reloaded(in_force or effect(None, path, version, flags), middle, path, version, flags)
    if isinstance(found, Refused):
        verb = "would die of it" if found.dies else "would not take it up"
        raise InstallerError(
            f"reload Docker with what {path} has to say (dockerd {verb}: {found.words})",
            remedy=found.remedy or f"correct {path} and restart Docker",
        )
    return (middle,) if target is not None and middle.content == target.content else (middle, target)


def explicit(target: File | None, path: PurePosixPath, flags: Flags) -> tuple[File, tuple[Edit, ...]]:
    """Return ``target`` with both keys in words, which every dockerd takes up whatever it has, and the edits.

    A default that a flag says may not stand there and needs no word, for no reload has ever changed it.
    """
    text = target.content.decode() if target else ""
    wants = intermediate(parse(text, Syntax.JSON, name=str(path)), flags)
    middle, edits = apply(text, wants, Syntax.JSON, name=str(path))
    return File(middle.encode(), target.meta if target else Meta()), edits


def intermediate(target: Tree, flags: Flags = NO_FLAGS) -> tuple[Want, ...]:
    """Return what daemon.json must say for dockerd to have what a start with ``target`` would give it.

    Removed keys are sticky, and a map without the live default makes dockerd 20.10 die, so both keys have
    to stand in the file for one SIGHUP.
    """
    default, runtimes = target.get(DEFAULT), target.get(RUNTIMES)
    named = Want((DEFAULT,), default if isinstance(default, str) and default else BUILT_IN)
    there = runtimes if isinstance(runtimes, Mapping) else None
    # Name by name: a key of its own each, so that it can be taken out again of what others have edited since.
    told = {name: entry for name, entry in _of_flags(flags).items() if name not in (there or ())}
    return (
        *(() if flags.default else (named,)),
        *(() if there is not None else (Want((RUNTIMES,), {}),)),
        *(Want((RUNTIMES, name), entry) for name, entry in told.items()),
    )


def _of_flags(flags: Flags) -> dict[str, Value]:
    return {name: {"path": binary} for name, binary in flags.runtimes.items()}


def _leads_there(
    in_force: EffectiveConfig, target: File | None, path: PurePosixPath, version: Version, flags: Flags
) -> bool:
    found = reloaded(in_force, target, path, version, flags)
    return isinstance(found, EffectiveConfig) and same(found, effect(target, path, version, flags))


class _Said(Struct, frozen=True):
    """What a text says: ``runtimes`` is None where it says nothing, and ``null`` where it says just that."""

    default: str
    runtimes: Tree | None
    null: bool


def _read(file: File | None, path: PurePosixPath, version: Version) -> Tree:
    if file is None:
        return {}
    if version is not None and version < LATER:
        if not file.content.strip():
            raise InstallerError(f"read {path} (it is empty)", remedy="write {} into it")
        if file.content.startswith(BOM):
            raise InstallerError(f"read {path} (it begins with a byte order mark)", remedy="remove that")
    try:
        text = file.content.decode()
    except UnicodeDecodeError as error:
        raise InstallerError(f"read {path} (it is not UTF-8)", remedy="save it as UTF-8") from error
    return parse(text, Syntax.JSON, name=str(path))


def _said(tree: Tree) -> _Said:
    default, runtimes = tree.get(DEFAULT), tree.get(RUNTIMES)
    null = RUNTIMES in tree and runtimes is None
    return _Said(
        default if isinstance(default, str) else "",
        runtimes if isinstance(runtimes, Mapping) else {} if null else None,
        null,
    )


def _flaws(tree: Tree, said: _Said, version: Version, flags: Flags) -> Iterator[str]:
    """Yield why dockerd neither starts with a text nor reloads into it, whatever it has."""
    if flags.default and DEFAULT in tree:
        yield f"{DEFAULT} is specified both as a flag and in the configuration file"
    for key in (key for key in tree if key.lower() in {DEFAULT, RUNTIMES} - {key}):
        yield f"{key} is not spelled as dockerd spells it"
    if tree.get(DEFAULT) is not None and not isinstance(tree[DEFAULT], str):
        yield f"{DEFAULT} is no string"
    if tree.get(RUNTIMES) is not None and not isinstance(tree[RUNTIMES], Mapping):
        yield f"{RUNTIMES} is no object"
    for name, entry in (said.runtimes or {}).items():
        if name == BUILT_IN:
            yield f"runtime name '{BUILT_IN}' is reserved"
        if entry is not None and not isinstance(entry, Mapping):
            yield f"the runtime {name} is no object"
        elif version is None or version >= LATER:
            yield from _flaws_of_entry(name, entry or {})


def _flaws_of_entry(name: str, entry: Tree) -> Iterator[str]:
    path, kind = spelled(entry, "path"), spelled(entry, "runtimeType")
    if not path and not kind:
        yield f"the runtime {name} has neither a path nor a runtimeType"
    if path and kind:
        yield f"the runtime {name} has both a path and a runtimeType"
    if path and spelled(entry, "options"):
        yield f"the runtime {name} has options beside a path"
    if kind and spelled(entry, "runtimeArgs"):
        yield f"the runtime {name} has runtimeArgs beside a runtimeType"


def _handlers(runtimes: Tree) -> dict[str, Runtime]:
    found = {BUILT_IN: Runtime(BUILT_IN, {"path": BUILT_IN})}
    for name, entry in runtimes.items():
        fields = entry if isinstance(entry, Mapping) else {}
        table = {word: value for word in FIELDS if (value := spelled(fields, word))}
        path = table.get("path")
        found[name] = Runtime(path if isinstance(path, str) else "", table)
    return found


def _named(handlers: Mapping[str, Runtime]) -> dict[str, Runtime]:
    """Return the runtimes that a daemon.json names, and runc; the shims come and go in dockerd's list."""
    return {name: handler for name, handler in handlers.items() if not name.startswith("io.containerd.")}


def _told(found: EffectiveConfig) -> dict[str, tuple[str, Value]]:
    named = _named(found.handlers)
    return {name: (handler.binary, handler.table.get("runtimeArgs") or ()) for name, handler in named.items()}


def _defined(default: str, handlers: Mapping[str, Runtime], version: Version) -> bool:
    if version is not None and version < LATER:
        return default in {*OLD_SHIMS, *handlers}
    # A name with a dot may be that of a containerd shim, which needs no entry.
    return default in handlers or ("." in default and default[0] not in "./")


def spelled(entry: Tree, word: str) -> Value:
    """Return the value of ``word`` in an entry, in whatever case it is written; the last one counts."""
    found = [value for name, value in entry.items() if name.lower() == word.lower()]
    return found[-1] if found else None
