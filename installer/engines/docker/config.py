"""Docker: runtimes and default-runtime in daemon.json."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from installer.config_text import Syntax, Tree, Value, Want
from installer.engines.docker.reload_model import BUILT_IN, DEFAULT, RUNTIMES, DockerdModel, read_field
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig
from installer.model.engine_spec import (
    DEFAULT_BY_FLAG,
    Api,
    CdiSupport,
    Check,
    CommandLine,
    ConfigFiles,
    Data,
    Decision,
    EngineSpec,
    Extras,
    FileWants,
    Question,
    ReloadMethod,
    RuntimeEntry,
    RuntimeFlags,
    State,
    is_oci,
    is_ours,
    low_level_words,
    refuse_taken_name,
    spellings,
    table,
    text,
)

FEATURES: Final = "features"
CDI: Final = "cdi"
CONFIG_FLAGS: Final = ("--config-file",)


def draft(files: ConfigFiles, entries: tuple[RuntimeEntry, ...], extras: Extras) -> Iterator[Decision]:
    """Yield what daemon.json should say.

    Raises:
        InstallerError: the file holds what dockerd would refuse or die of later.
    """
    path = files.config
    tree = files.trees.get(path, {})
    runtimes = table(tree, (RUNTIMES,), path)
    for name in runtimes:
        entry = table(tree, (RUNTIMES, name), path)
        for word in ("path", "runtimeType"):
            text(entry, _spell(entry, word)[-1], path, (RUNTIMES, name))
        table(tree, (RUNTIMES, name, _spell(entry, "options")[-1]), path)
    default = text(tree, DEFAULT, path)
    _refuse_fatal(path, runtimes, default, entries)
    wants = [want for entry in entries for want in _entry(path, runtimes, entry)]
    if extras.cdi and table(tree, (FEATURES,), path).get(CDI) is not True:
        wants.append(Want((FEATURES, CDI), value=True))
    yield Decision(
        (FileWants(path, Syntax.JSON, tuple(wants)),), low_level_words(_low_level(runtimes, default))
    )


def pending(path: PurePosixPath, extras: Extras, serving: EffectiveConfig | None) -> str:
    """Return which setting of ours a running dockerd has not taken up, and when it does; "" for none.

    ``serving.cdi`` tells, whatever the release: some have CDI switched on without being asked for it.
    """
    if not extras.cdi or serving is None or serving.cdi:
        return ""
    if serving.cdi is None:
        return f"{FEATURES}.{CDI} in {path} has no effect, for this dockerd has no CDI"
    return f"{FEATURES}.{CDI} in {path} takes effect when dockerd starts the next time"


def make_check(question: Question) -> Check:
    """Return how dockerd is asked: as it was started, for what a flag says may not stand in the file too."""
    config = question.config
    return Check(
        paths=(config,),
        texts=lambda _: {config: question.texts.get(config, "{}")},
        words=("--validate", "--config-file", config),
        given=CONFIG_FLAGS,
        by_start=True,
    )


def _refuse_fatal(
    path: PurePosixPath, runtimes: Tree, default: str, entries: tuple[RuntimeEntry, ...]
) -> None:
    if BUILT_IN in runtimes:
        raise InstallerError(
            f"use {path} (it defines a runtime named runc, which dockerd refuses to start with)",
            remedy="remove or rename that runtime",
        )
    known = {*runtimes, BUILT_IN, *(entry.name for entry in entries)}
    # A default with a dot names a containerd shim, which needs no entry.
    if default and default not in known and "." not in default:
        raise InstallerError(
            f'use {path} (its default-runtime "{default}" is not defined: dockerd would not start)',
            remedy=f'define it under "{RUNTIMES}" or remove "{DEFAULT}"',
        )


def _entry(path: PurePosixPath, runtimes: Tree, entry: RuntimeEntry) -> Iterator[Want]:
    key = (RUNTIMES, entry.name)
    now = table(runtimes, (entry.name,), path)
    refuse_taken_name(path, entry.name, read_field(now, "path") or read_field(now, "runtimeType"))
    for word in _spell(now, "path"):
        yield Want((*key, word), str(entry.binary))
    if not now:
        yield Want((*key, "args"), [])
    # dockerd refuses a runtime that has both a path and a shim. Emptied, not removed: so each comes
    # back to its place, also when others have edited the file.
    empty: dict[str, Value] = {"runtimeType": "", "options": {}}
    for field, nothing in empty.items():
        yield from (Want((*key, word), nothing) for word in spellings(now, field) if now[word])
    if entry.default:
        yield Want((DEFAULT,), entry.name)


def _spell(entry: Tree, word: str) -> list[str]:
    """Return how ``word`` is written in an entry, at least once: dockerd reads the keys in any case."""
    return spellings(entry, word) or [word]


def _low_level(runtimes: Tree, default: str) -> Iterator[Value]:
    for name in (default, BUILT_IN, "crun"):
        entry = runtimes.get(name)
        binary = _binary(entry) if isinstance(entry, Mapping) else None
        if not is_ours(binary) and is_oci(name, binary):
            yield binary


def _binary(entry: Tree) -> Value:
    """Return what an entry starts: its path, or what a runc shim is told to."""
    kind, options = read_field(entry, "runtimeType"), read_field(entry, "options")
    if not isinstance(kind, str) or not kind:
        return read_field(entry, "path")
    if not kind.startswith("io.containerd.runc.") or not isinstance(options, Mapping):
        return None
    return next((options[name] for name in spellings(options, "binaryname")), None)


DOCKER: Final = EngineSpec(
    name="docker",
    title="Docker",
    config=PurePosixPath("/etc/docker/daemon.json"),
    socket=PurePosixPath("/var/run/docker.sock"),
    unit="docker.service",
    process="dockerd",
    pidfile=PurePosixPath("/var/run/docker.pid"),
    api=Api.DOCKER,
    cmdline=CommandLine(
        config=CONFIG_FLAGS,
        runtimes=RuntimeFlags("--default-runtime", "--add-runtime", "="),
        # It loses the runtimes of its flags at each reload with runtimes in its config (20.10, 26.1, 28.5).
        conflicts={"--add-runtime": "which each reload with runtimes in its config undoes"},
        conflicts_as_default=DEFAULT_BY_FLAG,
    ),
    # The containerd that dockerd starts where the node has none.
    state=State(
        PurePosixPath("/run/docker/containerd/daemon"),
        "--exec-root",
        "exec-root",
        "containerd/daemon",
        namespace="moby",
    ),
    data=Data(("--data-root",), "data-root", PurePosixPath("/var/lib/docker")),
    reload=ReloadMethod.HUP,
    default_key=DEFAULT,
    needs_handler=lambda _: False,
    draft=draft,
    make_check=make_check,
    uses="containerd",
    # The last is that of `docker run --gpus`.
    starts=("containerd", "runc", "docker-init", "docker-proxy", "nvidia-container-runtime-hook"),
    estimate=lambda files: DockerdModel(files.config, files.version, files.flags).start(
        files.files.get(files.config)
    ),
    cdi=CdiSupport(
        "Docker 28.2 has CDI switched on, 25 with features.cdi = true in daemon.json, restarted",
        reads=(((26, 1), None), ((0,), (0, 6, 0))),
    ),
)
