"""A CRI-O as the unit crio.service of a node: what a real 1.37.0 was seen to say and do, without containers.

It does not start without a program that a real one validates at its start, nor with the cgroup managers and the
runtimes of flags and variables that a real one refused (crio/starts.json, release-1.37, `systemctl restart crio`). It reads crio.conf and what is below
crio.conf.d as cri-o's pkg/config does, over the config that a real one reported (tests/engines/crio/config.toml).
SIGHUP changes what it says, not which handlers it has, and what it had filled in at its start is not said any more
(crio/config-reloaded.toml; engine-facts.md#crio-reload). An exec is a conmon in its own cgroup that a real one was
recorded to start (crio/exec-in-flight.json). On SIGTERM it ends when the calls in flight have returned
(cmd/crio/main.go: GracefulStop).
A container is a directory below the state with ``userdata/pidfile``; StopContainer ends that process.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import tomlkit

from tests.host.servers import message  # the project is where the node's Python looks

SOCKET = Path("/run/crio/crio.sock")
INNER = "/run/crio/grpc.sock"
CONFIG, DROP_INS = Path("/etc/crio/crio.conf"), Path("/etc/crio/crio.conf.d")
DEFAULTS, RELOADED = Path("/run/fake/default.toml"), Path("/run/fake/reloaded.toml")
EXEC = Path("/run/fake/exec.json")
PR_SET_NAME = 15


def merged(base: Path = DEFAULTS) -> dict[str, Any]:
    """Return the config that the files have in force: by key, a runtime as a whole."""
    config = tomllib.loads(base.read_text())
    config["crio"]["runtime"]["pinns_path"] = "pinns"  # the recorded one had found it in its PATH
    # A root file that is not there is passed over (engine-facts.md#crio-flags), a drop-in is not: of a link
    # to nowhere the read fails, of one to a directory too, for filepath.Walk does not follow it.
    found = sorted(path for path in DROP_INS.rglob("*") if path.is_symlink() or not path.is_dir())
    for path in (*([CONFIG] if CONFIG.exists() else ()), *found):
        try:
            overlay(config, tomllib.loads(path.read_text()))
        except OSError as error:
            raise ValueError(f"walk path: open {path}: {error.strerror}") from error
    runtime = config["crio"]["runtime"]
    overrule(runtime)
    if runtime["default_runtime"] not in runtime["runtimes"]:
        raise ValueError(f'default_runtime set to "{runtime["default_runtime"]}", but not defined')
    for name, one in list(runtime["runtimes"].items()):
        if not os.access(one["runtime_path"], os.X_OK) and name != runtime["default_runtime"]:
            del runtime["runtimes"][name]  # "Runtime handler is being ignored"
    return config


def given(name: str) -> str | None:
    """Return what a flag of the command line says, or else a variable; None for neither."""
    words = iter(sys.argv[1:])
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == f"--{name}":
            return value if equals else next(words)
    return os.environ.get(f"CONTAINER_{name.upper().replace('-', '_')}")


def overrule(runtime: dict[str, Any]) -> None:
    """Put what its unit says over what its files say (engine-facts.md#crio-flags)."""
    for key in ("conmon", "cgroup_manager", "default_runtime"):
        if (value := given(key.replace("_", "-"))) is not None:
            runtime[key] = value
    if (value := given("runtimes")) is not None:
        name, path, root = value.split(":")
        runtime["runtimes"][name] = {"runtime_path": path, "runtime_root": root, "runtime_type": "oci"}


def overlay(config: dict[str, Any], over: dict[str, Any], depth: int = 0) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict) and depth < 3:
            overlay(config[key], value, depth + 1)
        else:
            config[key] = value


def validate(what: str, program: str) -> None:
    """Raise where there is no such program, at a path or by its name in PATH (engine-facts.md#crio-conmon)."""
    if shutil.which(program) is None:
        raise ValueError(f"invalid {what}: {program}")


class Fake(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Says what ``said`` holds, and does what it had at its start."""

    def __init__(self) -> None:
        self.said = merged()
        runtime = self.said["crio"]["runtime"]
        if runtime["cgroup_manager"] not in {"systemd", "cgroupfs"}:
            manager = runtime["cgroup_manager"]
            raise ValueError(f"unable to update cgroup manager: invalid cgroup manager: {manager}")
        default = runtime["default_runtime"]
        validate(f"runtime_path for runtime '{default}'", runtime["runtimes"][default]["runtime_path"])
        for name, one in runtime["runtimes"].items():
            path = runtime["conmon"] or one.get("monitor_path") or "conmon"  # at a start alone
            validate(f"conmon path for runtime {name}", path)
            one.setdefault(
                "monitor_cgroup", "system.slice"
            )  # TranslateMonitorFieldsForHandler, at a start alone
        validate("pinns path", runtime["pinns_path"])
        self.deeds = dict(self.said["crio"]["runtime"]["runtimes"])

    def service(self, details: Any) -> Any:
        method = getattr(self, details.method.rsplit("/", 1)[1], None)
        return grpc.unary_unary_rpc_method_handler(method) if method else None

    def hang_up(self) -> None:
        with suppress(ValueError):
            self.said = merged(RELOADED)

    def Version(self, _: bytes, __: Any) -> bytes:  # noqa: N802 - CRI's name
        return message((1, "0.1.0"), (2, "cri-o"), (3, "1.37.0"), (4, "v1"))

    def Status(self, _: bytes, __: Any) -> bytes:  # noqa: N802
        ready = message((1, message((1, "RuntimeReady"), (2, 1))))
        runtime = self.said["crio"]["runtime"]
        told = {
            name: {"RuntimePath": one["runtime_path"], "RuntimeType": one.get("runtime_type", "")}
            for name, one in runtime["runtimes"].items()
        }
        config = {"crio": {"Runtimes": told, "DefaultRuntime": runtime["default_runtime"]}}
        return message((1, ready), (2, message((1, "config"), (2, json.dumps(config)))))

    def ListContainers(self, _: bytes, __: Any) -> bytes:  # noqa: N802
        return b""

    def RunPodSandbox(self, request: bytes, context: Any) -> bytes:  # noqa: N802
        """Take nothing but a handler (field 2)."""
        handler = request[2:].decode()
        if handler and handler not in self.deeds:
            names = " ".join(self.deeds)
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f"failed to find runtime handler {handler} from runtime list map[{names}]",
            )
        return message((1, "pod"))

    def ExecSync(self, _: bytes, __: Any) -> bytes:  # noqa: N802
        """Have a conmon of its own, which is ended with the service."""
        ended = subprocess.run(json.loads(EXEC.read_text())["cmdline"].split("\0")[:-1], check=False)
        return message((3, ended.returncode % 256))

    def StopContainer(self, request: bytes, _: Any) -> bytes:  # noqa: N802
        """Take an id (field 1) and, in its last byte, the seconds of grace (field 2)."""
        size = request[1]
        name, grace_s = request[2 : 2 + size].decode(), request[-1]
        state = Path(self.said["crio"]["runroot"], f"{self.said['crio']['storage_driver']}-containers")
        pid = int((state / name / "userdata/pidfile").read_text())
        deadline = time.monotonic() + grace_s
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            while time.monotonic() < deadline and alive(pid):
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
        return b""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def serve(listener: socket.socket, fake: Fake, answering: list[threading.Thread]) -> None:
    """Give GETs to HTTP and all else to gRPC, on one socket, as cri-o's cmux does; note who carries answers."""

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if connection.recv(3, socket.MSG_PEEK) == b"GET":
                asked = connection.recv(65536).split(b" ")[1]
                body = tomlkit.dumps(fake.said).encode() if asked == b"/config" else b""
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: application/toml\r\n\r\n" + body)
                return
            with socket.socket(socket.AF_UNIX) as inner:
                inner.connect(INNER)
                back = threading.Thread(target=copy, args=(inner, connection), daemon=True)
                back.start()
                answering.append(back)
                copy(connection, inner)
                back.join()

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=one, args=(connection,), daemon=True).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Carry what comes until either has ended, and end both: gRPC waits 20 s for one that is half gone."""
    with suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"crio", 0, 0, 0)
    try:
        fake = Fake()
    except ValueError as error:
        sys.exit(f'time="2026-11-21T17:00:00Z" level=fatal msg="validating runtime config: {error}"')
    SOCKET.parent.mkdir(exist_ok=True)
    SOCKET.unlink(missing_ok=True)
    Path(INNER).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8), handlers=[fake])
    server.add_insecure_port(f"unix:{INNER}")
    server.start()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(SOCKET))
    listener.listen()
    answering: list[threading.Thread] = []
    threading.Thread(target=serve, args=(listener, fake, answering), daemon=True).start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    while signal.sigwait({signal.SIGTERM, signal.SIGHUP}) is signal.SIGHUP:
        fake.hang_up()
    SOCKET.unlink(missing_ok=True)
    server.stop(3600).wait()
    for each in answering:  # the last answers reach their callers, however busy the machine is
        each.join(timeout=3600)
    os._exit(0)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    main()
