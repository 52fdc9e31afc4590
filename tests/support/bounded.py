"""The real program with little memory and time: what has no bound of its own ends at these."""

import resource
import subprocess

from tests.support.site import PROJECT, Site

MEMORY = 256 << 20  # bytes of address space
CPU_S = 20  # of some hundred milliseconds; what multiplies takes minutes


def bounded(site: Site, verb: str, *more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        site.command(verb, *more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PROJECT,
        preexec_fn=_limited,
    )


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
