"""``python -m MODULE WORDS`` as a child of a Python that has loaded the program.

To start Python and to load the modules takes most of a verb's processor time. What is about a start itself takes
``subprocess``: closed streams, little memory, a ``run`` that waits.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from select import select
from threading import Lock

from tests.support.entry import PROJECT, SCRIPTS

Done = subprocess.CompletedProcess[str]
# A test reads a verb's events as a program does.
# A verb for which a test names no root would look at the machine of the tests: it finds none.
ROOT = {"TOOLKIT_INSTALLER_HOST_ROOT": "/no-root-was-named"}
WITHOUT_ROOT = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT), "TOOLKIT_INSTALLER_LOG_FORMAT": "json"}
ENVIRONMENT = WITHOUT_ROOT | ROOT
MOST = 1 << 16
FEW = 256  # file descriptors of a server
_one_at_a_time = Lock()


def run(command: Sequence[str], env: Mapping[str, str] = ENVIRONMENT, timeout_s: float = 60) -> Done:
    """Run ``[python, "-m", MODULE, *WORDS]`` with this environment alone, as ``subprocess`` would.

    Variables that Python reads when it starts have it start, and so does a command that enters a node.
    """
    if command[1] != "-m" or any(
        name.startswith(("PYTHON", "LC_")) and ENVIRONMENT.get(name) != env[name] for name in env
    ):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env
        )
    _, _, *asked = command
    with _one_at_a_time:
        server, (out, out_end), (err, err_end) = _server(), os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        request = json.dumps([*asked[:1], asked[1:], dict(env), str(Path.cwd())])
        socket.send_fds(server, [request.encode()], [nothing, out_end, err_end])
        for fd in (nothing, out_end, err_end):
            os.close(fd)
        pid = int(server.recv(MOST))
        try:
            said = _read_all([out, err], time.monotonic() + timeout_s)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = os.waitstatus_to_exitcode(int(server.recv(MOST)))
            os.close(out)
            os.close(err)
    return Done([*command], code, said[out].decode(), said[err].decode())


def _read_all(fds: list[int], deadline: float) -> dict[int, bytes]:
    said = dict.fromkeys(fds, b"")
    open_ones = [*fds]
    while open_ones:
        ready, _, _ = select(open_ones, [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            raise TimeoutError(said)
        for fd in ready:
            said[fd] += (some := os.read(fd, MOST))
            if not some:
                open_ones.remove(fd)
    return said


@cache
def _server() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(its.fileno())]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(
        command, stdin=quiet, stdout=quiet, pass_fds=[its.fileno()], env=ENVIRONMENT, cwd=PROJECT
    )
    its.close()
    atexit.register(server.wait)  # called in the reverse order
    atexit.register(ours.close)
    return ours


@cache
def load() -> None:
    """Load the whole program."""
    package = importlib.import_module(SCRIPTS["toolkit-installer"].partition(".")[0])
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def _serve(asked: socket.socket) -> None:
    load()
    gc.collect()
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(asked, MOST, 3)
        if not request:
            return
        pid = os.fork()
        if not pid:
            module, words, environment, cwd = json.loads(request)
            _become(module, words, environment, cwd, fds)
            return
        for fd in fds:
            os.close(fd)
        asked.send(b"%d" % pid)
        asked.send(b"%d" % os.waitpid(pid, 0)[1])


def _become(module: str, words: list[str], environment: dict[str, str], cwd: str, fds: list[int]) -> None:
    for fd, given in enumerate(fds):
        os.dup2(given, fd)
    os.closerange(3, FEW)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = [module, *words]
    # What is loaded as the program is not there yet, as behind a start.
    sys.modules.pop(f"{module}.__main__" if hasattr(sys.modules[module], "__path__") else module)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
