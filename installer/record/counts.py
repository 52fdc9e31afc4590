"""What has happened on this node, beside the ledger: a restart of the pod loses nothing, an uninstall all."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, get_args

from installer.decide.data import fields_of
from installer.decide.engines import ENGINES
from installer.decide.errors import Code
from installer.decide.inode import File, Meta
from installer.decide.layout import Layout
from installer.decide.metrics import Counts
from installer.host.files import Host
from installer.record.texts import told_by_root


def read_counts(host: Host, layout: Layout) -> Counts:
    """Return the counts; where nobody can tell them they begin anew, as counters may."""
    said = told_by_root(host, layout.counts)
    toolkit = said.get("toolkit")
    return Counts(
        int(_number(said.get("installs"))),
        int(_number(said.get("repairs"))),
        _table(said.get("failures"), get_args(Code)),
        _table(said.get("restarts"), tuple(ENGINES)),
        _number(said.get("success_s")),
        _number(said.get("ready_since_s")),
        toolkit if isinstance(toolkit, str) and toolkit.isprintable() else "",
    )


def write_counts(host: Host, layout: Layout, counts: Counts) -> None:
    """Put the counts on the disk, in one rename.

    Raises:
        InstallerError: they cannot be written; what was there is whole.
    """
    host.replace(layout.counts, File(json.dumps(fields_of(counts)).encode() + b"\n", Meta(0o600)))


def _number(value: Any) -> float:
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return value if whole and isfinite(value) and 0 <= value < 1 << 53 else 0


def _table(value: Any, known: tuple[str, ...]) -> Mapping[str, int]:
    found = value if isinstance(value, dict) else {}
    return {name: int(_number(found[name])) for name in known if name in found}
