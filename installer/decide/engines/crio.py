"""CRI-O: one drop-in with whole runtime tables, or the OCI hook of older set-ups."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from installer.decide.edits import ABSENT, Key, Syntax, Tree, Value, Want
from installer.decide.engines.model import (
    ConfigFiles,
    Decision,
    FileWants,
    RuntimeEntry,
    is_oci,
    is_ours,
    leaves,
    low_level_words,
    refuse_taken_name,
    table,
    text,
)
from installer.decide.errors import InstallerError

RUNTIME: Final[Key] = ("crio", "runtime")
RUNTIMES: Final[Key] = (*RUNTIME, "runtimes")
DEFAULT: Final = "default_runtime"
BUILT_IN_DEFAULT: Final = "crun"  # crio config --default, 1.37
# The first two are ours; the others would win over our path (cri-o pkg/config/config.go).
NOT_INHERITED: Final = frozenset(
    {"runtime_path", "runtime_type", "platform_runtime_paths", "inherit_default_runtime"}
)
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def edits(files: ConfigFiles, entries: tuple[RuntimeEntry, ...]) -> Decision:
    """Return what CRI-O's drop-in, or its hook file, should say.

    Raises:
        InstallerError: a file holds another type than CRI-O reads, or one that is read later overrules ours.
    """
    runtimes, default = _merged(files)
    low_level = low_level_words(_low_level(runtimes, default))
    if files.hook is not None:
        return Decision((_hook(files.hook, entries),), low_level)
    path = files.drop_in or files.config
    _refuse_overruled(files, path, entries)
    donor = _donor(runtimes, default)
    mine = table(files.trees.get(path, {}), RUNTIMES, path)
    wants = [
        want
        for entry in entries
        for want in _entry(path, runtimes, donor, table(mine, (entry.name,), path), entry)
    ]
    return Decision((FileWants(path, Syntax.TOML, tuple(wants)),), low_level)


def _merged(files: ConfigFiles) -> tuple[dict[str, Tree], str]:
    """Return the runtimes and the default as CRI-O merges its files: by name, whole, the last one wins."""
    runtimes: dict[str, Tree] = {}
    default = BUILT_IN_DEFAULT
    for path, tree in files.trees.items():
        for name in table(tree, RUNTIMES, path):
            runtimes[name] = table(tree, (*RUNTIMES, name), path)
            text(runtimes[name], "runtime_path", path, (*RUNTIMES, name))
        default = text(table(tree, RUNTIME, path), DEFAULT, path, RUNTIME) or default
    if default not in {*runtimes, "crun", "runc"}:
        raise InstallerError(
            f'configure CRI-O (its default_runtime "{default}" is not defined, so it would not start)',
            remedy="define that runtime, or remove default_runtime",
        )
    return runtimes, default


def _entry(
    path: PurePosixPath, runtimes: Mapping[str, Tree], donor: Tree, now: Tree, entry: RuntimeEntry
) -> Iterator[Want]:
    refuse_taken_name(path, entry.name, runtimes.get(entry.name, {}).get("runtime_path"))
    key = (*RUNTIMES, entry.name)
    yield Want((*key, "runtime_path"), str(entry.binary))
    yield Want((*key, "runtime_type"), "oci")
    for below, value in leaves(donor):
        if below[0] not in NOT_INHERITED:
            yield Want((*key, *below), value)
    # In an entry that stands in our file already these would overrule the path.
    for overruling in ("platform_runtime_paths", "inherit_default_runtime"):
        if overruling in now:
            yield Want((*key, overruling), ABSENT)
    if entry.default:
        yield Want((*RUNTIME, DEFAULT), entry.name)


def _donor(runtimes: Mapping[str, Tree], default: str) -> Tree:
    for name in (default, "runc", BUILT_IN_DEFAULT):
        entry = runtimes.get(name)
        if entry is not None and _wrappable(name, entry):
            return entry
    return {}


def _wrappable(name: str, entry: Tree) -> bool:
    binary = entry.get("runtime_path")
    return entry.get("runtime_type") != "vm" and is_oci(name, binary) and not is_ours(binary)


def _low_level(runtimes: Mapping[str, Tree], default: str) -> Iterator[Value]:
    for name in (default, "runc", "crun"):
        entry = runtimes.get(name, {})
        if _wrappable(name, entry):
            # CRI-O looks a runtime without a path up in $PATH by its name.
            yield entry.get("runtime_path") or name


def _refuse_overruled(files: ConfigFiles, path: PurePosixPath, entries: tuple[RuntimeEntry, ...]) -> None:
    for other, tree in files.trees.items():
        if other.parent != path.parent or other.name <= path.name:
            continue
        later = table(tree, RUNTIME, other)
        names = {entry.name for entry in entries} & table(tree, RUNTIMES, other).keys()
        if names or (any(entry.default for entry in entries) and DEFAULT in later):
            word = f"runtime {min(names)}" if names else DEFAULT
            raise InstallerError(
                f"configure CRI-O in {path} ({other} is read later and sets {word} too)",
                remedy=f"name a file that sorts after it with --drop-in-config, or remove {word} there",
            )


def _hook(path: PurePosixPath, entries: tuple[RuntimeEntry, ...]) -> FileWants:
    """Return the OCI hook file (containers/common oci-hooks(5), version 1.0.0)."""
    toolkit = entries[0].binary.parent
    return FileWants(
        path,
        Syntax.JSON,
        (
            Want(("version",), "1.0.0"),
            Want(("hook", "path"), str(toolkit / "nvidia-container-runtime-hook")),
            Want(("hook", "args"), ["nvidia-container-runtime-hook", "prestart"]),
            Want(("hook", "env"), [f"PATH={SYSTEM_PATH}:{toolkit}"]),
            Want(("when", "always"), value=True),
            Want(("when", "commands"), [".*"]),
            Want(("stages",), ["prestart"]),
        ),
    )
