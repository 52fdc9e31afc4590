"""Real engines on a machine with an NVIDIA GPU: what containers of containerd and Docker reach, and what an engine is spared.

``python -m tests.gpu.engines`` boots a node for each engine, gives it the machine's driver, and prints one line for
each step. ``--stand-in`` gives a driver and a toolkit that answer by themselves: all but the GPU's own answer.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from installer.payload.access import find_artifact
from installer.payload.files import REQUIRED
from tests.engines.by_cdi import SPECIFICATION, Client, answers
from tests.engines.cache import locked
from tests.engines.cri import CriError, Pod
from tests.engines.nodes import Node, boot
from tests.engines.roots import Roots, prepared
from tests.engines.told import bad, doctor, sentence, served, snapshot
from tests.engines.versions import EngineSet, engine_sets, today
from tests.gpu import supply
from tests.gpu.image import IMAGE, PROGRAM
from tests.gpu.machine import DEVICE, DRIVER, UVM
from tests.gpu.pack import SOURCE, unpacked, wanted
from tests.support.waiting import until

SMI: Final = ("/usr/bin/nvidia-smi", "-L")
COUNT: Final = ("cat", "/tmp/count")  # noqa: S108 - of the container
WISH: Final = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
KIND: Final = "nvidia.com/gpu"
RUNTIME_MODE: Final = ("install", "--toolkit-source", supply.TOOLKIT)
CDI_MODE: Final = (*RUNTIME_MODE, "--mode", "cdi")
NRI_MODE: Final = ("--toolkit-source", supply.TOOLKIT, "--mode", "nri", "--nri-allow", f"default={KIND}")
WITH_CDI_SWITCHED_ON: Final = (1, 7)
INJECTS_BY_NRI: Final = (2, 1)
CRI_HAS_NO_CDI: Final = "restrict_oom_score_adj = true\n"
MEBIBYTE: Final = "copied 1048576"
BAD: Final = (AssertionError, CriError, KeyError, OSError, RuntimeError, StopIteration, ValueError)


class UnavailableError(Exception):
    """A step cannot be tried with this engine or this toolkit; the message says why."""


class Outage:
    """Asks an engine without a pause, and knows for how long it did not answer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last = time.monotonic()
        self.longest_s = 0.0

    def ask(self) -> bool:
        answered = answers(self._node)
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._last)
        if answered:
            self._last = now
        return answered

    def __str__(self) -> str:
        return f"{self._node.engine} without an answer for {self.longest_s * 1000:.0f} ms at most"


@contextmanager
def watched(node: Node) -> Iterator[Outage]:
    outage = Outage(node)
    with Client(outage.ask):
        yield outage


@dataclass
class Job:
    """A CUDA process in a container, which copies memory and counts."""

    node: Node
    id: str
    pod: Pod | None

    def count(self) -> int:
        if self.pod is None:
            said = self.node.run(["docker", "exec", self.id, *COUNT], check=False).stdout
        else:
            said = self.node.cri.exec(self.id, *COUNT).stdout
        return int(said.strip() or 0)

    def goes_on(self) -> str:
        """Return how far it is, once it has counted on.

        Raises:
            AssertionError: it does not.
        """
        before = self.count()
        until(
            lambda: self.count() > before, lambda: f"the CUDA process stands still at {before}", patience_s=30
        )
        return f"copied {self.count()} times"

    def end(self) -> None:
        if self.pod is None:
            self.node.run(["docker", "rm", "--force", self.id])
        else:
            self.node.cri.remove_pod(self.pod)


@dataclass
class Bench:
    """One node, and what is tried on it, in this order; one step that fails stops no other."""

    node: Node
    stand_in: bool
    has_installer: str = ""  # NVIDIA's own, as a path of the node
    job: Job | None = None
    files: dict[str, str] = field(default_factory=dict)
    before: tuple[set[str], str] = (set(), "")

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield what is tried, and the function that tells how it went, or raises."""
        yield "doctor before an install", self.examine
        yield "install, mode runtime", lambda: self.install(*RUNTIME_MODE)
        yield "doctor after it", self.examine
        yield "verify", self.verify
        yield "no driver without a wish", self.gives_nothing_unasked
        yield "nvidia-smi by the runtime nvidia", lambda: self.sees(SMI, "GPU 0:", "nvidia", env=WISH)
        yield "CUDA by the runtime nvidia", lambda: self.sees((PROGRAM,), MEBIBYTE, "nvidia", env=WISH)
        if self.node.engine == "docker":
            yield "docker run --gpus all is refused", self.refuses_gpus
        yield "install, our default", lambda: self.install(*RUNTIME_MODE, "--set-as-default")
        yield "CUDA by the default runtime", lambda: self.sees((PROGRAM,), MEBIBYTE, env=WISH)
        yield "install, their default", lambda: self.install(*RUNTIME_MODE)
        yield "a CUDA process starts", self.start_job
        yield "upgrade while it runs", self.upgrade
        yield "undo while it runs", self.undo_in_use
        yield "the CUDA process ends", self.end_job
        yield "undo after it", self.undo
        yield "doctor after the undo", self.examine
        yield "install, mode cdi", lambda: self.install(*CDI_MODE, spared=True)
        yield "doctor in mode cdi", self.examine
        yield "nvidia-smi by CDI", lambda: self.sees(SMI, "GPU 0:", devices=(f"{KIND}=all",))
        yield "CUDA by CDI, all", lambda: self.sees((PROGRAM,), MEBIBYTE, devices=(f"{KIND}=all",))
        yield "CUDA by CDI, by name", lambda: self.sees((PROGRAM,), MEBIBYTE, devices=(self.first_gpu(),))
        yield "undo, mode cdi", self.undo
        yield "CUDA by NRI, by annotation", self.by_nri
        yield "NVIDIA's own installer", self.theirs

    def begin(self) -> None:
        """Load the image, let the engine have CDI, and remember how the node is."""
        archive = f"{supply.FOR_NODES}/{supply.CUDA_ARCHIVE}"
        self.node.run(["ldconfig"])
        if self.node.engine == "docker":
            self.node.run(["docker", "load", "--quiet", "--input", archive])
        else:
            self.node.run(["ctr", "--namespace", "k8s.io", "images", "import", archive])
            if self._version()[:2] == WITH_CDI_SWITCHED_ON:
                text = self.node.read(self.node.config)
                self.node.write(
                    self.node.config, text.replace(CRI_HAS_NO_CDI, f"{CRI_HAS_NO_CDI}    enable_cdi = true\n")
                )
                self.node.restart_engine()
            until(lambda: IMAGE.encode() in self.node.cri.call("ImageService/ListImages"))
        self.files = snapshot(self.node)
        self.before = served(self.node)

    def _version(self) -> tuple[int, ...]:
        return tuple(map(int, self.node.containerd_version.split(".")))

    def run(
        self,
        command: Sequence[str],
        handler: str = "",
        *,
        env: dict[str, str] | None = None,
        devices: Sequence[str] = (),
        annotations: dict[str, str] | None = None,
    ) -> str:
        """Return what a command says in a container, to either output."""
        if self.node.engine == "docker":
            done = self.node.run([*_docker_run(handler, env, devices), "--rm", IMAGE, *command], check=False)
            return done.stdout + done.stderr
        pod = self.node.cri.run_pod(handler, annotations=annotations)
        try:
            container = self.node.cri.start_container(pod, image=IMAGE, env=env, devices=tuple(devices))
            ended = self.node.cri.exec(container, *command)
            return ended.stdout + ended.stderr
        finally:
            self.node.cri.remove_pod(pod)

    def said(self, text: str) -> str:
        return "; ".join(line.strip() for line in text.splitlines() if line.strip())

    def sees(
        self,
        command: Sequence[str],
        word: str,
        handler: str = "",
        *,
        env: dict[str, str] | None = None,
        devices: Sequence[str] = (),
    ) -> str:
        """Return what a container says of its GPU.

        Raises:
            RuntimeError: the word is not in it.
        """
        text = self.run(command, handler, env=env, devices=devices)
        if word not in text:
            raise RuntimeError(self.said(text) or "it said nothing")
        return self.said(text)

    def gives_nothing_unasked(self) -> str:
        text = self.run((PROGRAM,))
        if "libcuda.so.1" not in text:
            raise RuntimeError(self.said(text))
        return self.said(text)

    def refuses_gpus(self) -> str:
        done = self.node.run(
            ["docker", "run", "--rm", "--net", "none", "--gpus", "all", IMAGE, PROGRAM], check=False
        )
        if done.returncode == 0:
            raise RuntimeError(f"the documents say that it is refused, and it said {self.said(done.stdout)}")
        return self.said(done.stderr)

    def examine(self) -> str:
        code, checks = doctor(self.node)
        if code:
            raise RuntimeError(f"doctor gave {code}: {bad(checks)}")
        return f"{len(checks)} checks"

    def install(self, *words: str, spared: bool = False) -> str:
        """Install, and tell for how long the engine did not answer; ``spared`` may not restart it."""
        pid = self.node.pid_of()
        with watched(self.node) as outage:
            began = time.monotonic()
            self.node.installer(*words, check=True)
            took = time.monotonic() - began
        if spared and self.node.pid_of() != pid:
            raise RuntimeError("the engine was restarted")
        return f"{took:.1f} s, {outage}"

    def verify(self) -> str:
        """Let our program run its test container on each runtime; return in how many a GPU was seen."""
        said = self.node.installer("verify", check=True).stdout
        lines = [line for line in said.splitlines() if line.strip()]
        seeing = [line for line in lines if "sees" in line]
        return f"{len(lines)} runtimes work, {len(seeing)} see a GPU"

    def start_job(self) -> str:
        command = (PROGRAM, "hold")
        if self.node.engine == "docker":
            words = [*_docker_run("nvidia", WISH, ()), "--detach", IMAGE, *command]
            self.job = Job(self.node, self.node.run(words).stdout.strip(), None)
        else:
            pod = self.node.cri.run_pod("nvidia", "job")
            container = self.node.cri.start_container(pod, *command, image=IMAGE, env=WISH)
            self.job = Job(self.node, container, pod)
        return self.job.goes_on()

    def _running(self) -> Job:
        if self.job is None:
            raise RuntimeError("no CUDA process was started")
        return self.job

    def upgrade(self) -> str:
        job = self._running()
        said = self.install("install", "--toolkit-source", supply.NEWER, spared=True)
        if "nothing changed" not in self.node.installer("install", "--toolkit-source", supply.NEWER).stderr:
            raise RuntimeError("a second install changed something")
        return f"{said}; it {job.goes_on()}"

    def undo_in_use(self) -> str:
        job = self._running()
        done = self.node.installer("uninstall", "--in-use", "keep")
        if done.returncode != 4:
            raise RuntimeError(f"it gave {done.returncode}: {self.said(done.stderr)}")
        return f"exit code 4, {sentence(done.stderr)[:100]}...; it {job.goes_on()}"

    def end_job(self) -> str:
        said = self._running().goes_on()
        self._running().end()
        self.job = None
        return said

    def undo(self) -> str:
        with watched(self.node) as outage:
            self.node.installer("uninstall", check=True)
        left = snapshot(self.node)
        differ = sorted(
            path for path in left.keys() | self.files.keys() if left.get(path) != self.files.get(path)
        )
        if differ:
            raise RuntimeError(f"left or changed: {' '.join(differ)}")
        if served(self.node) != self.before:
            raise RuntimeError(f"served {self.before} before, and now {served(self.node)}")
        if self.node.has(SPECIFICATION):
            raise RuntimeError(f"{SPECIFICATION} is left")
        return f"byte for byte, {outage}"

    def first_gpu(self) -> str:
        """Return the CDI name of a GPU as a device plugin tells it to the kubelet."""
        text = self.node.read(SPECIFICATION)
        names = (name for name in ("0", "all") if f'"name":"{name}"' in text.replace(" ", ""))
        return f"{KIND}={next(names)}"

    def by_nri(self) -> str:
        if self.node.engine == "docker":
            raise UnavailableError("Docker has no NRI")
        if self._version() < INJECTS_BY_NRI:
            raise UnavailableError(f"containerd {self.node.containerd_version} gives no CDI devices by NRI")
        process = self.node.start_run(*NRI_MODE)
        try:
            process.wait_for('"event": "NRI plugin registered"')
            text = self.run((PROGRAM,), annotations={"nvidia.cdi.k8s.io/pod": f"{KIND}=all"})
        finally:
            process.terminate()
            code = process.wait()
        if code or MEBIBYTE not in text:
            raise RuntimeError(f"run gave {code}, the container said {self.said(text)}")
        return f"{self.said(text)}; undo: {self.undo()}"

    def theirs(self) -> str:
        """Let NVIDIA's own program configure the engine; the last step, for nothing undoes it."""
        words: list[list[str]]
        if self.has_installer:
            theirs = "/opt/theirs"
            told = ["--no-daemon", "--runtime", self.node.engine, "--toolkit-install-dir", theirs]
            told += [
                "--toolkit-source-root",
                supply.TOOLKIT,
                "--driver-root",
                "/",
                "--driver-root-ctr-path",
                "/",
            ]
            words = [[self.has_installer, *told]]
        elif self.stand_in:
            raise UnavailableError("a stand-in of the toolkit configures no engine")
        else:
            tool = f"{supply.TOOLKIT}/usr/bin/nvidia-ctk"
            words = [
                [tool, "runtime", "configure", f"--runtime={self.node.engine}", "--set-as-default"],
                ["systemctl", "restart", self.node.unit],
            ]
        with watched(self.node) as outage:
            began = time.monotonic()
            for command in words:
                self.node.run(command)
            until(lambda: answers(self.node), patience_s=60)
            took = time.monotonic() - began
        return f"{words[0][0].rpartition('/')[2]}, {took:.1f} s, {outage}"


def _docker_run(handler: str, env: dict[str, str] | None, devices: Sequence[str]) -> list[str]:
    words = ["docker", "run", "--net", "none"]
    if handler:
        words += ["--runtime", handler]
    for name, value in (env or {}).items():
        words += ["--env", f"{name}={value}"]
    for device in devices:
        words += ["--device", device]
    return words


@dataclass(frozen=True, slots=True)
class Row:
    """How one step went: ``ok``, ``BAD``, or ``--`` where it could not be tried."""

    engine: str
    step: str
    result: str
    figure: str

    def __str__(self) -> str:
        return f"{self.engine:<40} {self.result:<3} {self.step:<34} {self.figure}"


def drive(roots: Roots, engines: EngineSet, programs: Path, source: Path | None) -> Iterator[Row]:
    """Boot a node and yield how each step went on it; without a source driver and toolkit are stand-ins."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as directory:
        scratch = Path(directory)
        driver = _supply(programs, scratch, source)
        installer = _their_installer(scratch)
        binds = [*driver.binds(), f"--bind-ro={programs}:{supply.FOR_NODES}"]
        binds += [f"--bind-ro={scratch / 'toolkit'}:{supply.TOOLKIT}"]
        binds += [f"--bind-ro={scratch / 'newer'}:{supply.NEWER}"]
        try:
            with boot(roots, engines, binds=binds) as node:
                bench = Bench(node, stand_in=source is None, has_installer=installer)
                bench.begin()
                yield Row(str(engines), "a node boots", "ok", f"driver {driver.version}")
                for step, tell in bench.steps():
                    yield _tried(str(engines), step, tell)
        except BAD as error:
            yield Row(str(engines), "a node boots", "BAD", repr(error))


def _supply(programs: Path, scratch: Path, source: Path | None) -> supply.Driver:
    """Put two versions of the toolkit into a directory, and return the driver, both stand-ins without a source."""
    versions = {"toolkit": "1.0.0", "newer": "2.0.0"}
    if source is None:
        for name, version in versions.items():
            supply.stand_in_toolkit(programs, scratch / name, version)
        return supply.stand_in_driver(programs, scratch)
    driver = supply.find_driver()
    if driver is None:
        raise RuntimeError("there is no libcuda.so.1")
    supply.copy_toolkit(source, scratch / "toolkit")
    supply.copy_toolkit(source, scratch / "newer", b"\nnewer\n")
    return driver


def _their_installer(scratch: Path) -> str:
    """Return where a node has NVIDIA's own installer, "" where the toolkit came without it."""
    for name in supply.INSTALLERS:
        if (scratch / "toolkit/usr/bin" / name).exists():
            return f"{supply.TOOLKIT}/usr/bin/{name}"
    return ""


def _tried(engines: str, step: str, tell: Callable[[], str]) -> Row:
    try:
        return Row(engines, step, "ok", tell())
    except UnavailableError as error:
        return Row(engines, step, "--", str(error))
    except BAD as error:
        return Row(engines, step, "BAD", " ".join(str(error).split()) or repr(error))


def lacks(source: Path | None) -> str:
    """Return what this machine lacks, as part of a sentence; "" for nothing."""
    missing = [] if os.geteuid() == 0 else ["root's rights"]
    missing += [tool for tool in ("unshare", "nsenter", "setpriv", "mount") if not shutil.which(tool)]
    if source is not None:
        if not Path("/", DRIVER).exists():
            missing.append(f"an NVIDIA driver that is loaded (no /{DRIVER})")
        if not Path("/", DEVICE).exists():
            missing.append(f"a GPU (no /{DEVICE})")
        if not Path("/", UVM).exists():
            missing.append(f"/{UVM} (nvidia-modprobe -u -c 0 makes it)")
        if supply.find_driver() is None:
            missing.append(f"libcuda.so.1 (not in {' '.join(supply.DRIVERS)})")
        absent = [name for name in REQUIRED if not find_artifact(PurePosixPath(source), name)]
        if absent:
            missing.append(f"NVIDIA's toolkit below {SOURCE}={source} (no {' '.join(absent)})")
    return ", ".join(missing)


def main(words: Sequence[str] | None = None) -> int:
    """Drive the engines, print a line for each step; return 1 where one is BAD or something is lacking."""
    parser = argparse.ArgumentParser(prog="tests.gpu.engines")
    parser.add_argument(
        "--stand-in", action="store_true", help="no GPU: driver and toolkit answer by themselves"
    )
    parser.add_argument("--tree", type=Path, help="an unpacked bundle; otherwise Debian is asked")
    parser.add_argument(
        "--engine", action="append", help="only engines whose name begins so; may be repeated"
    )
    given = parser.parse_args(words)
    source = None if given.stand_in else Path(os.environ.get(SOURCE, "/"))
    if lack := lacks(source):
        sys.stderr.write(f"the engines cannot be driven on this machine, which lacks {lack}\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="gpu-programs-") as directory:
        programs = Path(directory)
        if given.tree:
            roots, engines = unpacked(given.tree.absolute())
            programs = given.tree.absolute() / "programs"
        else:
            with locked():
                found = today()
                roots = prepared(found)
            engines = wanted(engine_sets(found))
            supply.compile_programs(roots.base, programs)
        chosen = [row for row in engines if not given.engine or str(row).startswith(tuple(given.engine))]
        results = []
        for row in chosen:
            for told in drive(roots, row, programs, source):
                sys.stdout.write(f"{told}\n")
                sys.stdout.flush()
                results.append(told.result)
    if not results:
        sys.stderr.write(f"there is none of {given.engine} among {', '.join(map(str, engines))}\n")
    sys.stdout.write(
        f"{results.count('ok')} ok, {results.count('BAD')} BAD, {results.count('--')} not tried\n"
    )
    return 0 if results and "BAD" not in results else 1


if __name__ == "__main__":
    sys.exit(main())
