"""The engines that Debian carries on the day, and the packages they run on."""

import json
import re
import time
from dataclasses import asdict, dataclass

from tests.engines import debs
from tests.engines.cache import cache, key_of

SUITES = ("bookworm", "trixie", "sid")
BASE = "bookworm"  # the newest systemd that still boots on cgroup v1, and the oldest Python we support
FRESH_S = 12 * 3600  # an answer older than half a day is not of the day
PACKAGES = (
    *("usr-is-merged", "base-files", "base-passwd", "bash", "dash", "coreutils", "findutils", "grep", "sed"),
    *("mawk", "login", "util-linux", "mount", "procps", "iproute2", "libc-bin", "ncurses-base"),
    *("systemd", "systemd-sysv", "dbus", "python3", "busybox-static"),
    *("runc", "libdevmapper1.02.1", "libseccomp2", "libstdc++6"),
)
# What nspawn and tcc need comes with systemd and libc.
WITHOUT_DEPENDENCIES = ("systemd-container", "tcc", "libc6-dev")
ENGINES = ("containerd", "docker.io", "docker-cli")  # bookworm has the command line in docker.io


@dataclass(frozen=True, slots=True)
class Today:
    """Packages as ``name=version``: of the base, and of the engines by suite."""

    base: tuple[str, ...]
    engines: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EngineSet:
    """The engines of one node; versions are upstream's, such as ``1.6.20``."""

    suite: str
    containerd: str
    docker: str | None  # without it the node is one of Kubernetes: containerd with CRI

    @property
    def name(self) -> str:
        """Return the word that the installer has for the engine that is asked for containers."""
        return "docker" if self.docker else "containerd"

    def __str__(self) -> str:
        node = f"containerd-{self.containerd}"
        return f"dockerd-{self.docker}+{node}" if self.docker else node


def today() -> Today:
    """Return what the archive carries, asking the mirror if nobody did so lately. Hold the lock."""
    known = cache() / f"{debs.TODAY}{key_of([], 'versions.py')}.json"
    if known.exists() and time.time() - known.stat().st_mtime < FRESH_S:
        stored = json.loads(known.read_text())
        engines = {suite: tuple(pins) for suite, pins in stored["engines"].items()}
        return Today(tuple(stored["base"]), engines)
    debs.refresh({*SUITES, BASE})
    base = [*debs.with_dependencies(BASE, PACKAGES), *debs.alone(BASE, WITHOUT_DEPENDENCIES)]
    found = Today(tuple(base), {suite: tuple(debs.alone(suite, ENGINES)) for suite in SUITES})
    staged = known.with_suffix(".new")
    staged.write_text(json.dumps(asdict(found)))
    staged.rename(known)
    return found


def engine_sets(found: Today) -> list[EngineSet]:
    """Return one node of each kind per suite; suites with the same upstream versions count once."""
    sets: dict[str, EngineSet] = {}
    for suite, pins in found.engines.items():
        versions = {name: _upstream(version) for name, _, version in (pin.partition("=") for pin in pins)}
        if "containerd" not in versions:  # sid loses packages at times; the test of the versions says so
            continue
        for docker in (None, versions.get("docker.io")):
            row = EngineSet(suite, versions["containerd"], docker)
            sets.setdefault(str(row), row)
    return sorted(sets.values(), key=lambda row: (row.name, SUITES.index(row.suite)))


def _upstream(version: str) -> str:
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version)
    if not match:
        raise RuntimeError(f"cannot read the version {version}")
    return match[1]
