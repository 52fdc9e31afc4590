"""The engine's own program reads what its config is going to be, before the config is there."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

import structlog

from installer.decide.configs import text_of
from installer.decide.edits import Syntax, Want, apply
from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts
from installer.decide.inode import File, Kind
from installer.decide.layout import Layout
from installer.decide.steps import Preflight
from installer.decide.toolkit import Text
from installer.host.files import Host
from installer.host.programs import run_in
from installer.host.trees import install_tree, remove_tree
from installer.record.live import PATH

log = structlog.get_logger()

ANSWER_S: Final = 5.0
PRIVATE: Final = 0o600
ROOT: Final = PurePosixPath("/")
UNKNOWN_FLAG: Final = "unknown flag"  # dockerd 20.10 has no --validate (engines.md 8)


def preflight(host: Host, layout: Layout, engine: EngineFacts, step: Preflight) -> None:
    """Let the node's own program, in the node's own root, say whether it takes the config.

    One that cannot be run is no reason to stop: the engine itself is asked afterwards in any case.

    Raises:
        InstallerError: it refuses the config; nothing was changed.
    """
    _refuse_unseen(engine, step.binaries)
    program = _program(host, engine)
    files = dict(step.files)
    if program is None:
        log.warning("config not checked", engine=engine.name, reason="its program is not known here")
        return
    try:
        match engine.name:
            case "docker":
                words = _docker(host, files)
            case "containerd":
                words = _containerd(host, engine, files)
            case _:
                words = _crio(host, layout, engine, files)
        ran = run_in(host.here(ROOT), [str(program), *words], timeout_s=ANSWER_S)
    finally:
        for path in {*files, engine.config}:
            host.sweep(path)
        remove_tree(host, layout.check)
    if ran is None:
        log.warning("config not checked", engine=engine.name, reason=f"{program} cannot be run from here")
    elif ran.returncode and UNKNOWN_FLAG not in ran.stderr:
        raise InstallerError(
            f"configure {engine.name} ({program} refuses the new config: {ran.last_line})",
            remedy="correct the config it has now, then run again",
        )


def _refuse_unseen(engine: EngineFacts, binaries: Iterable[PurePosixPath]) -> None:
    """Raise where the engine would not find our runtimes: nobody complains before a container is started."""
    if engine.pid is None:
        return
    theirs = Host.under(PurePosixPath(f"/proc/{engine.pid}/root"))
    for path in binaries:
        try:
            there = not theirs.names(ROOT) or theirs.kind(path) is Kind.FILE
        except InstallerError:  # without CAP_SYS_PTRACE nobody looks into another process's root
            return
        if not there:
            raise InstallerError(
                f"configure {engine.name} ({path} is not there for pid {engine.pid}, which looks elsewhere)",
                remedy=Remedy(
                    "make ",
                    Option("install-dir"),
                    ", or the mount that holds it, the directory that the host sees",
                ),
            )


def _program(host: Host, engine: EngineFacts) -> PurePosixPath | None:
    """Return what the engine runs, if it goes by its name: others would take the words differently."""
    name = ENGINES[engine.name].process
    if engine.exe is not None:
        return engine.exe if engine.exe.name == name and host.kind(engine.exe) is Kind.FILE else None
    return next((path for path in (place / name for place in PATH) if host.kind(path) is Kind.FILE), None)


def _docker(host: Host, files: dict[PurePosixPath, File]) -> list[str]:
    ((path, file),) = files.items()
    return ["--validate", "--config-file", str(host.stage(path, file))]


def _containerd(host: Host, engine: EngineFacts, files: dict[PurePosixPath, File]) -> list[str]:
    """Stage the files beside their places, for relative imports; a drop-in is imported by its staged name."""
    root = files.get(engine.config) or host.read(engine.config) or File(b"")
    text = text_of(root, engine.config)
    for path, file in files.items():
        if path != engine.config:
            drop_in = Want(("imports",), str(host.stage(path, file)), member=True)
            text, _ = apply(text, [drop_in], Syntax.TOML, name=str(engine.config))
    staged = host.stage(engine.config, File(text.encode(), root.meta))
    return ["--config", str(staged), "config", "dump"]


def _crio(host: Host, layout: Layout, engine: EngineFacts, files: dict[PurePosixPath, File]) -> list[str]:
    """Put the drop-ins into a directory of their own: CRI-O reads everything in it, whatever its name."""
    beside = engine.drop_in.parent if engine.drop_in else layout.check
    texts = {path: host.read(path) for path in engine.files if path.is_relative_to(beside)} | files
    copies = [
        Text(path.relative_to(beside), text_of(file, path), PRIVATE)
        for path, file in texts.items()
        if path.is_relative_to(beside)
    ]
    install_tree(host, layout.check, copies)
    root = [files[engine.config]] if engine.config in files else []
    named = [host.stage(engine.config, file) for file in root]
    if not named and host.kind(engine.config) is Kind.FILE:
        named = [engine.config]
    return [
        *(word for path in named for word in ("--config", str(path))),
        "--config-dir",
        str(layout.check),
        "config",
    ]
