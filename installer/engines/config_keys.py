"""What the keys of engines' configs stand for: a runtime, the default, or how a text is read."""

from typing import Final

from installer.config_text import Edit, Key
from installer.engines import ENGINES

DEFAULT: Final = "the default runtime"  # the key that names the default runtime, whatever the engine calls it
RUNTIMES: Final = "runtimes"  # the table of the runtimes, in all engines
BUILT_IN: Final = "runc"
# The settings that make a runtime start a program, spelled without case and underscores.
STARTS: Final = frozenset({"binaryname", "runtimepath", "runtimetype", "path"})


def runtime_of(key: Key) -> str:
    """Return the runtime's name in a key, "" for any other key."""
    if RUNTIMES not in key:
        return ""
    index = key.index(RUNTIMES) + 1
    return key[index] if index < len(key) else ""


def program_of(edit: Edit) -> str:
    """Return the string that an edit has written, perhaps a program; "" for a removed key."""
    return (edit.after or "").strip("\"'")


def is_head(key: Key) -> bool:
    """Tell whether a key only sets how the rest of a text is read."""
    return key == ("version",) or runtime_of(key) == BUILT_IN


def group_of(key: Key, name: str) -> str:
    """Return the runtime's name in a key, ``DEFAULT`` for the default's key, or the last part of another."""
    runtime = runtime_of(key)
    if runtime:
        return runtime
    if name in ENGINES and ENGINES[name].is_default_key(key):
        return DEFAULT
    return key[-1] if key else ""
