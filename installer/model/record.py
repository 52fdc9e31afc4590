"""What the ledger holds: what we hold on this node, and what was there before us."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Struct

from installer.config_text import Edit, Syntax
from installer.engines import ENGINES
from installer.model.engine_spec import EngineSpec
from installer.model.files import File, Meta

STAND_IN: Final = "stand-in"  # the version of links to a low-level runtime that a forced undo leaves
ADOPTED: Final = "adopted"  # the version of NVIDIA's own directory, once it is ours to remove
OWNER: Final = "cdi"  # of CDI specifications: in the place of an engine's name, in rows and steps
# What the ledger has for one name in a directory of ours: that of a version, or of a saved copy.
NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME.pattern}\Z")]


class Saved(Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it would be without us; its bytes are in the backup named ``digest``."""

    digest: Name
    mode: Annotated[str, msgspec.Meta(pattern=r"\A[0-7]{1,7}\Z")]
    uid: int | None
    gid: int | None
    xattrs: Mapping[str, bytes]

    @classmethod
    def of(cls, file: File | None) -> "Saved | None":
        """Return the row of a file; None where there is none."""
        meta = file.meta if file else Meta()
        return cls(file.digest, f"{meta.mode:04o}", meta.uid, meta.gid, dict(meta.xattrs)) if file else None

    @property
    def meta(self) -> Meta:
        """What it was apart from its bytes."""
        return Meta(int(self.mode, 8), self.uid, self.gid, tuple(self.xattrs.items()))


class ConfigRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One config of one engine. A file that is written whole has neither syntax nor edits."""

    engine: str
    path: PurePosixPath
    syntax: Syntax | None
    original: Saved | None  # None where there was no file
    ours: tuple[str, ...]  # the digests of every text we wrote there: a file that is none of them was edited
    edits: tuple[Edit, ...]  # what is undone in a file that was edited
    target: PurePosixPath | None = None  # where a symbolic link led when we wrote
    # The programs of the toolkit that the file named before our first install, once for each time.
    named: tuple[str, ...] | None = None  # None in a ledger of 0.1.0

    @property
    def written(self) -> bool:
        """Whether we wrote there at all: what names our programs without us is remembered, too."""
        return bool(self.edits) or self.syntax is None


class Named(Struct, frozen=True):
    """An engine by its name."""

    name: str

    @property
    def spec(self) -> EngineSpec:
        """What differs from engine to engine."""
        return ENGINES[self.name]

    @property
    def title(self) -> str:
        """How a sentence calls it."""
        return self.spec.title


class EngineRow(Named, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An engine that was configured: where to reach it, and the program of each runtime that it was given."""

    socket: PurePosixPath
    unit: str
    runtimes: Mapping[str, PurePosixPath]
    state: PurePosixPath | None = None  # where its containers are, looked for also when it is stopped
    pending: str = ""  # what it had not taken up when it was last asked, and when it will
    config: PurePosixPath | None = None  # its root config; None where nothing has to be said there
    default: str = ""  # the runtime that was to be its default
    version: tuple[int, ...] | None = None
    restart_due: bool = False  # the restart by which it reads its configs is still to come
    proven: str = ""  # the digest of all texts that it reads, as the last install left them; "" in 0.2.0


class ToolkitRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The payload."""

    version: Name
    previous: Name | None  # which is kept beside it
    rendered: str  # config.toml as we wrote it, to tell an administrator's edits
    replaced: bool = False  # a directory of another installer was exchanged away
    linked: str | None = None  # what a symlink of another installer held
    files: Mapping[str, str] = {}  # the manifest of ``version``; not in ledgers of 0.1.0


class CdiRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The engines that take devices by CDI and were not changed."""

    engines: tuple[str, ...]
    lacking: str = ""  # why there is no specification of ours for them


class DeviceNode(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A device node; ``born`` tells it from a later one of that name: boot and inode."""

    path: PurePosixPath
    born: str


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """The plan that an engine did not take: ``digest`` of all it depends on, and why in the error's words."""

    digest: str
    problem: str


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything we hold on one node."""

    directories: tuple[PurePosixPath, ...] = ()
    toolkit: ToolkitRow | None = None
    engines: tuple[EngineRow, ...] = ()
    configs: tuple[ConfigRow, ...] = ()
    finished: bool = False  # false from the first step to the last proof
    failed: Failure | None = None  # a plan that is not tried again as it is: no crash loop restarts engines
    nodes: tuple[DeviceNode, ...] = ()  # those of the driver that we had made
    pid_file: PurePosixPath | None = None  # of the last ``run``; beside it stood the file of its readiness
    left: str = ""  # why the last undo could not undo everything, "" after an install
    # Metrics and labels; they stay when nothing else is held, to tell of an install that failed.
    published: tuple[PurePosixPath, ...] = ()
    cdi: CdiRow | None = None  # None but after an install of CDI alone
    nri: PurePosixPath | None = None  # the socket of the engine that the NRI plugin beside ``run`` serves

    @property
    def served(self) -> tuple[str, ...]:
        """The engines that serve what is installed, changed for it or not."""
        return tuple(
            dict.fromkeys((*(row.name for row in self.engines), *(self.cdi.engines if self.cdi else ())))
        )

    @property
    def empty(self) -> bool:
        """Whether nothing is held but directories, and files that tell so."""
        return not (self.toolkit or self.engines or self.configs or self.failed or self.nodes)

    def engine(self, name: str) -> EngineRow | None:
        """Return the row of an engine; None where it is not held."""
        return next((row for row in self.engines if row.name == name), None)

    def config(self, path: PurePosixPath) -> ConfigRow | None:
        """Return the row of ``path``."""
        return next((row for row in self.configs if row.path == path), None)
