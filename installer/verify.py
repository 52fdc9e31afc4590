"""Proves the way through each engine: a container on each of our runtimes, made of what the node has."""

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Final

import click

from installer import leftovers
from installer.decide.data import dataclass, replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import Api
from installer.decide.errors import Exit, InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.options import Options
from installer.decide.rows import EngineRow, Record
from installer.decide.verify import (
    MARK,
    TELLS,
    Exec,
    Observed,
    Proof,
    Tools,
    Wanted,
    is_whole,
    proof,
    unproven,
)
from installer.decide.wrapper import real_name
from installer.host import cri_pods, docker_containers
from installer.host.alone import alone
from installer.host.files import Host
from installer.host.opens import opens
from installer.host.shell import shell_of
from installer.record.engines import is_held
from installer.record.examine.driver import driver
from installer.record.hints import driver_root
from installer.record.ledger import read_record
from installer.record.lost import elsewhere
from installer.record.running import running_containers

SCHEMA: Final = 1
GPU: Final = re.compile(r"/dev/nvidia\d+")
PATIENCE_S: Final = 60.0  # for one container: nobody's grace runs out here, and a node may be busy
RETRY_S: Final = 0.2
HOOK: Final = "nvidia-container-runtime-hook"
CONTAINERS: Final = {Api.DOCKER: docker_containers.container, Api.CRI: cri_pods.container}


def verify(options: Options, *, as_json: bool) -> Exit:
    """Print what a container on each of our runtimes proves; FAILED where one does not go all the way."""
    host = Host.under(options.host_root, options.mounts)
    options = elsewhere(host, options, tell=False)
    held = read_record(host, options.layout)
    if held is None or held.toolkit is None or not held.engines:
        lacks = "no runtime of ours is installed: engines take devices by CDI"
        click.echo(lacks if held and held.cdi else "nothing is installed", err=True)
        return Exit.NOTHING_INSTALLED
    with alone(host, options.layout.ledger):  # each removes what another has written down
        leftovers.remove_made(host, options.layout)
        try:
            found = tuple(proofs(host, options, held))
        finally:
            leftovers.remove_made(host, options.layout)
    if as_json:
        sys.stdout.write(json.dumps(_document(found), indent=2) + "\n")
    else:
        for line in _lines(found):
            click.echo(line)
    return Exit.FAILED if any(each.problem for each in found) else Exit.OK


def proofs(host: Host, options: Options, held: Record) -> Iterator[Proof]:
    """Yield what each of our runtimes proves; an engine that its owner has stopped is not asked."""
    there = driver(host, PurePosixPath(driver_root(host, options)[0]))
    gpus = tuple(path for node in there.nodes if GPU.fullmatch(path := str(node.path)))
    trial = Trial(host, options, held, shell_of(host))
    for row in held.engines:
        stopped = is_held(host, ENGINES[row.name], row.socket, row.unit)
        for name, binary in asked(options, held, row):
            wanted = Wanted(row.name, name, binary, gpus, there.version)
            yield unproven(wanted, row.unit) if stopped else proof(wanted, trial.observed(row, wanted))


def asked(options: Options, held: Record, row: EngineRow) -> tuple[tuple[str, PurePosixPath], ...]:
    """Return the runtimes to be asked for; with an OCI hook there is none: each container starts the hook."""
    files = (each.path for each in held.configs if each.engine == row.name and each.syntax is None)
    hooked = any(path.suffix == ".json" for path in files)  # Docker's daemon.json has a syntax
    return (("", options.layout.toolkit / HOOK),) if hooked else row.runtimes


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs containers and looks at what becomes of them."""

    host: Host
    options: Options
    held: Record
    tools: Tools

    def observed(self, row: EngineRow, wanted: Wanted) -> Observed:
        """Return what was seen of a container on one of the engine's runtimes; it is gone by then."""
        host, binary = self.host, wanted.binary
        wrapper, real = host.local_path(binary), host.local_path(binary.parent / real_name(binary.name))
        environment = {"NVIDIA_VISIBLE_DEVICES": "all" if wanted.devices else "void"}
        run, name = CONTAINERS[ENGINES[row.name].api], f"{MARK}-{token_hex(8)}"
        seen: Observed | None = None
        timeout_s = max(PATIENCE_S, self.options.timeout_s)
        try:
            with (
                leftovers.written_down(
                    host, self.options.layout, (row.name, str(row.socket), row.unit, name)
                ),
                opens((wrapper, real)) as watch,
                run(
                    host.local_path(row.socket),
                    name,
                    wanted.runtime,
                    self.tools,
                    environment,
                    timeout_s=timeout_s,
                ) as (made, script),
            ):
                said = told(script, timeout_s=timeout_s)
                opened = watch.those()
                seen = Observed("", said, self._started_by(row, made), wrapper in opened, real in opened)
        except InstallerError as error:
            return Observed(failure=error.problem) if seen is None else replace(seen, left=error.problem)
        return seen

    def _started_by(self, row: EngineRow, made: str) -> PurePosixPath | None:
        """Return the program that the records of the engine's shims, or of CRI-O, name for a container."""
        config = ENGINES[row.name].config
        facts = EngineFacts(row.name, config, None, None, (), row.socket, row.unit, state=row.state)
        running = running_containers(self.host, self.options.layout, self.held, (facts,))
        return next((each.binary for each in running if each.id == made), None)


def told(script: Exec, *, timeout_s: float) -> str:
    """Return what the container tells, asked again until all of it has arrived, or what had by the deadline.

    dockerd gives up on the output of an exec two seconds after its end (moby daemon/monitor.go).

    Raises:
        InstallerError: the container has ended, or the engine refuses.
    """
    deadline = time.monotonic() + timeout_s
    while not is_whole(said := script(TELLS)) and time.monotonic() < deadline:
        time.sleep(RETRY_S)
    return said


def _document(found: tuple[Proof, ...]) -> Mapping[str, object]:
    return {
        "schema": SCHEMA,
        "verdict": "bad" if any(each.problem for each in found) else "ok",
        "runtimes": [
            {
                "engine": each.engine,
                "runtime": each.runtime,
                "level": "bad" if each.problem else "ok",
                "found": each.problem or each.seen,
                "remedy": each.remedy or None,
            }
            for each in found
        ],
    }


def _lines(found: tuple[Proof, ...]) -> Iterator[str]:
    width = max(len(f"{each.engine} {each.runtime}") for each in found)
    for each in found:
        level = click.style("bad", fg="red", bold=True) if each.problem else click.style("ok ", fg="green")
        yield f"{level}  {f'{each.engine} {each.runtime}':<{width}}  {each.problem or each.seen}"
        if each.remedy:
            yield f"{'':<{width + 7}}do: {each.remedy}"
