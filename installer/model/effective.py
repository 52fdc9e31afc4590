"""What an engine makes of its configs, as a value: what is in force, or would be with other texts."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field

from installer.config_text import Key, Tree, Value, flatten

NAMELESS: Final = "default"  # what containerd 1.x calls a default that is a table of its own
# In the words of containerd, of CRI-O, and of schema 1: what names the program that a runtime starts.
BINARY_NAMES: Final = frozenset({"binaryname", "runtime", "runtimepath", "path"})


class Runtime(Struct, frozen=True):
    """One runtime as its engine has it."""

    binary: str = ""  # what it starts, "" for the engine's own choice
    # What the engine says of it: the words of a file, of CRI and of HTTP differ in case and underscores.
    table: Tree = field(default_factory=dict)
    monitor: str = ""  # what holds its containers, as a running engine tells

    @property
    def options(self) -> Tree:
        """Its options, by their names in lower case."""
        options = self.table.get("options")
        return {name.lower(): value for name, value in options.items()} if isinstance(options, dict) else {}

    def same(self, other: "Runtime") -> bool:
        """Tell whether an engine that said ``other`` before serves this runtime as it did."""
        return self.binary == other.binary and _said(self.table) == _said(other.table)

    def shows(self, wanted: "Runtime") -> bool:
        """Tell whether what was ``wanted`` is there, as far as the engine tells it at all."""
        told = dict(flatten(self.table))
        names = {key[0] for key in told}
        return self.binary == wanted.binary and all(
            (told.get(key) or None) == (value or None)
            for key, value in flatten(wanted.table)
            if key[0] in names and key[-1] not in BINARY_NAMES
        )


class EffectiveConfig(Struct, frozen=True):
    """What an engine has in force, or would have with other texts; None and "" where it does not tell."""

    handlers: Mapping[str, Runtime]
    default: str
    ready: bool = True  # as it says of itself: CRI's RuntimeReady
    cdi: bool | None = None  # whether it serves CDI devices
    cdi_dirs: tuple[PurePosixPath, ...] = ()  # where a running one looks for CDI specifications
    rest_digest: str = ""  # of all else in force, which the engine's program alone tells
    undefined: str = ""  # the default runtime that nobody defines: the engine serves nothing
    broken: str = ""  # why it would not start at all, in its own words
    state: PurePosixPath | None = None  # where the bundles of its containers are
    hook_dirs: tuple[PurePosixPath, ...] = ()  # where it looks for OCI hooks
    places: Mapping[str, str] = field(default_factory=dict)  # by flag: its root, its state, where it listens
    nri: bool | None = None  # whether plugins can connect to it by NRI

    @property
    def fatal(self) -> str:
        """Why an engine that is started so serves nothing; "" where it serves."""
        return self.broken or (
            f"its default runtime {self.undefined} is not defined" if self.undefined else ""
        )

    @property
    def binaries(self) -> dict[str, str]:
        """The runtimes by name, "" where the engine chooses the program."""
        return {name: handler.binary for name, handler in self.handlers.items()}


class Flags(Struct, frozen=True):
    """What the flags of an engine say of runtimes: no file can change that."""

    default: str = ""
    runtimes: Mapping[str, str] = field(default_factory=dict)  # with what they start


def find_disturbances(
    before: EffectiveConfig, after: EffectiveConfig, ours: Collection[str]
) -> Iterator[str]:
    """Yield, in words, what an engine would not have as before, besides the runtimes that are ours."""
    if after.broken:
        yield f"it would not start: {after.broken}"
        return
    if after.undefined:
        yield f"its default runtime {after.undefined} would not be defined"
    for name in sorted((before.handlers.keys() | after.handlers.keys()) - {*ours}):
        was, now = before.handlers.get(name), after.handlers.get(name)
        returns = name == NAMELESS and before.default in {*ours}
        healed = before.undefined and not before.handlers  # it would not have started
        if (was is None and (healed or name == before.undefined)) or returns:
            continue  # the engine is the better for it, or was asked for it
        if now is None or was is None:
            yield f"the runtime {name} would {'be lost' if now is None else 'appear'}"
        elif not now.same(was):
            yield f"the runtime {name} would have other settings"
    if after.default != before.default and not {after.default, before.default} & {*ours}:
        yield f"its default runtime would be {after.default} in the place of {before.default}"
    if before.rest_digest and after.rest_digest and before.rest_digest != after.rest_digest:
        yield "settings besides the runtimes would change"


def _said(table: Tree) -> dict[Key, Value]:
    """Return what a table says; an empty value says nothing, and the program is compared by itself."""
    return {key: value for key, value in flatten(table) if value and key[-1] not in BINARY_NAMES}
