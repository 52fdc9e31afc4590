"""A real dockerd by itself in namespaces of its own: quick to start and to end."""

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGHUP
from urllib.parse import quote

from installer.engines.docker import api as dockerd
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig
from tests.engines.spawn import start_logged
from tests.support.waiting import PATIENCE_S, children

# dockerd does not run on an overlay: its data gets a directory beside it. It is pid 1 of its namespace.
ENTER = """\
mount --make-rprivate / && mount -t tmpfs tmpfs /run && cd /run || exit 1
mkdir upper work root docker
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=/run/upper,workdir=/run/work" root || exit 1
for place in proc dev sys; do mount --rbind /$place root/$place || exit 1; done
mount -t tmpfs tmpfs root/run && mkdir -p root/var/lib/docker root/etc/docker || exit 1
mount --bind docker root/var/lib/docker
mount --bind "$CONFIG" root/etc/docker || exit 1
exec chroot root env -i PATH="$INSIDE" "$@"
"""
CONTAIN = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", ENTER, "enter"),
)
QUIET = ("--bridge=none", "--iptables=false", "--ip6tables=false")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ASK_S = 5.0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill pid 1 of the namespaces, and with it all that is below it."""
    import psutil

    for child in psutil.Process(process.pid).children() if process.poll() is None else []:
        child.kill()
    process.wait(timeout=PATIENCE_S)


class Dockerd:
    """A dockerd and its daemon.json; it is started and reloaded as often as a test wants."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self._root = root
        self._scratch = scratch
        self._log = scratch / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        (scratch / "etc").mkdir()

    @property
    def config(self) -> Path:
        return self._scratch / "etc/daemon.json"

    @property
    def log(self) -> str:
        """Return what it has said since it was started."""
        return self._log.read_text(errors="replace")

    @property
    def socket(self) -> Path:
        return Path(f"/proc/{self._pid}/root/run/docker.sock")

    def write(self, text: bytes | None) -> None:
        """Put a text into its daemon.json; None is no file."""
        if text is None:
            self.config.unlink(missing_ok=True)
        else:
            self.config.write_bytes(text)

    def start(self, text: bytes | None, *flags: str) -> EffectiveConfig | None:
        """Start it anew with a text; return what it serves, None where it refused to start."""
        self.stop()
        self.write(text)
        places = {"LOWER": str(self._root), "CONFIG": str(self._scratch / "etc"), "INSIDE": PATH}
        environment = {"PATH": os.environ["PATH"], **places}
        self._process = start_logged([*CONTAIN, "dockerd", *QUIET, *flags], environment, self._log)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return None
            self._pid = self._inside()
            if self._pid and self.socket.exists():
                with suppress(InstallerError):
                    if (serving := self.serving).default:
                        return serving
            time.sleep(0.02)
        raise AssertionError(f"dockerd neither serves nor ends: {self.log}")

    def _inside(self) -> int:
        """Return the pid of dockerd as it is called here, 0 where it is not there yet."""
        assert self._process is not None
        for child in children(self._process.pid):
            with suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text() == "dockerd\n":
                    return child
        return 0

    @property
    def serving(self) -> EffectiveConfig:
        return dockerd.ask_info(self.socket, timeout_s=ASK_S).serving

    def _told_since(self, moment_s: float) -> bool:
        """Tell whether it has made the event of a reload; by hand, for it may die in the middle of its answer."""
        wanted = quote(json.dumps({"type": ["daemon"], "event": ["reload"]}))
        window = f"since={moment_s:.9f}&until={time.time():.9f}"
        said = b""
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.settimeout(ASK_S)
            connection.connect(str(self.socket))
            connection.sendall(f"GET /events?{window}&filters={wanted} HTTP/1.0\r\n\r\n".encode())
            while more := connection.recv(65536):
                said += more
        return b'"Action":"reload"' in said

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def reload(self, text: bytes | None) -> str:
        """Give it a text and SIGHUP; return "taken", "refused" or "died"."""
        self.write(text)
        before, began = len(self.log), time.time()
        os.kill(self._pid, SIGHUP)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            said = self.log[before:]
            if not self.runs:
                return "died"
            if "level=error" in said:  # 28 says "Reloaded configuration" all the same
                return "refused"
            # 20.10 may die a moment after these words: while it makes the event.
            if "Reloaded configuration" in said and self._told_since(began):
                return "taken"
            time.sleep(0.004)
        raise AssertionError(f"dockerd says nothing of its reload: {self.log[before:]}")

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)
        self._process, self._pid = None, 0


@contextmanager
def dockerd_of(root: Path) -> Iterator[Dockerd]:
    """Have a dockerd of a root file system; it is not started yet."""
    with tempfile.TemporaryDirectory(prefix="dockerd-") as scratch:
        daemon = Dockerd(root, Path(scratch))
        try:
            yield daemon
        finally:
            daemon.stop()
