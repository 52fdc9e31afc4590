"""Texts of the host that anybody may have written, or root alone, as far as they can be read."""

import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import PurePosixPath
from typing import Any

from installer.decide.errors import InstallerError
from installer.decide.inode import File, Kind
from installer.host.files import Host
from installer.host.kernel import trusted_uids


def text(host: Host, path: PurePosixPath) -> str:
    """Return the text of a file, whatever its bytes; "" where it cannot be read."""
    try:
        return text_of(host.read(path))
    except InstallerError:
        return ""


def text_of(file: File | None) -> str:
    """Return the text of a file that was read; "" where there is none.

    With a byte order mark of UTF-16 it is in that: engines read their specifications so, too.
    """
    if file is None:
        return ""
    encoding = "utf-16" if file.content[:2] in {BOM_UTF16_LE, BOM_UTF16_BE} else "utf-8"
    return file.content.decode(encoding, errors="replace")


def told_by_root(host: Host, path: PurePosixPath) -> dict[str, Any]:
    """Return the JSON object in a file of root's; an empty one where that cannot be had."""
    try:
        file = host.read(path)
        said = json.loads(file.content) if file is not None and file.meta.uid in trusted_uids() else {}
    except (InstallerError, RecursionError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def is_file(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a file is seen at ``path``: not behind a link that somebody who is not root can place."""
    try:
        return host.kind(path) is Kind.FILE
    except InstallerError:
        return False


def is_absent(host: Host, path: PurePosixPath) -> bool:
    """Tell whether nothing is at ``path``; not where nobody can tell, as ``is_file``."""
    try:
        return not host.exists(path)
    except InstallerError:
        return False
