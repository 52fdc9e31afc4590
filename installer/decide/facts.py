"""What was found on the host: everything a decision may depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from installer.decide.engines.model import Serving
from installer.decide.errors import InstallerError
from installer.decide.inode import Entry, File, Kind
from installer.decide.rows import Holdings
from installer.decide.toolkit import Artifact


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine of this run: where it is configured, and what the running one says.

    ``files`` are the configs it reads, in that order, by the host's path. ``serving`` is
    None, and ``silence`` says why, where none answers; ``stopped`` that none runs at all.
    """

    name: str
    config: PurePosixPath
    drop_in: PurePosixPath | None
    hook: PurePosixPath | None
    files: tuple[PurePosixPath, ...]
    socket: PurePosixPath
    unit: str
    version: tuple[int, ...] | None = None
    serving: Serving | None = None
    silence: str = ""
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class ToolkitFacts:
    """What stands at ``<install-dir>/toolkit``.

    ``link`` is what the symlink holds; ``versions`` lists the payloads beside the ledger, file
    by file; ``config`` is the text of the installed config.toml; ``replaced`` tells that the
    directory of another installer stands aside.
    """

    kind: Kind = Kind.ABSENT
    link: str = ""
    versions: Mapping[str, Mapping[PurePosixPath, Entry]] = field(default_factory=dict)
    config: str | None = None
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """The host as it was found.

    ``contents`` holds each config that was read, ``originals`` the saved text of those in
    the ledger, ``missing`` the directories that would have to be made. ``obstacles`` are
    reasons for which an install could not end well.
    """

    engines: tuple[EngineFacts, ...]
    contents: Mapping[PurePosixPath, File | None]
    originals: Mapping[PurePosixPath, File | None]
    missing: frozenset[PurePosixPath]
    artifacts: tuple[Artifact, ...]
    toolkit: ToolkitFacts
    held: Holdings
    ldconfig_real: bool = False
    suse: bool = False
    free_bytes: int | None = None
    machine: str = "x86_64"
    obstacles: tuple[InstallerError, ...] = ()
    notes: tuple[str, ...] = ()
