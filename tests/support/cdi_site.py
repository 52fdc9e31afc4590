"""A host below a directory whose Docker takes devices by CDI, and a driver for nvidia-ctk to find."""

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.host.servers import serving
from tests.support.site import Site

OWN = "run/cdi/nvidia.com-gpu.json"
# As dockerd 28.5.2 says it of itself (tests/host/test_dockerd.py).
INFO = {
    "ServerVersion": "28.5.2",
    "Runtimes": {"runc": {"path": "runc", "status": {}}},
    "DefaultRuntime": "runc",
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
}
# What v1.20.0 says with --format=json, less what is not looked at: a mount for each library of the driver.
TOOL = """#!/bin/sh
for word; do case "$word" in --driver-root=*) root="${word#*=}";; --dev-root=*) dev="${word#*=}";; esac; done
test -e "$root/usr/lib64/libcuda.so.1" || { echo "level=error msg=no driver" >&2; exit 1; }
printf '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"deviceNodes":['
printf '{"path":"/dev/nvidia0","hostPath":"%s/dev/nvidia0"}]}}],"containerEdits":{"mounts":[' "$dev"
comma=
for library in "$root"/usr/lib64/*; do
    printf '%s{"hostPath":"%s","containerPath":"/usr/lib64/%s"}' "$comma" "$library" "${library##*/}"
    comma=,
done
printf ']}}'
"""


def _docker(connection: socket.socket) -> None:
    asked = connection.recv(65536).split(b" ", 2)[1:2]
    body = b"OK" if asked == [b"/_ping"] else json.dumps(INFO).encode()
    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


class CdiSite(Site):
    """A node with a driver, for the verbs in mode cdi."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._socket = self.root / "run/docker.sock"
        for path in ("bin", "run", "dev", "var", "driver/usr/lib64"):
            (self.root / path).mkdir(parents=True)
        (self.root / "var/run").symlink_to("../run")
        (self.root / "dev/nvidia0").touch()
        (self.root / "bin/sh").touch(0o755)
        self.library("libcuda.so.1")
        next(self.source.rglob("nvidia-ctk")).write_text(TOOL)

    def library(self, name: str) -> Path:
        """Make a library of the driver."""
        path = self.root / "driver/usr/lib64" / name
        path.touch()
        return path

    def command(self, verb: str, *more: str) -> list[str]:
        where = ("--host-root", str(self.root))
        if verb == "reconcile":
            return [sys.executable, "-m", "installer", verb, *where, *more]
        how = ("--toolkit-source", str(self.source), "--runtime", "docker", "--driver-root", "/driver")
        mode = () if "--mode" in more else ("--mode", "cdi")
        return [sys.executable, "-m", "installer", verb, *where, *how, *mode, *more]

    @contextmanager
    def docker(self) -> Iterator[None]:
        """Have Docker run meanwhile."""
        self._socket.unlink(missing_ok=True)
        with serving(self._socket, _docker):
            yield

    @property
    def specification(self) -> str:
        """The text of ours, "" where there is none."""
        return self.read(OWN)
