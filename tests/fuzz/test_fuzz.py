"""Whatever is read from outside may be anything: it is answered, or refused in a sentence, and never a bug.

Each reader gets honest input, spoilt. ``FUZZ_S`` seconds are spent in all (20 in ``make test``, 600 in
``make torture``); ``SEED`` chooses others, and a failure prints the seed and the bytes.
"""

import json
import os
import secrets
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from random import Random
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pytest

from installer.cdi.specification import named_paths, specification
from installer.change.ledger import dumps, read_record
from installer.change.lost_ledger import find_leftovers, find_toolkits
from installer.change.plan import plan_install, plan_undo
from installer.cli.app import _call as status
from installer.cli.demo import CONFIGS
from installer.config_text.masked import mask
from installer.engines import ENGINES, cri
from installer.engines.config_texts import syntax_of, toolkit_runtimes
from installer.engines.container_records import list_crio_containers, list_shim_containers
from installer.engines.crio.config import STATE, read_effective
from installer.engines.dependencies import is_suse
from installer.engines.docker import api as dockerd
from installer.engines.startup import explain_overruling, find_place, path_of, value_of
from installer.engines.stopped_units import TASKS
from installer.errors import InstallerError
from installer.host import systemd
from installer.host.files import Host
from installer.host.kernel import list_mounts
from installer.host.locks import holders, is_pidfile_locked, lock_pidfile, remove_pidfile
from installer.host.processes import started_of, unit_in
from installer.host.systemd import Unit
from installer.host.trees import read_noted_digests, sums_of
from installer.lifecycle.readiness import is_ready
from installer.model.engine import EngineState
from installer.model.facts import Facts, Record, ToolkitFacts
from installer.model.files import VERSIONS, File, Kind
from installer.model.nri import Allowed, Identity, Nri
from installer.model.options import GPU_KIND, Options, RestartMode
from installer.nri.session import Given, Message, Session, encoded
from installer.nri.state import describe_plugin as nri_lines
from installer.payload.config_toml import edited_keys
from tests.change.golden import Case
from tests.fuzz.mutate import mutated
from tests.host.servers import FakeSystemd, FakeUnit, answer, engine, message, serving
from tests.support import nri

SEED = int(os.environ.get("SEED") or secrets.randbelow(2**32))
FUZZ_S = float(os.environ.get("FUZZ_S", "20"))
LEAST = 3  # tries, however slow the machine is
ASK_S = 0.2
OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")

KNOWN = PurePosixPath("/usr/local/nvidia") / VERSIONS / "0123"
Reader = Callable[[bytes], object]
GPUS = {
    "cdiVersion": "0.5.0",
    "kind": GPU_KIND,
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/a", "hostPath": "/d/dev/a"}]}}
    ],
    "containerEdits": {"mounts": [{"hostPath": "/d/lib", "containerPath": "/lib"}], "env": ["A=b"]},
}


def _gpus(said: bytes) -> object:
    """Take what nvidia-ctk says, and what lies where its specification is."""
    text = said.decode(errors="replace")
    named_paths(text)
    return named_paths(specification(text, GPU_KIND, [(PurePosixPath("/d"), PurePosixPath("/"))]))


def _planned(name: str) -> Reader:
    """Return what plans with a config of an engine, installs on it, and undoes what others made of it."""
    case = Case(name, Path(), {})
    config = ENGINES[name].config

    def facts(content: bytes, held: Record, original: File | None) -> Facts:
        files = {config: File(content)}
        return case.facts({**files}, held, {config: original})

    def read(content: bytes) -> object:
        honest = File(CONFIGS[str(config).lstrip("/")].encode())
        settled = plan_install(facts(honest.content, Record(), None), case.options).final
        assert settled is not None
        after = []
        for held, original in ((Record(), None), (settled, honest)):
            found = facts(content, held, original)
            for plan in (plan_install, plan_undo):
                with suppress(InstallerError):
                    after.append(plan(found, case.options))
        with suppress(InstallerError):
            after.append(find_leftovers(facts(content, Record(), None), case.options))  # type: ignore[arg-type]
        text = content.decode(errors="replace")
        return after, mask(text, syntax_of(config, text))

    return read


def _ledger(directory: Path) -> Reader:
    options = Options(engines=("docker",), restart_mode=RestartMode.NONE)

    def use(host: Host) -> object:
        status(["status", "--host-root", str(directory), "--deep"])
        held = read_record(host, options.layout)
        assert held is not None
        kinds = [ENGINES[row.name] for row in held.engines]
        engines = tuple(EngineState(kind, kind.config, None, None, (), kind.socket, "") for kind in kinds)
        contents = {row.path: File(b"{}") for row in held.configs}
        toolkit = ToolkitFacts(Kind.LINK)
        found = Facts(engines, contents, dict.fromkeys(contents), frozenset(), toolkit, held)
        return dumps(held), plan_undo(found, options)

    return _file(directory, str(options.layout.ledger).lstrip("/"), use)


def _file(directory: Path, path: str, use: Callable[[Host], object]) -> Reader:
    """Return what uses a host on which one file holds the bytes."""
    (directory / path).parent.mkdir(parents=True)
    host = Host.under(PurePosixPath(directory))

    def read(content: bytes) -> object:
        (directory / path).write_bytes(content)
        return use(host)

    return read


def _proc(directory: Path) -> Reader:
    def use(_: Host) -> object:
        return started_of(7, directory), unit_in((directory / "7/stat").read_text(errors="surrogateescape"))

    return _file(directory, "7/stat", use)


def _crio_config(content: bytes) -> object:
    with cri._understood(Path("/x")):  # noqa: SLF001 - the rest of it is a socket that speaks gRPC as well
        return read_effective(tomllib.loads(content.decode(errors="replace")))


def _locks(directory: Path) -> Reader:
    """Return what looks for the holder of a pidfile: in the table of locks, and in what is said of processes."""
    pidfile = directory / "pidfile"
    (directory / "7/fd").mkdir(parents=True)
    (directory / "7/fdinfo").mkdir()
    pidfile.write_text("7\n")
    (directory / "7/fd/3").symlink_to(pidfile)
    table = f"1: FLOCK  ADVISORY  WRITE 7 00:2a:{pidfile.stat().st_ino} 0 EOF\n".encode()

    def read(content: bytes) -> object:
        found = []
        for locks, process in ((table, content), (table + content, b"NSpid:\t7\nUid:\t0\t0\t0\t0\n")):
            (directory / "locks").write_bytes(locks)
            (directory / "7/fdinfo/3").write_bytes(locks)
            (directory / "7/status").write_bytes(process)
            found.append(is_pidfile_locked(pidfile, directory))
        found.append(not holders(pidfile.stat(), directory))
        return found

    return read


def _pidfile(directory: Path) -> Reader:
    pidfile = PurePosixPath("/x.pid")

    def use(host: Host) -> object:
        try:
            lock_pidfile(host, pidfile).release()
        finally:
            remove_pidfile(host, pidfile)
        return status(
            ["status", "--host-root", str(directory), "--pid-file", f"{directory}{pidfile}", "--alive"]
        )

    return _file(directory, "x.pid", use)


def _socket(path: Path, ask: Callable[[Path], object], serve: Callable[[Path, bytes], Any]) -> Reader:
    """Return what asks a server of the bytes."""

    def read(content: bytes) -> object:
        path.unlink(missing_ok=True)
        with serve(path, content):
            return ask(path)

    return read


def _cri(
    path: Path,
    method: str,
    ask: Callable[[Path], object],
    answers: Mapping[str, bytes] = MappingProxyType({}),
) -> Reader:
    """Return what asks an engine, of which one answer is the bytes."""
    service = "/runtime.v1.RuntimeService/"
    others = {f"{service}{name}": said for name, said in answers.items()}
    return _socket(path, ask, lambda path, content: engine(path, others | {f"{service}{method}": content}))


class _Spoilt:
    """A connection whose next messages are followed by what a spoilt one holds."""

    def __init__(self, connection: Any, content: bytes) -> None:
        self._connection, self._content, self._sent = connection, content, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def sendall(self, content: bytes) -> None:
        self._sent += 1
        random = Random(self._content)  # noqa: S311 - repeatable, not secret
        self._connection.sendall(content if self._sent == 1 else mutated(random, content))


def _systemd(path: Path) -> Reader:
    def ask(bus: Path) -> object:
        return systemd.ask_bus(
            [bus], lambda on: Unit.of(on.properties("docker.service")), purpose="look", timeout_s=ASK_S
        )

    def serve(path: Path, content: bytes) -> Any:
        fake = FakeSystemd({"docker.service": FakeUnit()})
        return serving(path, lambda connection: fake(_Spoilt(connection, content)))  # type: ignore[arg-type]

    return _socket(path, ask, serve)


def _cmdline(directory: Path) -> Reader:
    host = Host.under(PurePosixPath(directory))

    def read(content: bytes) -> object:
        words = content.decode(errors="surrogateescape").split("\0")
        for name, row in ENGINES.items():
            find_place(host, row.state, words, row.config)
            list(explain_overruling(row, words, Options(engines=(name,))))
        return value_of(words, ("--config",)), path_of(words, ("-c",))

    return read


def _nri_honest() -> bytes:
    """Return what an engine sends to its plugin, from the answer to the first words to a container's creation."""
    wish = nri.pod({"nvidia.cdi.k8s.io/pod": "a.com/b=c, a.com/b=d"}, namespace="team")
    main = nri.container(env=1)
    calls = {
        "Configure": message((2, "containerd"), (3, "2.1.9")),
        "Synchronize": message((1, wish), (2, main), (3, 0)),
        "CreateContainer": message((1, wish), (2, main)),
        "StateChange": message((1, 3)),
    }
    sent = encoded(Message(2, 1, 2, b""))
    for number, (method, payload) in enumerate(calls.items()):
        request = message((1, "nri.pkg.api.v1alpha1.Plugin"), (2, method), (3, payload))
        sent += encoded(Message(1, 2 * number + 1, 1, request))
    return sent


def _nri(content: bytes) -> object:
    """Hear it in one piece, and in small ones; no device is given that is not allowed."""
    heard = []
    for size in (len(content) or 1, 7):
        session = Session(Identity(), (Allowed("team", "a.com/b"),))
        for at in range(0, len(content), size):
            for reply, news in session.hear(content[at : at + size]):
                heard.append((reply, news))
                if isinstance(news, Given):
                    assert all(name.startswith("a.com/b=") for name in news.devices)
    return heard


STATUS = {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {"BinaryName": ""}}}}}
VERSION = message((1, "0.1.0"), (2, "containerd"), (3, "1.7.2"), (4, "v1"))
READY = message((1, message((1, "RuntimeReady"), (2, 1))))
INFO = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 95\r\n\r\n"
    b'{"Runtimes": {"runc": {"path": "runc"}}, "DefaultRuntime": "runc", "ServerVersion": "26.1.5"}'
)


def readers(directory: Path) -> dict[str, tuple[bytes, Reader]]:
    """Return the readers by name, each with honest input."""
    bundle = f"run/containerd/{TASKS}/k8s.io/1/options.json"
    crio = f"{str(STATE)[1:]}/1/userdata/config.json"
    handlers = {"nvidia": OURS}
    state = {PurePosixPath("/run/containerd"): "containerd"}
    sent = message((1, READY), (2, message((1, "config"), (2, json.dumps(STATUS)))))

    def ask_status(path: Path) -> object:
        return cri.ask_status(path, timeout_s=ASK_S)

    def serve_answer(path: Path, content: bytes) -> Any:
        return serving(path, answer(content))

    return {
        **{
            name: (CONFIGS[str(ENGINES[name].config).lstrip("/")].encode(), _planned(name))
            for name in ("docker", "containerd", "crio")
        },
        "ledger": (Path("tests/golden/ledger.json").read_bytes(), _ledger(directory / "ledger")),
        "ready": (
            b'{"boot_id": "0", "pid": 1, "engines": []}',
            _file(directory / "ready", "ready", lambda host: is_ready(host, PurePosixPath("/ready"), PurePosixPath("/pid"))),
        ),
        "os-release": (b'ID=debian\nID_LIKE="suse"\n', _file(directory / "os", "etc/os-release", is_suse)),
        "shim": (
            json.dumps({"binary_name": str(OURS), "annotations": {"a": "b"}}).encode(),
            _file(directory / "shim", bundle, lambda host: list(list_shim_containers(host, state, frozenset({OURS})))),
        ),
        "bundle": (
            json.dumps({"annotations": {"io.kubernetes.cri-o.RuntimeHandler": "nvidia"}}).encode(),
            _file(directory / "crio", crio, lambda host: list(list_crio_containers(host, "crio", STATE, handlers, frozenset({OURS})))),
        ),
        "named": (
            f'{{"runtimes": {{"nvidia": {{"path": "{OURS}"}}}}}}'.encode(),
            _file(directory / "named", "etc/docker/daemon.json", lambda host: find_toolkits(host, Options())),
        ),
        "proc": (b"7 (docker d) S " + b"1 " * 40 + b"\n0::/system.slice/docker.service\n", _proc(directory / "proc")),
        "locks": (b"Name:\tx\nNSpid:\t7\t1\nUid:\t0\t0\t0\t0\n1: FLOCK  ADVISORY  WRITE 7 00:2a:7 0 EOF\n", _locks(directory / "locks")),
        "pidfile": (b"4711\n", _pidfile(directory / "pidfile")),
        "mounts": (b"36 35 98:0 /a\\040b /mnt rw - ext3 /dev/x rw\n0::/x\n4:memory:/y\n", _file(directory / "mounts", "mountinfo", lambda _: list_mounts(directory / "mounts/mountinfo"))),
        "command line": (b"dockerd\0--config-file\0/etc/x\0-c=/y\0--add-runtime=a=b\0", _cmdline(directory)),
        "config.toml": (
            b'[nvidia-container-runtime]\nruntimes = ["runc"]\nlog-level = "info"\n',
            lambda content: (
                list(edited_keys("a = 1\n", content.decode(errors="replace"), name="x")),
                toolkit_runtimes('[nvidia-container-runtime]\nruntimes = ["runc"]\n'),
            ),
        ),
        "CRI's status": (sent, _cri(directory / "cri", "Status", ask_status, {"Version": VERSION})),
        "CRI's version": (VERSION, _cri(directory / "version", "Version", ask_status, {"Status": sent})),
        "dockerd": (
            INFO,
            _socket(directory / "docker", lambda path: dockerd.ask_info(path, timeout_s=ASK_S), serve_answer),
        ),
        "CRI-O's config": (
            b'[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n',
            _crio_config,
        ),
        "D-Bus": (b"0", _systemd(directory / "bus")),
        "gRPC": (
            b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x01\x01\x04\0\0\0\x01\x88"
            + b"\0\0\x0a\0\0\0\0\0\x01" + b"\0\0\0\0\x05\x0a\x03\x0a\x01a"
            + b"\0\0\x0f\x01\x05\0\0\0\x01" + b"\0\x0bgrpc-status\x010",
            _socket(directory / "hand", lambda path: cri.list_ids(path, "ListPodSandbox", timeout_s=ASK_S), serve_answer),
        ),
        "NRI": (_nri_honest(), _nri),
        "NRI's state": (
            json.dumps({"version": 1, "registered": True, "engine": "x 1", "problem": "", "since": "",
             "missed": [{"namespace": "a", "pod": "b", "container": "c", "asked": "d"}], "missed_in_all": 1}).encode(),
            _file(directory / "nri", "run/nri/toolkit-installer.json", lambda host: list(nri_lines(host, Nri(PurePosixPath("/run/nri/nri.sock")), None))),
        ),
        "nvidia-ctk": (json.dumps(GPUS).encode(), _gpus),
        "known digests": (
            b"1:33261:0:1048576:1700000000000000000 0123\n" * 2,
            _file(directory / "known", f"{KNOWN}/.config/digests"[1:], lambda host: read_noted_digests(host, KNOWN)),
        ),
        "SHA256SUMS": (
            f"{'0' * 64}  ./usr/bin/nvidia-ctk\n".encode() * 2,
            _file(directory / "sums", "source/SHA256SUMS", lambda _: sums_of(PurePosixPath(directory / "sums/source"))),
        ),
    }  # fmt: skip


with TemporaryDirectory() as _nowhere:
    NAMES = tuple(readers(Path(_nowhere)))


@pytest.mark.parametrize("name", NAMES)
def test_spoilt_input_is_refused_in_a_sentence(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    honest, read = readers(tmp_path)[name]
    random = Random(f"{SEED} {name}")  # noqa: S311 - repeatable, not secret
    until = time.monotonic() + FUZZ_S / len(NAMES)
    tries = 0
    while tries < LEAST or time.monotonic() < until:
        content = mutated(random, honest) if tries else honest
        tries += 1
        try:
            read(content)
        except InstallerError as error:
            assert str(error).startswith("cannot ")
        except Exception as error:
            raise AssertionError(f"SEED={SEED}, try {tries} of {name!r}: {content!r:.2000}") from error
    capfd.readouterr()
