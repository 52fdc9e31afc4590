"""The rows of the ledger: what we hold on this node, and what was there before."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Struct

from installer.config_text import Edit, Syntax
from installer.engines import ENGINES
from installer.model.files import File, Meta

OWNER: Final = "cdi"  # of CDI specifications: in the place of an engine's name, in rows and steps
# What the ledger has for one name in a directory of ours: that of a version, or of a saved copy.
NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME.pattern}\Z")]


class Saved(Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it would be without us; its bytes are in the backup named ``digest``."""

    digest: Name
    meta: Meta

    @classmethod
    def of(cls, file: File | None) -> "Saved | None":
        """Return the row of a file; None where there is none."""
        return cls(file.digest, file.meta) if file else None


class ConfigRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One config of one engine.

    ``original`` is None where there was no file. ``ours`` are the digests of every text we
    wrote there, so that a file nobody touched since is known; ``edits`` are for one that
    somebody did. A file that is written whole has neither syntax nor edits. ``target`` is where a
    symbolic link led when we wrote: it may lead elsewhere by now. ``named`` are the programs of the toolkit
    that the file named before our first install, once for each time; ledgers of 0.1.0 do not tell (None).
    """

    engine: str
    path: PurePosixPath
    syntax: Syntax | None
    original: Saved | None
    ours: tuple[str, ...]
    edits: tuple[Edit, ...]
    target: PurePosixPath | None = None
    named: tuple[str, ...] | None = None

    @property
    def written(self) -> bool:
        """Whether we wrote there at all: what names our programs without us is remembered, too."""
        return bool(self.edits) or self.syntax is None


class EngineRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An engine that was configured: where to reach it, and which runtimes (name, binary) it was given.

    ``state`` is where it said that its containers are, so that they are found when it does not run.
    ``pending`` is what the engine had not taken up when it was last asked, and when it will. ``config`` is
    its root config, None where nothing has to be said there; ``default`` the runtime that was to be its
    default, "" for none; ``version`` that of the engine at the install. ``restart_due`` tells that a restart
    is still to come by which it reads its configs. ``proven`` is the digest of all texts that it reads, as
    the last install left them; 0.2.0 does not tell ("").
    """

    name: str
    socket: PurePosixPath
    unit: str
    runtimes: tuple[tuple[str, PurePosixPath], ...]
    state: PurePosixPath | None = None
    pending: str = ""
    config: PurePosixPath | None = None
    default: str = ""
    version: tuple[int, ...] | None = None
    restart_due: bool = False
    proven: str = ""

    @property
    def title(self) -> str:
        """How a sentence calls it."""
        return ENGINES[self.name].title


class ToolkitRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The payload.

    ``version`` is in place and ``previous``, where there is one, is kept beside it. ``rendered``
    is config.toml as we wrote it, to tell an administrator's edits. ``replaced`` says that a
    directory of another installer was exchanged away, ``linked`` what a foreign symlink held.
    ``files`` is the manifest of ``version`` (see integrity.py); ledgers of 0.1.0 have none.
    """

    version: Name
    previous: Name | None
    rendered: str
    replaced: bool = False
    linked: str | None = None
    files: tuple[tuple[str, str], ...] = ()


class CdiRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The engines that take devices by CDI and were not changed.

    ``lacking`` is why there is no specification of ours for them, "" where there is one.
    """

    engines: tuple[str, ...]
    lacking: str = ""


class DeviceNode(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A device node; ``born`` tells it from a later one of that name: boot and inode."""

    path: PurePosixPath
    born: str


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """The plan that an engine did not take: ``digest`` of all it depends on, and why in the error's words."""

    digest: str
    problem: str


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything we hold on one node.

    ``nodes`` are device nodes of the driver that we had made; ``pid_file`` is that of the last ``run``,
    and beside it stood the file of its readiness.
    ``finished`` is false from the first step to the last proof; ``failed`` is the plan that is not
    tried again as it is, for a crash loop must not become a restart loop. ``left`` is why the last undo could
    not undo everything, "" after an install. ``published`` are the files that tell others of us, metrics and
    labels; they stay when nothing else is held, to tell of an install that failed. ``cdi`` is there where the
    last install was one of CDI alone. ``nri`` is the socket of the engine that the NRI plugin beside ``run``
    is to serve; None where no such plugin was asked for.
    """

    directories: tuple[PurePosixPath, ...] = ()
    toolkit: ToolkitRow | None = None
    engines: tuple[EngineRow, ...] = ()
    configs: tuple[ConfigRow, ...] = ()
    finished: bool = False
    failed: Failure | None = None
    nodes: tuple[DeviceNode, ...] = ()
    pid_file: PurePosixPath | None = None
    left: str = ""
    published: tuple[PurePosixPath, ...] = ()
    cdi: CdiRow | None = None
    nri: PurePosixPath | None = None

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
