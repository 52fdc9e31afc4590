"""The ledger's rows as JSON text: version 1 of the format, to be read for ever."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NoReturn

from installer.decide.edits import Edit, Syntax
from installer.decide.edits.tree import kind_of
from installer.decide.engines import ENGINES
from installer.decide.inode import Meta
from installer.decide.parts import nri
from installer.decide.parts.cdi import OWNER
from installer.decide.rows import (
    NAME,
    CdiRow,
    ConfigRow,
    DeviceNode,
    EngineRow,
    Failure,
    Record,
    Saved,
    ToolkitRow,
)

VERSION: Final = 1
KNOWN: Final = frozenset(
    {
        "version",
        "finished",
        "failed",
        "left",
        "cdi",
        "nri",
        "published",
        "directories",
        "nodes",
        "pid_file",
        "toolkit",
        "engines",
        "configs",
        "former",
    }
)


def dumps(held: Record) -> bytes:
    """Return the rows as JSON that a person can read."""
    toolkit = held.toolkit
    rows = {
        "version": VERSION,
        "finished": held.finished,
        "failed": held.failed and {"digest": held.failed.digest, "problem": held.failed.problem},
        **({"left": held.left} if held.left else {}),
        **({"cdi": {"engines": held.cdi.engines, "lacking": held.cdi.lacking}} if held.cdi else {}),
        **({"nri": str(held.nri)} if held.nri else {}),
        **({"published": [str(path) for path in held.published]} if held.published else {}),
        "directories": [str(path) for path in held.directories],
        "nodes": {str(node.path): node.born for node in held.nodes},
        "pid_file": held.pid_file and str(held.pid_file),
        "toolkit": toolkit
        and {
            "version": toolkit.version,
            "previous": toolkit.previous,
            "rendered": toolkit.rendered,
            "replaced": toolkit.replaced,
            "linked": toolkit.linked,
            "files": dict(toolkit.files),
        },
        "engines": [_engine_out(row) for row in held.engines],
        "configs": [_config_out(row) for row in held.configs],
        **({"former": _former_out(held)} if held.former_configs or held.former_engines else {}),
    }
    # A path that is no UTF-8 holds lone surrogates; their escapes are JSON too.
    return json.dumps(rows, indent=1, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def _former_out(held: Record) -> dict[str, Any]:
    return {
        "engines": [_engine_out(row) for row in held.former_engines],
        "configs": [_config_out(row) for row in held.former_configs],
    }


def _engine_out(row: EngineRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "socket": str(row.socket),
        "unit": row.unit,
        "runtimes": {name: str(binary) for name, binary in row.runtimes},
        "state": row.state and str(row.state),
        "pending": row.pending,
        "config": row.config and str(row.config),
        "default": row.default,
        "version": row.version,
        **({"restart_due": True} if row.restart_due else {}),
        **({"proven": row.proven} if row.proven else {}),
    }


def _config_out(row: ConfigRow) -> dict[str, Any]:
    return {
        "engine": row.engine,
        "path": str(row.path),
        "syntax": row.syntax and str(row.syntax),
        "original": row.original and _saved_out(row.original),
        "ours": list(row.ours),
        "target": row.target and str(row.target),
        "named": row.named if row.named is None else list(row.named),
        "edits": [
            {"key": list(edit.key), "before": edit.before, "after": edit.after, "member": edit.member}
            for edit in row.edits
        ],
    }


def loads(text: bytes) -> Record:
    """Return the rows that ``dumps`` wrote.

    Raises:
        ValueError: these are not rows of a version known here.
    """
    try:
        return _record(json.loads(text.decode(), parse_int=_whole))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise ValueError(f"it is damaged or cut off: {place}" if text.strip() else "it is empty") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError as error:
        raise ValueError("it holds a number of more than 4300 digits") from error


def _record(rows: Any) -> Record:
    rows = _table(rows)
    if rows["version"] != VERSION:
        raise ValueError(f"it is of version {rows['version']!r:.20}, and {VERSION} is known here")
    if unknown := rows.keys() - KNOWN:
        raise ValueError(f"{min(unknown)!r:.40} is unknown here")
    toolkit, failed = rows["toolkit"], rows.get("failed")
    former = _table(rows.get("former", {}))
    return Record(
        tuple(_path(path) for path in _list(rows["directories"])),
        None if toolkit is None else _toolkit(_table(toolkit)),
        tuple(_engine(_table(row)) for row in _list(rows["engines"])),
        tuple(_config(_table(row)) for row in _list(rows["configs"])),
        finished=bool(rows["finished"]),
        failed=failed and Failure(_text(_table(failed)["digest"]), _text(failed["problem"])),
        nodes=tuple(
            DeviceNode(_path(path), _text(born)) for path, born in _table(rows.get("nodes", {})).items()
        ),
        pid_file=_path(rows["pid_file"]) if rows.get("pid_file") else None,
        left=_text(rows.get("left", "")),
        published=tuple(_path(path) for path in _list(rows.get("published", []))),
        former_engines=tuple(_engine(_table(row)) for row in _list(former.get("engines", []))),
        former_configs=tuple(_config(_table(row)) for row in _list(former.get("configs", []))),
        cdi=_cdi(_table(rows["cdi"])) if rows.get("cdi") else None,
        nri=_path(rows["nri"]) if rows.get("nri") else None,
    )


def _cdi(row: Mapping[str, Any]) -> CdiRow:
    return CdiRow(tuple(_engine_name(name) for name in _list(row["engines"])), _text(row.get("lacking", "")))


def _toolkit(row: Mapping[str, Any]) -> ToolkitRow:
    previous, linked = row["previous"], row["linked"]
    return ToolkitRow(
        _name(row["version"]),
        None if previous is None else _name(previous),
        _text(row["rendered"]),
        replaced=bool(row["replaced"]),
        linked=None if linked is None else _text(linked),
        files=tuple((name, _text(identity)) for name, identity in _table(row.get("files", {})).items()),
    )


def _engine(row: Mapping[str, Any]) -> EngineRow:
    runtimes = tuple((name, _path(binary)) for name, binary in _table(row["runtimes"]).items())
    return EngineRow(
        _engine_name(row["name"]),
        _path(row["socket"]),
        _text(row["unit"]),
        runtimes,
        _path(row["state"]) if row.get("state") else None,
        _text(row.get("pending", "")),
        _path(row["config"]) if row.get("config") else None,
        _text(row.get("default", "")),
        None if row.get("version") is None else tuple(_number(part) for part in _list(row["version"])),
        restart_due=bool(row.get("restart_due", False)),
        proven=_text(row.get("proven", "")),
    )


def _config(row: Mapping[str, Any]) -> ConfigRow:
    return ConfigRow(
        _engine_name(row["engine"], OWNER, nri.ID),
        _path(row["path"]),
        Syntax(row["syntax"]) if row["syntax"] else None,
        None if row["original"] is None else _saved_in(_table(row["original"])),
        tuple(_text(digest) for digest in _list(row["ours"])),
        tuple(_edit(_table(edit)) for edit in _list(row["edits"])),
        _path(row["target"]) if row.get("target") else None,
        None if row.get("named") is None else tuple(_text(value) for value in _list(row["named"])),
    )


def _edit(row: Mapping[str, Any]) -> Edit:
    before, after = (None if row[side] is None else _text(row[side]) for side in ("before", "after"))
    return Edit(tuple(_text(part) for part in _list(row["key"])), before, after, member=bool(row["member"]))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else _refuse(value, "a table")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else _refuse(value, "a list")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _refuse(value, "a text")


def _number(value: Any) -> int:
    return value if isinstance(value, int) else _refuse(value, "a number")


def _refuse(value: Any, expected: str) -> NoReturn:
    raise ValueError(f"it has {kind_of(value)} where {expected} belongs")


def _path(value: Any) -> PurePosixPath:
    path = PurePosixPath(_text(value))
    if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise ValueError(f"the path {value!r:.100} is not absolute")
    return path


def _name(value: Any) -> str:
    """Return what becomes one name in a directory of ours."""
    if not NAME.fullmatch(_text(value)):
        raise ValueError(f"{value!r:.100} is not the name of a version or of a saved copy")
    return str(value)


def _engine_name(value: Any, *more: str) -> str:
    if _text(value) not in (*ENGINES, *more):
        raise ValueError(f"the engine {value[:40]} is unknown here")
    return str(value)


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
    xattrs = tuple((name, b64decode(_text(value))) for name, value in _table(row["xattrs"]).items())
    uid, gid = row["uid"], row["gid"]
    if not all(owner is None or isinstance(owner, int) for owner in (uid, gid)):
        raise ValueError("it names an owner that is no number")
    return Saved(_name(row["digest"]), Meta(int(_text(row["mode"]), 8), uid, gid, xattrs))
