"""Prove the way through each engine: run a container of the node's own files on each of our runtimes."""

import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Final

import click
from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import read_record
from installer.change.lost_ledger import find_install_dir
from installer.engines import ENGINES
from installer.engines.apis import api_of
from installer.engines.ask import ask, is_socket_activated
from installer.engines.config_edits import is_hook
from installer.engines.containers import find_running_containers
from installer.engines.dependencies import driver_root
from installer.engines.engine_api import RunScript
from installer.engines.node_shell import MARK, Tools, shell_of
from installer.engines.observe import engine_of_row
from installer.errors import Exit, InstallerError
from installer.host.files import Host
from installer.host.inodes import watch_opens
from installer.host.locks import lock_file
from installer.lifecycle.installation_report import Line, list_leftovers, list_missing_toolkit_notes
from installer.lifecycle.verify_leftovers import Made, record_made, remove_made
from installer.model.facts import EngineRow, Record, count
from installer.model.files import dumps
from installer.model.options import Options
from installer.payload.files import real_name
from installer.report.doctor.read import read_driver

SCHEMA: Final = 1
OK: Final = "ok"
BAD: Final = "bad"
GPU: Final = re.compile(r"/dev/nvidia\d+")
PATIENCE_S: Final = 60.0  # for one container: no grace period of a pod runs out here, and a node may be busy
HOOK: Final = "nvidia-container-runtime-hook"
# containerd and CRI-O make each pod from a pause image. The errors of a failed pull name the image: that of
# containerd, then that of CRI-O (cri-o server/sandbox_run_linux.go). Each has the command of an import.
PAUSE_IMAGES: Final = (
    (
        re.compile(r'failed to get sandbox image "([^"]+)"'),
        "ctr --address {socket} --namespace k8s.io images import FILE.tar",
    ),
    (
        re.compile(
            r'creating pod sandbox with name "[^"]+": (?:Error )?initializing source docker://(\S+): '
        ),
        "podman load --input FILE.tar",
    ),
)
AS_ABOVE: Final = "the same as above"
# Only words of the shell: the container has no other program.
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


class Expectation(Struct, frozen=True):
    """The things that a container has to show.

    Attributes:
        engine: The name of the engine.
        runtime: The runtime of the container; "" if ``binary`` is a hook that each container starts.
        binary: Our wrapper.
        socket: The socket of the engine.
        devices: The device nodes of the node's GPUs.
        driver: The version of the driver.
    """

    engine: str
    runtime: str
    binary: PurePosixPath
    socket: PurePosixPath
    devices: tuple[str, ...] = ()
    driver: str = ""


class Observation(Struct, frozen=True):
    """The observation of one container."""

    failure: str = ""  # the reason why no container could be run
    output: str = ""  # of the script in the container
    started_by: PurePosixPath | None = None  # the runtime's program by the engine's own records
    wrapper_started: bool = False
    runtime_started: bool = False  # NVIDIA's program behind the wrapper
    cleanup_failure: str = ""  # the reason why the container could not be removed


class Proof(Struct, frozen=True):
    """The result of one container, as programs read the JSON; ``remedy`` is None without a problem."""

    engine: str
    runtime: str
    level: str
    found: str
    remedy: str | None = None


def verify(options: Options, *, as_json: bool) -> Exit:
    """Run a container on each of our runtimes and print the results; FAILED if a runtime has a problem."""
    host = Host.under(options.host_root, options.mounts)
    options = find_install_dir(host, options, tell=False)
    record = read_record(host, options.layout)
    if record is None or record.toolkit is None or not record.engines:
        lacks = "nothing is installed here: run toolkit-installer install first"
        notes: Iterable[Line] = ()
        if record and record.cdi:
            lacks = "no runtime of ours is installed, because engines give GPUs by CDI: nothing to verify"
        elif record is None and any(list_leftovers(host, options)):
            lacks = (
                f"the ledger {options.layout.ledger} is lost, so our runtimes are not known: "
                "run toolkit-installer install, which finds our edits again, or toolkit-installer uninstall"
            )
        else:
            notes = list_missing_toolkit_notes(host, options)
        click.echo(lacks, err=True)
        for note in notes:
            click.echo(f"{note.subject}: {note.state}", err=True)
        return Exit.NOTHING_INSTALLED

    with lock_file(host, options.layout.ledger):  # each verify removes the recorded containers of others
        remove_made(host, options.layout)
        try:
            proofs = tuple(prove_runtimes(host, options, record))
        finally:
            remove_made(host, options.layout)

    failed = any(proof.level == BAD for proof in proofs)
    if as_json:
        document = {"schema": SCHEMA, "verdict": BAD if failed else OK, "runtimes": proofs}
        sys.stdout.write(dumps(document, indent=2).decode())
    else:
        print_proofs(proofs)
    return Exit.FAILED if failed else Exit.OK


def print_proofs(proofs: Collection[Proof]) -> None:
    """Print the proofs; a reason that several runtimes of an engine have is printed once."""
    width = max(len(f"{proof.engine} {proof.runtime}") for proof in proofs)
    last: Proof | None = None
    for proof in proofs:
        level = click.style("ok ", fg="green")
        if proof.level == BAD:
            level = click.style(BAD, fg="red", bold=True)
        name = f"{proof.engine} {proof.runtime}"
        is_repeated = last is not None and proof.remedy and replace(proof, runtime=last.runtime) == last
        last = proof
        if is_repeated:
            click.echo(f"{level}  {name:<{width}}  {AS_ABOVE}")
            continue
        click.echo(f"{level}  {name:<{width}}  {proof.found}")
        if proof.remedy:
            click.echo(f"{'':<{width + 7}}do: {proof.remedy}")


def prove_runtimes(host: Host, options: Options, record: Record) -> Iterator[Proof]:
    """Yield the proof of each of our runtimes; an engine that its owner has stopped is not asked."""
    driver = read_driver(host, PurePosixPath(driver_root(host, options)[0]))
    gpus = tuple(str(node.path) for node in driver.nodes if GPU.fullmatch(str(node.path)))
    tools = shell_of(host)
    for row in record.engines:
        stopped = _is_stopped(host, row)
        for name, binary in choose_runtimes(options, record, row):
            if stopped:
                title = ENGINES[row.name].title
                problem = f"nothing is verified: {title} is stopped, and verify does not start it"
                start = f"systemctl start {row.unit}" if row.unit else f"start {title}"
                remedy = f"{start}, then verify again"
                yield Proof(row.name, name, BAD, problem, remedy)
            else:
                expected = Expectation(row.name, name, binary, row.socket, gpus, driver.version)
                observed = _observe(host, options, record, row, expected, tools=tools)
                yield judge(expected, observed)


def _is_stopped(host: Host, row: EngineRow) -> bool:
    """Tell whether an engine does not run; a connection to a socket of systemd would start the engine."""
    if is_socket_activated(host, ENGINES[row.name], row.socket, row.unit):
        return True
    engine = ask(host, engine_of_row(row))
    return engine.stopped and not engine.other_engine_reason


def choose_runtimes(
    options: Options, record: Record, row: EngineRow
) -> tuple[tuple[str, PurePosixPath], ...]:
    """Return the runtimes of an engine for test containers, each with its program.

    With an OCI hook there is one nameless runtime: each container starts the hook.
    """
    configs = [config for config in record.configs if config.engine == row.name]
    if any(is_hook(config) for config in configs):
        return (("", options.layout.toolkit / HOOK),)
    return tuple(row.runtimes.items())


def _observe(  # noqa: PLR0913 - a container has many sides
    host: Host, options: Options, record: Record, row: EngineRow, expected: Expectation, *, tools: Tools
) -> Observation:
    """Run a container on one of the engine's runtimes, and remove the container."""
    binary = expected.binary
    wrapper = host.local_path(binary)
    runtime = host.local_path(binary.parent / real_name(binary.name))
    name = f"{MARK}-{token_hex(8)}"
    environment = {"NVIDIA_VISIBLE_DEVICES": "all" if expected.devices else "void"}
    socket = host.local_path(row.socket)
    timeout_s = max(PATIENCE_S, options.timeout_s)
    api = api_of(ENGINES[row.name])
    observed: Observation | None = None
    try:
        with (
            record_made(host, options.layout, Made(row.name, row.socket, row.unit, name)),
            watch_opens((wrapper, runtime)) as list_opened,
            api.run_container(socket, name, expected.runtime, tools, environment, timeout_s=timeout_s) as (
                container_id,
                script,
            ),
        ):
            output = ask_container(script, timeout_s=timeout_s)
            opened = list_opened()
            # The records of the engine's shims, or of CRI-O, name the program.
            running = find_running_containers(host, options.layout, record, (engine_of_row(row),))
            programs = [container.binary for container in running if container.id == container_id]
            observed = Observation(
                output=output,
                started_by=programs[0] if programs else None,
                wrapper_started=wrapper in opened,
                runtime_started=runtime in opened,
            )
    except InstallerError as error:
        if observed is None:
            return Observation(failure=error.problem)
        return replace(observed, cleanup_failure=error.problem)
    return observed


def ask_container(script: RunScript, *, timeout_s: float) -> str:
    """Return the output of the container by the deadline.

    Raises:
        InstallerError: The container has ended, or the engine refuses.
    """
    # dockerd gives up on the output of an exec two seconds after its end (moby daemon/monitor.go): ask again.
    deadline = time.monotonic() + timeout_s
    output = script(TELLS)
    while END not in output.splitlines() and time.monotonic() < deadline:
        time.sleep(0.2)
        output = script(TELLS)
    return output


class Problem(Struct, frozen=True):
    """A missing part of the way from the engine to the GPUs."""

    text: str
    remedy: str


def judge(expected: Expectation, observed: Observation) -> Proof:
    """Return the proof of a runtime; the first missing part of the way is the problem."""
    problem = next(_find_problems(expected, observed), None)
    if problem is not None:
        return Proof(expected.engine, expected.runtime, BAD, problem.text, problem.remedy)

    gpus = "no GPU was found on the node"
    if expected.devices:
        gpus = f"sees {count(len(expected.devices), 'GPU')}"
    text = f"a container ran on {expected.binary}; the wrapper and NVIDIA's runtime were both started; {gpus}"
    return Proof(expected.engine, expected.runtime, OK, text)


def _find_problems(expected: Expectation, observed: Observation) -> Iterator[Problem]:
    """Yield the missing parts of the way, in the order of a container's start."""
    title = ENGINES[expected.engine].title
    # Only for what doctor has a check for: the driver, its device nodes, and settings of the toolkit.
    doctor = "toolkit-installer doctor checks the driver and the toolkit"
    lines = observed.output.splitlines()
    if observed.failure:
        remedy = f"correct the reason in brackets (the log of {title} may say more), then verify again"
        for pattern, command in PAUSE_IMAGES:
            pause_image = pattern.search(observed.failure)
            if pause_image is not None:
                remedy = (
                    f"{title} makes each pod from the image {pause_image[1]}, which is not on this node. "
                    "Make the registry reachable, or import the image from a file: "
                    f"{command.format(socket=expected.socket)}; verify again"
                )
        yield Problem(f"no container could be run: cannot {observed.failure}", remedy)
    if MARK not in lines:
        remedy = f"see the log of {title}; then verify again"
        yield Problem(f"the container printed {observed.output[:200]!r}", remedy)

    if expected.runtime and observed.started_by != expected.binary:
        program = observed.started_by or "a runtime that is not ours"
        remedy = f"{title} serves another runtime of that name: toolkit-installer status says where"
        yield Problem(f"it was started by {program}", remedy)
    if not observed.wrapper_started:
        remedy = "see toolkit-installer status, then run toolkit-installer install"
        yield Problem(f"{expected.binary} was not started", remedy)
    if not observed.runtime_started:
        reason = "the wrapper ran the low-level runtime: the driver's module is not loaded, or it is missing"
        remedy = f"load the driver; if status names a missing program, install again; {doctor}"
        yield Problem(f"NVIDIA's runtime was not started ({reason})", remedy)

    absent = [device for device in expected.devices if f"device {device}" not in lines]
    if absent:
        yield Problem(f"not in the container: {', '.join(absent)}", doctor)
    if expected.devices and expected.driver and not _has_library(lines, expected.driver):
        yield Problem(f"no library of driver {expected.driver} in the container", doctor)
    if observed.cleanup_failure:
        yield Problem(f"not removed: {observed.cleanup_failure}", "remove it by hand")


def _has_library(lines: Collection[str], version: str) -> bool:
    """Tell whether a container's output names a library of the driver's version."""
    return any(line.startswith("library ") and line.endswith(version) for line in lines)
