"""Proves the way through each engine: a container on each of our runtimes, made of what the node has."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Final

import click
from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import read_record
from installer.change.lost_ledger import find_install_dir
from installer.engines import ENGINES, trial_containers
from installer.engines.config_edits import is_hook
from installer.engines.containers import find_running_containers
from installer.engines.dependencies import driver_root
from installer.engines.observe import engine_of_row
from installer.engines.restart import is_socket_activated
from installer.engines.trial_containers import MARK, Exec, Tools, shell_of
from installer.errors import Exit, InstallerError
from installer.host.files import Host
from installer.host.inodes import watch_opens
from installer.host.locks import lock_file
from installer.lifecycle.uninstall import Made, record_made, remove_made
from installer.model.engine import Api
from installer.model.facts import EngineRow, Record, count
from installer.model.files import dumps
from installer.model.options import Options
from installer.payload.files import real_name
from installer.report.doctor.read import read_driver

SCHEMA: Final = 1
OK, BAD = "ok", "bad"
GPU: Final = re.compile(r"/dev/nvidia\d+")
PATIENCE_S: Final = 60.0  # for one container: no pod's grace runs out here, and a node may be busy
HOOK: Final = "nvidia-container-runtime-hook"
# Words of the shell alone: there is nothing else in the container.
END: Final = f"{MARK} end"
TELLS: Final = f"""\
echo {MARK}
for f in /dev/nvidia[0-9]*; do if [ -e "$f" ]; then echo "device $f"; fi; done
for f in /usr/lib*/libnvidia-ml.so.* /usr/lib*/*/libnvidia-ml.so.* /lib*/libnvidia-ml.so.*; do
if [ -e "$f" ]; then echo "library $f"; fi
done
echo {END}
exit 0
"""
CONTAINERS: Final = {Api.DOCKER: trial_containers.docker_container, Api.CRI: trial_containers.cri_container}


class Wanted(Struct, frozen=True):
    """What has to be seen of the node's GPUs; ``runtime`` is "" where ``binary`` is a hook of containers."""

    engine: str
    runtime: str
    binary: PurePosixPath
    devices: tuple[str, ...] = ()
    driver: str = ""


class Observed(Struct, frozen=True):
    """What was seen of one container."""

    failure: str = ""  # why it could not be run
    said: str = ""  # what it printed
    started_by: PurePosixPath | None = None  # the program that the engine's own records name for it
    wrapper: bool = False  # our script was started
    real: bool = False  # NVIDIA's program behind it was
    left: str = ""  # what could not be removed


class Proof(Struct, frozen=True):
    """What one container proves, as a program reads it; ``remedy`` is None where all of the way was seen."""

    engine: str
    runtime: str
    level: str
    found: str
    remedy: str | None = None


def verify(options: Options, *, as_json: bool) -> Exit:
    """Print what a container on each of our runtimes proves; FAILED where one does not go all the way."""
    host = Host.under(options.host_root, options.mounts)
    options = find_install_dir(host, options, tell=False)
    held = read_record(host, options.layout)
    if held is None or held.toolkit is None or not held.engines:
        lacks = "no runtime of ours is installed: engines take devices by CDI"
        click.echo(lacks if held and held.cdi else "nothing is installed", err=True)
        return Exit.NOTHING_INSTALLED
    with lock_file(host, options.layout.ledger):  # each removes what another has written down
        remove_made(host, options.layout)
        try:
            found = tuple(prove_runtimes(host, options, held))
        finally:
            remove_made(host, options.layout)
    worst = BAD if any(each.level == BAD for each in found) else OK
    if as_json:
        document = {"schema": SCHEMA, "verdict": worst, "runtimes": found}
        sys.stdout.write(dumps(document, indent=2).decode())
    else:
        width = max(len(f"{each.engine} {each.runtime}") for each in found)
        for each in found:
            good = each.level == OK
            level = click.style("ok " if good else BAD, fg="green" if good else "red", bold=not good or None)
            click.echo(f"{level}  {f'{each.engine} {each.runtime}':<{width}}  {each.found}")
            if each.remedy:
                click.echo(f"{'':<{width + 7}}do: {each.remedy}")
    return Exit.FAILED if worst == BAD else Exit.OK


def prove_runtimes(host: Host, options: Options, record: Record) -> Iterator[Proof]:
    """Yield what each of our runtimes proves; an engine that its owner has stopped is not asked."""
    there = read_driver(host, PurePosixPath(driver_root(host, options)[0]))
    gpus = tuple(path for node in there.nodes if GPU.fullmatch(path := str(node.path)))
    tools = shell_of(host)
    for row in record.engines:
        stopped = is_socket_activated(host, ENGINES[row.name], row.socket, row.unit)
        for name, binary in choose_runtimes(options, record, row):
            if stopped:  # a connection would start it again
                title = ENGINES[row.name].title
                problem = f"nothing is verified: {title} is stopped, and verify does not start it"
                yield Proof(row.name, name, BAD, problem, f"systemctl start {row.unit}, then verify again")
            else:
                wanted = Wanted(row.name, name, binary, gpus, there.version)
                yield judge(wanted, _observe(host, options, record, row, wanted, tools=tools))


def choose_runtimes(
    options: Options, record: Record, row: EngineRow
) -> tuple[tuple[str, PurePosixPath], ...]:
    """Return the runtimes to be asked for; with an OCI hook there is none: each container starts the hook."""
    hooked = any(is_hook(each) for each in record.configs if each.engine == row.name)
    return (("", options.layout.toolkit / HOOK),) if hooked else (*row.runtimes.items(),)


def _observe(  # noqa: PLR0913 - a trial has many sides
    host: Host, options: Options, record: Record, row: EngineRow, wanted: Wanted, *, tools: Tools
) -> Observed:
    """Return what was seen of a container on one of the engine's runtimes; it is gone by then."""
    binary, spec, name = wanted.binary, ENGINES[row.name], f"{MARK}-{token_hex(8)}"
    wrapper, real = host.local_path(binary), host.local_path(binary.parent / real_name(binary.name))
    environment = {"NVIDIA_VISIBLE_DEVICES": "all" if wanted.devices else "void"}
    socket, timeout_s = host.local_path(row.socket), max(PATIENCE_S, options.timeout_s)
    run, seen = CONTAINERS[spec.api], None
    try:
        with (
            record_made(host, options.layout, Made(row.name, row.socket, row.unit, name)),
            watch_opens((wrapper, real)) as watch,
            run(socket, name, wanted.runtime, tools, environment, timeout_s=timeout_s) as (made, script),
        ):
            said = ask_container(script, timeout_s=timeout_s)
            opened = watch()
            # What the records of the engine's shims, or of CRI-O, name for it.
            running = find_running_containers(host, options.layout, record, (engine_of_row(row),))
            started_by = next((each.binary for each in running if each.id == made), None)
            seen = Observed("", said, started_by, wrapper in opened, real in opened)
    except InstallerError as error:
        return Observed(failure=error.problem) if seen is None else replace(seen, left=error.problem)
    return seen


def ask_container(script: Exec, *, timeout_s: float) -> str:
    """Return what the container tells by the deadline; raise where it has ended, or the engine refuses."""
    # dockerd gives up on the output of an exec two seconds after its end (moby daemon/monitor.go): ask again.
    deadline = time.monotonic() + timeout_s
    while END not in (said := script(TELLS)).splitlines() and time.monotonic() < deadline:
        time.sleep(0.2)
    return said


def judge(wanted: Wanted, observed: Observed) -> Proof:
    """Return what was proven; the first thing that is missing on the way is the problem."""
    for missing, problem, remedy in _find_problems(wanted, observed):
        if missing:
            return Proof(wanted.engine, wanted.runtime, BAD, problem, remedy)
    gpus = f"sees {count(len(wanted.devices), 'GPU')}" if wanted.devices else "no GPU was found on the node"
    found = f"a container ran on {wanted.binary}; wrapper and NVIDIA's runtime took part; {gpus}"
    return Proof(wanted.engine, wanted.runtime, OK, found)


def _find_problems(wanted: Wanted, observed: Observed) -> Iterator[tuple[object, str, str]]:
    """Yield what could be missing: whether it is, the problem, and what to do about it."""
    title, doctor, failure = ENGINES[wanted.engine].title, "see toolkit-installer doctor", observed.failure
    lines = observed.said.splitlines()
    yield failure, f"no container could be run: {failure}", f"see the log of {title}; {doctor}"
    yield MARK not in lines, f"the container printed {observed.said[:200]!r}", doctor
    by, other = observed.started_by or "a runtime that is not ours", wanted.runtime and wanted.binary
    another = f"{title} serves another runtime of that name; {doctor}"
    yield other and observed.started_by != other, f"it was started by {by}", another
    yield not observed.wrapper, f"{wanted.binary} was not started", doctor
    reason = "the wrapper ran the low-level runtime: the driver's module is not loaded, or it is missing"
    remedy = f"load the driver; where status names a program that is missing, install again; {doctor}"
    yield not observed.real, f"NVIDIA's runtime took no part ({reason})", remedy
    absent = [device for device in wanted.devices if f"device {device}" not in lines]
    yield absent, f"not in the container: {', '.join(absent)}", doctor
    driver = any(line.startswith("library ") and line.endswith(wanted.driver) for line in lines)
    lacks = wanted.devices and wanted.driver and not driver
    yield lacks, f"no library of driver {wanted.driver} in the container", doctor
    yield observed.left, f"not removed: {observed.left}", "remove it by hand"
