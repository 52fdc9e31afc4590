"""CDI specifications at which an engine would wait for ever or crash while it loads.

containerd, CRI-O and dockerd share the library of CDI. It opens each name of its suffixes in the directories
of the engine, and passes over other flaws of a specification.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from installer.engines.pipes import find_pipe, list_names, make_unknown
from installer.engines.yaml_events import MOST_CHARACTERS, list_events
from installer.errors import InstallerError
from installer.model.engine import HostReader, LoadError
from installer.model.files import Kind

if TYPE_CHECKING:
    from yaml.events import ScalarEvent

DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
SUFFIXES: Final = (".json", ".yaml")  # also of a name without anything before it
# The library checks the characters between the first and the last: of the vendor, and then of the class.
CRASHING: Final = re.compile(r"[A-Za-z]/.+|[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z]")
# Lists in the edits of a container, in whose entries the library looks for fields.
LISTS: Final = ("deviceNodes", "hooks", "mounts", "netDevices")
VERSION: Final = re.compile(r"v?(0\.[1-8]|1\.[01])\.0")
NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
NULL_TAG: Final = "tag:yaml.org,2002:null"
# What most specifications do not have, and so need no closer look:
SUSPECTS: Final = (
    # a word of one letter beside a slash, or an escaped character
    re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z]/|/[A-Za-z](?![A-Za-z0-9_.-])|\\"),
    # a null, or an entry of a list without a value on its line, a tag or an anchor, with which "" can be one
    re.compile(r"[~&!]|[nN]ull|NULL|(?<!\S)-[ \t]*(?:[#\r\n\x85\u2028\u2029]|$)"),
)


def find_cdi_flaws(host: HostReader, directories: Iterable[str], what: str) -> Iterator[LoadError]:
    """Yield an error for each specification with which an engine would not load.

    Args:
        host: the host.
        directories: the engine's directories for CDI specifications.
        what: the engine's failure, as the beginning of the error.
    """
    for directory in map(PurePosixPath, directories):
        for name in list_names(host, directory):
            if name.endswith(SUFFIXES):
                path = directory / name
                error = find_pipe(host, path, what) or _find_crash(host, path, what)
                if error is not None:
                    yield error


def _find_crash(host: HostReader, path: PurePosixPath, what: str) -> LoadError | None:
    """Find what crashes an engine in a specification; a file that this process cannot judge may crash it."""
    crash = f"{path} crashes it"
    try:
        file = host.read(path) if host.kind(path) is Kind.FILE else None
        text = _decode(file.content) if file is not None else ""
    except UnicodeDecodeError:  # the library, too, refuses a text in another encoding
        return None
    except InstallerError as error:
        return make_unknown(crash, path, what, error.problem)
    if not any(suspect.search(text) for suspect in SUSPECTS):
        return None
    if len(text) > MOST_CHARACTERS:
        problem = f"judge {path} (it has more than {MOST_CHARACTERS >> 20} MiB)"
        return make_unknown(crash, path, what, problem)
    flaw, act = _find_flaw(text)
    if not flaw:
        return None
    return LoadError(f"{what}: {path} {flaw}, which crashes it", f"{act}, or remove {path}")


def _find_flaw(text: str) -> tuple[str, str]:
    """Return what crashes an engine in a text, and what removes it; two times "" for no flaw."""
    mappings = _read_mappings(text)
    if not mappings:
        return "", ""
    fields = _fold_names(mappings[0])
    version = fields.get("cdiversion")
    if not isinstance(version, str) or not VERSION.fullmatch(version):  # refused before the rest is looked at
        return "", ""
    kind = fields.get("kind")
    if isinstance(kind, str) and CRASHING.fullmatch(kind):
        return f"has the kind {kind}, with a vendor or class of one letter", "give that kind longer words"
    for mapping in mappings:
        fields = _fold_names(mapping)
        for name in LISTS:
            entries = fields.get(name.lower())
            if isinstance(entries, list) and not isinstance(entries, _Mapping) and None in entries:
                return f"has a null entry in {name}", "remove that entry"
    return "", ""


def _decode(content: bytes) -> str:
    """Return a text of YAML, whose encoding is UTF-8 or, with a byte order mark, UTF-16."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return content.decode("utf-16")
    return content.decode("utf-8-sig")


class _Mapping(list[Any]):
    """The names and values of a mapping in turn; a value is a text, None, a list or another mapping."""


def _read_mappings(text: str) -> Sequence[_Mapping]:
    """Return all mappings of a text of YAML or JSON, the outermost first.

    Nothing is returned for a text that the library refuses. Of several documents the library reads the first.
    """
    import yaml  # few specifications need a closer look
    from yaml.events import (
        AliasEvent,
        CollectionEndEvent,
        CollectionStartEvent,
        DocumentEndEvent,
        MappingStartEvent,
        NodeEvent,
        ScalarEvent,
    )

    anchors: dict[str | None, Any] = {}
    mappings: list[_Mapping] = []
    document: list[Any] = []
    open_collections = [document]
    try:
        for _, event in list_events(text):
            if isinstance(event, DocumentEndEvent):
                return mappings if isinstance(document[0], _Mapping) else []
            if isinstance(event, CollectionEndEvent):
                open_collections.pop()
            if not isinstance(event, NodeEvent):
                continue
            value: Any = []
            if isinstance(event, AliasEvent):
                value = anchors[event.anchor]
            elif isinstance(event, ScalarEvent):
                value = None if _is_null(event) else event.value
            elif isinstance(event, MappingStartEvent):
                value = _Mapping()
                mappings.append(value)
            open_collections[-1].append(value)
            if event.anchor:
                anchors[event.anchor] = value
            if isinstance(event, CollectionStartEvent):
                open_collections.append(value)
    except yaml.YAMLError:
        pass
    return []


def _is_null(event: "ScalarEvent") -> bool:
    if event.tag:
        return event.tag == NULL_TAG and event.value in NULL
    return not event.style and event.value in NULL


def _fold_names(mapping: _Mapping) -> dict[str, Any]:
    """Return the values by their names in lower case; of names with the same letters the last one counts."""
    fields: dict[str, Any] = {}
    for name, value in zip(mapping[::2], mapping[1::2], strict=True):
        if isinstance(name, str):
            fields[name] = value
    return {name.casefold(): fields[name] for name in sorted(fields)}
