"""CDI specifications at which an engine would wait for ever or crash while it loads.

containerd and CRI-O share the library of CDI. It opens each name of its suffixes in the directories of the
engine, and passes over other flaws of a specification.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.engines.pipes import is_pipe, list_names, make_error
from installer.engines.yaml_events import MOST_CHARACTERS, list_events
from installer.errors import InstallerError
from installer.model.engine import HostReader, LoadError

DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
SUFFIXES: Final = frozenset((".json", ".yaml"))
# The library checks the characters between the first and the last: of the vendor, and then of the class.
CRASHING: Final = re.compile(r"[A-Za-z]/.+|[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z]")
# A word of one letter beside a slash, or an escaped character: most specifications have neither.
SUSPECT: Final = re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z]/|/[A-Za-z](?![A-Za-z0-9_.-])|\\")
VERSION: Final = re.compile(r"v?(0\.[1-8]|1\.[01])\.0")


def find_cdi_flaws(host: HostReader, directories: Iterable[str], what: str) -> Iterator[LoadError]:
    """Yield an error for each specification with which an engine would not load.

    Args:
        host: the host.
        directories: the engine's directories for CDI specifications.
        what: the engine's failure, as the beginning of the error.
    """
    for directory in map(PurePosixPath, directories):
        for name in list_names(host, directory):
            path = directory / name
            if path.suffix not in SUFFIXES:
                continue
            if is_pipe(host, path):
                yield make_error(path, what)
                continue
            kind = _read_kind(host, path)
            if CRASHING.fullmatch(kind):
                problem = (
                    f"{what}: {path} has the kind {kind}, and a vendor or class of one letter crashes it"
                )
                yield LoadError(problem, f"give that kind longer words, or remove {path}")


def _read_kind(host: HostReader, path: PurePosixPath) -> str:
    """Return the kind of a specification; "" if unknown."""
    try:
        file = host.read(path)
        text = _decode(file.content) if file else ""
    except (InstallerError, UnicodeDecodeError):  # the library, too, refuses a text in another encoding
        return ""
    if not SUSPECT.search(text):
        return ""
    fields = _read_fields(text)
    if not VERSION.fullmatch(fields.get("cdiversion", "")):  # refused before the library looks at the kind
        return ""
    return fields.get("kind", "")


def _decode(content: bytes) -> str:
    """Return a text of YAML, whose encoding is UTF-8 or, with a byte order mark, UTF-16."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return content.decode("utf-16")
    return content.decode("utf-8-sig")


def _read_fields(text: str) -> dict[str, str]:
    """Return the scalars at the top of a text of YAML or JSON, by the names of their fields in lower case.

    Nothing is returned for a text that the library refuses. Of several documents the library reads the first.
    """
    import yaml  # few specifications need a closer look
    from yaml.events import AliasEvent, DocumentEndEvent, NodeEvent, ScalarEvent

    anchors: dict[str, str] = {}
    fields: dict[str, str] = {}
    name: str | None = None
    try:
        for level, event in list_events(text[:MOST_CHARACTERS]):
            if isinstance(event, DocumentEndEvent):
                return _fold_names(fields)
            value = ""
            if isinstance(event, ScalarEvent):
                value = event.value
                if event.anchor:
                    anchors[event.anchor] = value
            elif isinstance(event, AliasEvent):
                value = anchors.get(event.anchor or "", "")
            if level != 1 or not isinstance(event, NodeEvent):
                continue
            if name is None:
                name = value
            else:
                fields[name] = value
                name = None
    except yaml.YAMLError:
        pass
    # The cut text of a large file is no whole document.
    return _fold_names(fields) if len(text) > MOST_CHARACTERS else {}


def _fold_names(fields: dict[str, str]) -> dict[str, str]:
    """Return the fields by their names in lower case; of names with the same letters the last one counts."""
    return {name.casefold(): fields[name] for name in sorted(fields)}
