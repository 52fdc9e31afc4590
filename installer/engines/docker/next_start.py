"""The next start of a dockerd that systemd stops along with containerd: why it would fail."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path, PurePosixPath
from typing import Final

from installer.config_text import Tree, value_at
from installer.engines import cdi_load
from installer.engines.config_texts import tree_of
from installer.engines.docker.config import CDI, CONFIG_FLAGS, FEATURES, DockerdModel
from installer.engines.docker.load import find_load_errors
from installer.engines.host_reader import Reader
from installer.engines.startup import drop_flags, values_of
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.programs import is_program, memory_file, run_in
from installer.model.engine import EngineState, HostReader, LoadError, LoadInput, Version
from installer.model.files import ROOT, File, Kind

PROCESS: Final = "dockerd"
ANSWER_S: Final = 5.0
VERSION: Final = re.compile(r"Docker version ([0-9]+)\.([0-9]+)")
CDI_SINCE: Final = (28, 2)  # the first release with CDI switched on
CDI_DIRECTORIES: Final = "cdi-spec-dirs"
CDI_FLAG: Final = "--cdi-spec-dir"
UNKNOWN_FLAG: Final = "unknown flag"  # dockerd 20.10 has no --validate
# Also the drivers of earlier releases: a node with an old driver has an old release.
STORAGE_DRIVERS: Final = frozenset((
    "", "aufs", "btrfs", "devicemapper", "fuse-overlayfs", "overlay", "overlay2", "vfs", "zfs",
))  # fmt: skip
DRIVER: Final = "native.cgroupdriver="
DRIVERS: Final = frozenset({"", "cgroupfs", "systemd"})


def explain_failing_start(
    host: Host, engine: EngineState, words: Sequence[str], config: PurePosixPath
) -> LoadError | None:
    """Explain why dockerd would not start again with the present config; see ``EngineApi``.

    A reload accepts settings that end a start, so a running dockerd does not show that its config is good.
    """
    remedy = f"correct {config}"
    try:
        file = host.read(config)
        tree = tree_of(file, config)
    except InstallerError as error:
        return LoadError(error.problem, remedy)
    if file is not None:
        reason = _find_flaw_of_config(host, engine, words, config, file)
        if reason:
            return LoadError(reason, remedy)
    return _find_flaw_of_cdi(host, words, tree)


def _find_flaw_of_config(
    host: Host, engine: EngineState, words: Sequence[str], config: PurePosixPath, file: File
) -> str:
    """Return the reason why dockerd would not start with its config, after "cannot"; "" if it would."""
    broken = _validate(host, words, config, file)
    if broken:
        return broken
    tree = tree_of(file, config)
    model = DockerdModel(config, None)
    is_flagged = any(word.partition("=")[0] in {"--default-runtime", "--add-runtime"} for word in words)
    if not is_flagged and model.start(file).broken:
        return f"start with {config} ({model.start(file).broken})"
    errors = find_load_errors(LoadInput(engine, {config: tree}, "", tuple(words[1:]), {}, Reader(host)))
    reason = next((error.reason for error in errors), "") or next(find_start_errors(tree, Reader(host)), "")
    return f"start with {config} ({reason})" if reason else ""


def _validate(host: Host, words: Sequence[str], config: PurePosixPath, file: File) -> str:
    """Return the refusal of ``dockerd --validate``; "" for an accepted config, or an unusable program."""
    program = PurePosixPath(words[0]) if words else PurePosixPath()
    if not program.is_absolute() or program.name != PROCESS or not is_program(host, program):
        return ""
    with memory_file() as place:
        Path(place.name).write_bytes(file.content)
        flags = drop_flags(words[1:], CONFIG_FLAGS)
        command = [str(program), "--validate", "--config-file", place.name, *flags]
        ran = run_in(host.local_path(ROOT), command, timeout_s=ANSWER_S, fds=[place.fd])
    if ran is None or not ran.returncode or UNKNOWN_FLAG in ran.stderr:
        return ""
    return f"start ({program}: {ran.last_line.replace(place.name, str(config))})"


def _find_flaw_of_cdi(host: Host, words: Sequence[str], tree: Tree) -> LoadError | None:
    """Find a CDI specification at which dockerd crashes or waits while it starts; a reload reads none."""
    directories = [*values_of(words, (CDI_FLAG,))]
    named = tree.get(CDI_DIRECTORIES)
    if isinstance(named, list):
        directories += map(str, named)
    if not directories:
        directories += cdi_load.DIRECTORIES
    absolute = [each for each in directories if each.startswith("/")]
    flaw = next(cdi_load.find_cdi_flaws(Reader(host), absolute, "start"), None)
    if flaw is None or not is_cdi_on(words, tree, _ask_version(host, words)):
        return None
    return flaw


def is_cdi_on(words: Sequence[str], tree: Tree, version: Version) -> bool:
    """Tell whether dockerd reads CDI specifications at a start; ``version`` is () if unknown."""
    setting = value_at(tree, (FEATURES, CDI))
    for feature in values_of(words, ("--feature",)):
        name, _, value = feature.partition("=")
        if name == CDI:
            setting = value.lower() in {"", "1", "t", "true"}
    if isinstance(setting, bool):
        return setting
    return version >= CDI_SINCE


def _ask_version(host: Host, words: Sequence[str]) -> Version:
    """Return the version of dockerd's program on the disk; () if unknown."""
    program = PurePosixPath(words[0]) if words else PurePosixPath()
    if not program.is_absolute() or program.name != PROCESS or not is_program(host, program):
        return ()
    ran = run_in(host.local_path(ROOT), [str(program), "--version"], timeout_s=ANSWER_S)
    answer = VERSION.match(ran.stdout) if ran is not None else None
    return tuple(map(int, answer.groups())) if answer is not None else ()


def find_start_errors(tree: Tree, host: HostReader) -> Iterator[str]:
    """Yield the settings that end dockerd at a start, though its --validate and a reload accept them.

    Measured on 26.1 and 28.5 (engine-facts.md#dockerd-load). Other values are left out: a false refusal would
    be worse.
    """
    yield from _find_unknown_storage_driver(tree)
    yield from _find_files_for_directories(tree, host)
    yield from _find_missing_seccomp_profile(tree, host)
    yield from _find_unknown_cgroup_driver(tree)
    yield from _find_small_pools(tree)


def _find_unknown_storage_driver(tree: Tree) -> Iterator[str]:
    """Yield a storage driver unknown to dockerd; the snapshotters of containerd have names of their own."""
    if value_at(tree, (FEATURES, "containerd-snapshotter")) is True:
        return
    driver = tree.get("storage-driver")
    if isinstance(driver, str) and driver not in STORAGE_DRIVERS:
        yield f"there is no storage-driver {driver}"


def _find_files_for_directories(tree: Tree, host: HostReader) -> Iterator[str]:
    """Yield the directories of dockerd with a file in their place, or above."""
    for key in ("data-root", "exec-root"):
        directory = tree.get(key)
        if not isinstance(directory, str) or not directory.startswith("/"):
            continue
        places = (PurePosixPath(directory), *PurePosixPath(directory).parents)
        if any(host.kind(place) is Kind.FILE for place in places):
            yield f"its {key} {directory} is no directory"


def _find_missing_seccomp_profile(tree: Tree, host: HostReader) -> Iterator[str]:
    """Yield a missing seccomp profile."""
    profile = tree.get("seccomp-profile")
    if not isinstance(profile, str) or not profile.startswith("/"):
        return
    path = PurePosixPath(profile)
    # A directory that is not mounted here tells nothing.
    if host.kind(path) is Kind.ABSENT and host.kind(path.parent) is Kind.DIRECTORY:
        yield f"its seccomp-profile {profile} is not there"


def _find_unknown_cgroup_driver(tree: Tree) -> Iterator[str]:
    """Yield the cgroup drivers unknown to dockerd."""
    options = tree.get("exec-opts")
    if not isinstance(options, list):
        return
    for option in options:
        if isinstance(option, str) and option.startswith(DRIVER):
            driver = option.removeprefix(DRIVER)
            if driver not in DRIVERS:
                yield f"there is no cgroup driver {driver}"


def _find_small_pools(tree: Tree) -> Iterator[str]:
    """Yield the pools of addresses too small for a network of their size."""
    pools = tree.get("default-address-pools")
    if not isinstance(pools, list):
        return
    for pool in pools:
        with suppress(ValueError, TypeError, AttributeError):
            size = pool["size"]
            if isinstance(size, int) and size < ip_network(pool["base"]).prefixlen:
                yield f"a pool of its default-address-pools is smaller than {pool['base']}"
