"""What a container on one of our runtimes has to show, and what it proves."""

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from installer.decide.data import dataclass
from installer.decide.engines import ENGINES

MARK: Final = "toolkit-installer-verify"  # with which the name of all begins that it makes
DIRECTORY: Final = PurePosixPath("/verify")  # in the container: the shell of the node and what it links to
SHELL: Final = DIRECTORY / "sh"
LOADER: Final = DIRECTORY / "ld"
# Words of the shell alone: there is nothing else in the container.
WAITS: Final = "read x"
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


Exec: TypeAlias = Callable[[str], str]  # runs a script in the container, returns what it printed


def is_whole(said: str) -> bool:
    """Tell whether all that ``TELLS`` prints has arrived: a busy engine may drop the end, or everything."""
    return END in said.splitlines()


@dataclass(frozen=True, slots=True)
class Tools:
    """Files of the node in the container, each with its path there; ``loader`` tells that one is a loader."""

    files: tuple[tuple[PurePosixPath, PurePosixPath], ...]
    loader: bool

    def command(self, script: str) -> list[str]:
        """Return the words that run ``script`` in the container."""
        words = [str(LOADER), "--library-path", str(DIRECTORY)] if self.loader else []
        return [*words, str(SHELL), "-c", script]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What has to be seen of the node's GPUs; ``runtime`` is "" where ``binary`` is a hook of containers."""

    engine: str
    runtime: str
    binary: PurePosixPath
    devices: tuple[str, ...] = ()
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one container.

    ``failure`` is why it could not be run, "" where it ran; ``said`` is what it printed. ``started_by`` is
    the program that the engine's own records name for it. ``wrapper`` and ``real`` tell whether our script,
    and NVIDIA's program behind it, were started meanwhile. ``left`` is what could not be removed.
    """

    failure: str = ""
    said: str = ""
    started_by: PurePosixPath | None = None
    wrapper: bool = False
    real: bool = False
    left: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """What one container proves; ``problem`` and ``remedy`` are "" where all of the way was seen."""

    engine: str
    runtime: str
    seen: str
    problem: str = ""
    remedy: str = ""


def proof(wanted: Wanted, observed: Observed) -> Proof:
    """Return what was proven; the first thing that is missing on the way is the problem."""
    lines = observed.said.splitlines()
    devices = tuple(line.partition(" ")[2] for line in lines if line.startswith("device "))
    libraries = tuple(line.partition(" ")[2] for line in lines if line.startswith("library "))
    problem, remedy = _problem(wanted, observed, devices, libraries)
    seen = [f"a container ran on {wanted.binary}", "wrapper and NVIDIA's runtime took part"]
    seen += [f"sees {len(devices)} GPUs"] if wanted.devices else ["the node has no GPU to be seen"]
    return Proof(wanted.engine, wanted.runtime, "" if problem else "; ".join(seen), problem, remedy)


def unproven(wanted: Wanted, unit: str) -> Proof:
    """Return what is said of an engine that its owner has stopped: a connection would start it again."""
    title = ENGINES[wanted.engine].title
    problem = f"nothing is proven: {title} is stopped, and verify does not start it"
    return Proof(wanted.engine, wanted.runtime, "", problem, f"systemctl start {unit}, then verify again")


def _problem(
    wanted: Wanted, observed: Observed, devices: Sequence[str], libraries: Sequence[str]
) -> tuple[str, str]:
    title, doctor = ENGINES[wanted.engine].title, "see toolkit-installer doctor"
    if observed.failure:
        return f"no container could be run: {observed.failure}", f"see the log of {title}; {doctor}"
    if MARK not in observed.said.splitlines():
        return f"the container printed {observed.said[:200]!r}", doctor
    if wanted.runtime and observed.started_by != wanted.binary:
        by = observed.started_by or "a runtime that is not ours"
        return f"it was started by {by}", f"{title} serves another runtime of that name; {doctor}"
    if not observed.wrapper:
        return f"{wanted.binary} was not started", doctor
    if not observed.real:
        reason = "the wrapper ran the low-level runtime: the driver's module is not loaded, or it is missing"
        anew = "where status names a program that is missing, install again"
        return f"NVIDIA's runtime took no part ({reason})", f"load the driver; {anew}; {doctor}"
    absent = [device for device in wanted.devices if device not in devices]
    if absent:
        return f"not in the container: {', '.join(absent)}", doctor
    if wanted.devices and wanted.driver and not any(each.endswith(wanted.driver) for each in libraries):
        return f"no library of driver {wanted.driver} in the container", doctor
    if observed.left:
        return f"not removed: {observed.left}", "remove it by hand"
    return "", ""
