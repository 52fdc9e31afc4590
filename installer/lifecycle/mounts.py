"""The directories of the host that this process finds at other paths, compared with those of the install.

A config is looked for through the mounts of this process. With other mounts than those of the install, an
undo could find another file at a config's path, and give up the edits that an engine still reads.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from installer.config_text.change import has_any, list_missing
from installer.engines import ENGINES
from installer.engines.config_edits import names_program, relocate_edits
from installer.engines.config_files import list_targets
from installer.engines.config_texts import text_of
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.inodes import is_same
from installer.model.engine import EngineState
from installer.model.facts import ConfigRow, MountRow, Record
from installer.model.files import ROOT
from installer.model.options import Options


def list_mounts(host: Host, options: Options, rows: Iterable[ConfigRow]) -> tuple[MountRow, ...]:
    """Return the mounts below which a config of ours is, for the ledger."""
    if not options.mounts:
        return ()
    given = _list_given(host, options)
    used: dict[PurePosixPath, MountRow] = {}
    for row in rows:
        mount = _nearest(given, host.resolve(row.path)) if row.written else None
        if mount is not None:
            used[mount.path] = mount
    return tuple(used.values())


def find_other_mounts(
    host: Host, options: Options, record: Record, *, undoes: bool = False
) -> InstallerError | None:
    """Return the error for a config of ours that was written through other mounts, and is not found here.

    Mounts may change: an old pod has the host's /etc at one path, a new pod the whole host below another.
    What counts is that they lead to a text with our edits.

    Args:
        host: the host, through the mounts of this process.
        options: the options of the verb.
        record: the content of the ledger.
        undoes: whether the verb is an undo. An install may write its edits anew where they are gone, as for
            any drift; an undo would take them for removed.
    """
    for row in record.configs:
        # A specification that is gone names no device any more: no engine waits for its return.
        if not row.written or (row.engine not in ENGINES and host.read(row.path) is None):
            continue
        error = _find_other_mount(host, options, record, row, undoes=undoes)
        if error is not None:
            return error
    return None


def _find_other_mount(
    host: Host, options: Options, record: Record, row: ConfigRow, *, undoes: bool
) -> InstallerError | None:
    """Return the error for one config of ours, as ``find_other_mounts``."""
    init = _find_init_root(host)
    path = host.resolve(row.path)
    mount = _nearest(_list_given(host, options), path)
    former = _nearest(record.mounts, path)
    if mount is None and former is None:
        return _find_hidden_config(host, init, options, row)

    is_hosts_own = init is not None and _find_difference(host, init, row.path) is None
    has_edits = _holds_our_edits(host, row)
    if is_hosts_own and has_edits:
        return None
    error = _find_better_directory(host, options, row, mount, former)
    if error is None:
        error = _find_hidden_config(host, init, options, row)
    if error is not None or is_hosts_own or has_edits:
        return error
    return _find_missing_edits(row, mount, former, undoes=undoes)


def _find_better_directory(
    host: Host, options: Options, row: ConfigRow, mount: MountRow | None, former: MountRow | None
) -> InstallerError | None:
    """Return the error for a config of ours that another path of this process shows, and not the mount.

    Both may show our edits: one of the directories is then a copy, or was moved away under a running pod.
    """
    if former is not None:
        directory = Host.under(options.host_root, ((former.path, former.here),))
        if _is_another_with_edits(host, directory, row):
            problem = f"find our edits of {row.path} (install used --mount {former.path}={former.here})"
            return InstallerError(problem, remedy="give it again", code="path-unusable")
    if mount is not None and _is_another_with_edits(host, Host.under(options.host_root), row):
        reason = f"{mount.here} is not the host's {mount.path}"
        if former is None:
            reason = f"install did not use --mount {mount.path}={mount.here}"
        problem = f"find our edits of {row.path} ({reason})"
        return InstallerError(problem, remedy="leave it out", code="path-unusable")
    return None


def _find_init_root(host: Host) -> Host | None:
    """Return the host as its first process sees it; None unless this process has the same root.

    The root of a pod's first process is the pod's, unless the pod shares the host's processes.
    """
    with suppress(InstallerError):  # without CAP_SYS_PTRACE another process's root cannot be read
        init = Host.under(PurePosixPath("/proc/1/root"))
        if is_same(host.status(ROOT), init.status(ROOT)):
            return init
    return None


def _find_hidden_config(
    host: Host, init: Host | None, options: Options, row: ConfigRow
) -> InstallerError | None:
    """Return the error for a config of ours on a mount of the host that this process does not have."""
    if init is None or not _is_another_with_edits(host, init, row):
        return None
    remedy = f"mount the host's root at {options.host_root} with all mounts below it"
    if options.host_root == ROOT:
        remedy = "run this in the host's mount namespace"
    problem = f"find our edits of {row.path} ({_explain_view(1, row.path, host)})"
    return InstallerError(problem, remedy=remedy, code="path-unusable")


def _explain_view(pid: int, path: PurePosixPath, host: Host) -> str:
    """Explain that a process sees another file or directory at a path of the host."""
    local = host.local_path(path)
    here = "this process" if str(local) == str(path) else str(local)
    return f"pid {pid} sees another {path} than {here}"


def _find_difference(host: Host, other: Host, path: PurePosixPath) -> PurePosixPath | None:
    """Return the config at a path, or a directory above it, if ``other`` has another one there; else None.

    The directories count for a config that both have, too: hard links in two directories are one file
    until a rename puts a new file in the place of one of them.
    """
    here = host.status(path)
    there = other.status(path)
    if (here is not None or there is not None) and not is_same(here, there):
        return path
    directory = _find_directory(host, path)
    other_directory = _find_directory(other, path)
    if not is_same(host.status(directory), other.status(other_directory)):
        return directory
    return None


def _find_directory(host: Host, path: PurePosixPath) -> PurePosixPath:
    """Return the lowest existing directory above a file, links followed: there the file is renamed."""
    return host.directory_above(host.resolve(path))


def _is_another_with_edits(host: Host, other: Host, row: ConfigRow) -> bool:
    """Tell whether a config with our edits is another file for ``other`` than for ``host``."""
    return _find_difference(host, other, row.path) is not None and _holds_our_edits(other, row)


def _find_missing_edits(
    row: ConfigRow, mount: MountRow | None, former: MountRow | None, *, undoes: bool
) -> InstallerError | None:
    """Return the error for a config without our edits, which another directory may still have."""
    if mount is None and former is not None:
        problem = f"find our edits of {row.path} (install used --mount {former.path}={former.here})"
        anew = f"install --mount {former.path}=HERE, and then uninstall with it"
        remedy = (
            f"give it again, or name the present place with --mount {former.path}=HERE; "
            f"if our edits are gone for good, run {anew}"
        )
        return InstallerError(problem, remedy=remedy, code="path-unusable")
    if mount is None or not undoes:
        return None
    reason = f"{mount.here} has none of them, so it may be another directory"
    problem = f"find our edits of {row.path} ({reason})"
    remedy = (
        f"mount the host's {mount.path} there; if our edits are gone for good, run install with this --mount "
        "and then uninstall"
    )
    return InstallerError(problem, remedy=remedy, code="path-unusable")


def refuse_other_mounts(host: Host, options: Options, record: Record, *, undoes: bool = False) -> None:
    """Raise the error of ``find_other_mounts``."""
    error = find_other_mounts(host, options, record, undoes=undoes)
    if error is not None:
        raise error


def refuse_unread_configs(
    host: Host, options: Options, record: Record, engines: Iterable[EngineState]
) -> None:
    """Refuse another file or directory in the place of a config that an engine reads.

    For a stopped engine the mounts of its unit count.

    Raises:
        InstallerError: the engine sees another one at the path of its config or of our drop-in.
    """
    for engine in engines:
        for path in dict.fromkeys((engine.config, *list_targets(engine))):
            reason = _explain_unread(host, options, engine, path)
            if reason:
                problem = f"edit {path} of {engine.title} ({reason})"
                remedy = _choose_remedy(host, options, record, engine, path)
                raise InstallerError(problem, remedy=remedy, code="path-unusable")


def _explain_unread(host: Host, options: Options, engine: EngineState, path: PurePosixPath) -> str:
    """Explain that an engine sees another file or directory at the path of a config; "" if it does not."""
    if engine.pid is not None:
        place = _find_unread(engine.pid, path, host)
        return _explain_view(engine.pid, place, host) if place is not None else ""
    place = _find_mounted_by_unit(host, options, engine, path)
    return f"{engine.unit} mounts another {place} at its next start" if place is not None else ""


def _find_unread(pid: int, path: PurePosixPath, host: Host) -> PurePosixPath | None:
    """Return a config, or a directory above it, if a process sees another one; None if unknown."""
    with suppress(InstallerError):  # without CAP_SYS_PTRACE another process's root cannot be read
        seen = Host.under(PurePosixPath(f"/proc/{pid}/root"))
        has_same_root = is_same(host.status(ROOT), seen.status(ROOT))
        # With another root a missing directory tells nothing: the nearest one above may be that root.
        if has_same_root or seen.status(path.parent) is not None:
            return _find_difference(host, seen, path)
    return None


def _find_mounted_by_unit(
    host: Host, options: Options, engine: EngineState, path: PurePosixPath
) -> PurePosixPath | None:
    """Return a config, or a directory above it, if an engine's unit mounts another one at the next start.

    A directory that this process does not have is passed over: its content is unknown.
    """
    if not engine.unit_mounts:
        return None
    root = options.host_root
    given = list(options.mounts)
    own: list[tuple[PurePosixPath, PurePosixPath]] = []
    for mount_point, source in engine.unit_mounts:
        if host.status(source) is None:
            continue
        given = [pair for pair in given if not pair[0].is_relative_to(mount_point)]
        here = PurePosixPath(host.local_path(source))
        if mount_point == ROOT:
            root = here
        else:
            own.append((mount_point, here))
    return _find_difference(host, Host.under(root, (*given, *own)), path)


def _choose_remedy(
    host: Host, options: Options, record: Record, engine: EngineState, path: PurePosixPath
) -> str:
    """Return what has this process and an engine see the same file at the path of a config."""
    mount = _nearest(_list_given(host, options), host.resolve(path))
    if mount is not None:
        return f"mount the host's {mount.path} at {mount.here}, or correct --mount"
    if not any(row.engine == engine.name and row.written for row in record.configs):
        directory = _find_directory(host, path)  # of a missing directory there is nothing to mount
        return f"mount the one that it sees, and name the place with --mount {directory}=HERE"
    # Our edits are in the file that this process sees: with --mount an undo would leave them there.
    unit = engine.unit or engine.title
    commands = "systemctl daemon-reload"
    if engine.pid is not None:
        commands += f" and systemctl restart {unit}"
    return f"take the mount at or above {path} out of {unit}, run {commands}, then run this again"


def _list_given(host: Host, options: Options) -> list[MountRow]:
    """Return the mounts of the options."""
    return [MountRow(host.resolve(path), here) for path, here in options.mounts]


def _nearest(mounts: Sequence[MountRow], path: PurePosixPath) -> MountRow | None:
    """Return the lowest mount above ``path``; None for a path below none of them."""
    nearest = None
    for mount in mounts:
        if path.is_relative_to(mount.path) and (
            nearest is None or len(mount.path.parts) > len(nearest.path.parts)
        ):
            nearest = mount
    return nearest


def _holds_our_edits(host: Host, row: ConfigRow) -> bool:
    """Tell whether a config is a text of ours, or has an edit that names a program of our toolkit.

    Without such an edit in the row all its edits count, for one alone may be an owner's own.
    """
    with suppress(InstallerError):  # a config that cannot be read shows no edit
        file = host.read(row.path)
        if file is None:
            return False
        if file.digest in row.ours:
            return True
        if row.syntax is None:
            return False
        edits = [edit for edit in relocate_edits(row, file) if edit.after is not None]
        programs = [edit for edit in edits if names_program(edit)]
        text = text_of(file, row.path)
        if programs:
            return has_any(text, programs, row.syntax, name=str(row.path))
        missing = list_missing(text, edits, row.syntax, name=str(row.path))
        return bool(edits) and not missing
    return False
