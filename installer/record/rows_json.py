"""The ledger's rows as JSON text: version 1 of the format, to be read for ever."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from installer.decide.edits import Edit, Syntax
from installer.decide.inode import Meta
from installer.decide.rows import ConfigRow, DeviceNode, EngineRow, Failure, Holdings, Saved, ToolkitRow

VERSION: Final = 1


def dumps(held: Holdings) -> bytes:
    """Return the rows as JSON that a person can read."""
    toolkit = held.toolkit
    rows = {
        "version": VERSION,
        "finished": held.finished,
        "failed": held.failed and {"digest": held.failed.digest, "problem": held.failed.problem},
        "directories": [str(path) for path in held.directories],
        "nodes": {str(node.path): node.born for node in held.nodes},
        "toolkit": toolkit
        and {
            "version": toolkit.version,
            "previous": toolkit.previous,
            "rendered": toolkit.rendered,
            "replaced": toolkit.replaced,
            "linked": toolkit.linked,
            "files": dict(toolkit.files),
        },
        "engines": [
            {
                "name": row.name,
                "socket": str(row.socket),
                "unit": row.unit,
                "runtimes": {name: str(binary) for name, binary in row.runtimes},
            }
            for row in held.engines
        ],
        "configs": [
            {
                "engine": row.engine,
                "path": str(row.path),
                "syntax": row.syntax and str(row.syntax),
                "original": row.original and _saved_out(row.original),
                "ours": list(row.ours),
                "target": row.target and str(row.target),
                "edits": [
                    {"key": list(edit.key), "before": edit.before, "after": edit.after, "member": edit.member}
                    for edit in row.edits
                ],
            }
            for row in held.configs
        ],
    }
    # A path that is no UTF-8 holds lone surrogates; their escapes are JSON too.
    return json.dumps(rows, indent=1, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def loads(text: bytes) -> Holdings:
    """Return the rows that ``dumps`` wrote.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: these are not rows of a version known here.
    """
    rows = json.loads(text)
    if rows["version"] != VERSION:
        raise ValueError(f"version {rows['version']}")
    toolkit, failed = rows["toolkit"], rows.get("failed")
    return Holdings(
        tuple(PurePosixPath(path) for path in rows["directories"]),
        toolkit and ToolkitRow(**{**toolkit, "files": tuple(toolkit.get("files", {}).items())}),
        tuple(_engine(row) for row in rows["engines"]),
        tuple(_config(row) for row in rows["configs"]),
        finished=rows["finished"],
        failed=failed and Failure(**failed),
        nodes=tuple(DeviceNode(PurePosixPath(path), born) for path, born in rows.get("nodes", {}).items()),
    )


def _engine(row: Mapping[str, Any]) -> EngineRow:
    runtimes = tuple((name, PurePosixPath(binary)) for name, binary in row["runtimes"].items())
    return EngineRow(row["name"], PurePosixPath(row["socket"]), row["unit"], runtimes)


def _config(row: Mapping[str, Any]) -> ConfigRow:
    edits = tuple(
        Edit(tuple(edit["key"]), edit["before"], edit["after"], member=edit["member"])
        for edit in row["edits"]
    )
    return ConfigRow(
        row["engine"],
        PurePosixPath(row["path"]),
        Syntax(row["syntax"]) if row["syntax"] else None,
        row["original"] and _saved_in(row["original"]),
        tuple(row["ours"]),
        edits,
        PurePosixPath(row["target"]) if row.get("target") else None,
    )


def _saved_out(saved: Saved) -> dict[str, Any]:
    meta = saved.meta
    xattrs = {name: b64encode(value).decode() for name, value in meta.xattrs}
    return {
        "digest": saved.digest,
        "mode": f"{meta.mode:04o}",
        "uid": meta.uid,
        "gid": meta.gid,
        "xattrs": xattrs,
    }


def _saved_in(row: Mapping[str, Any]) -> Saved:
    xattrs = tuple((name, b64decode(value)) for name, value in row["xattrs"].items())
    return Saved(row["digest"], Meta(int(row["mode"], 8), row["uid"], row["gid"], xattrs))
