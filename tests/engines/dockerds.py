"""A real dockerd by itself, in namespaces of its own: as quick to start as it is to put down."""

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

from installer.decide.effect import Effect
from installer.decide.errors import InstallerError
from installer.host import dockerd

# dockerd does not run on an overlay: its data gets a directory beside it. It is pid 1 of its namespace.
ENTER = """\
mount --make-rprivate / && mount -t tmpfs tmpfs /run && cd /run || exit 1
mkdir upper work root docker
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=/run/upper,workdir=/run/work" root || exit 1
for place in proc dev sys; do mount --rbind /$place root/$place || exit 1; done
mount -t tmpfs tmpfs root/run && mkdir -p root/var/lib/docker root/etc/docker || exit 1
mount --bind docker root/var/lib/docker
mount --bind "$CONFIG" root/etc/docker || exit 1
exec chroot root env -i PATH="$INSIDE" dockerd "$@"
"""
CONTAIN = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", ENTER, "enter"),
)
QUIET = ("--bridge=none", "--iptables=false", "--ip6tables=false")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WAIT_S = 20.0
ASK_S = 5.0


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

    def start(self, text: bytes | None, *flags: str) -> Effect | None:
        """Start it anew with a text; return what it serves, None where it refused to start."""
        self.stop()
        self.write(text)
        environment = {
            "PATH": os.environ["PATH"],
            "LOWER": str(self._root),
            "CONFIG": str(self._scratch / "etc"),
            "INSIDE": PATH,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*CONTAIN, *QUIET, *flags],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return None
            self._pid = self._inside()
            if self._pid and self.socket.exists() and self._answers():
                return self.serving
            time.sleep(0.02)
        raise AssertionError(f"dockerd neither serves nor ends: {self.log}")

    def _inside(self) -> int:
        """Return the pid of dockerd as it is called here, 0 where it is not there yet."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for child in children:
            try:
                if Path(f"/proc/{child}/comm").read_text() == "dockerd\n":
                    return int(child)
            except OSError:
                continue
        return 0

    @property
    def serving(self) -> Effect:
        return dockerd.info(self.socket, timeout_s=ASK_S).serving

    def _answers(self) -> bool:
        try:
            return bool(self.serving.default)
        except InstallerError:
            return False

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
        deadline = time.monotonic() + WAIT_S
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
        """Kill it and all that is below it."""
        if self._process is None:
            return
        import psutil

        for child in psutil.Process(self._process.pid).children() if self.runs else []:
            child.kill()
        self._process.wait(timeout=WAIT_S)
        self._process = None
        self._pid = 0


@contextmanager
def dockerd_of(root: Path) -> Iterator[Dockerd]:
    """Have a dockerd of a root file system; it is not started yet."""
    with tempfile.TemporaryDirectory(prefix="dockerd-") as scratch:
        daemon = Dockerd(root, Path(scratch))
        try:
            yield daemon
        finally:
            daemon.stop()
