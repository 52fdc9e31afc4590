"""A neighbour who means harm: runs in a node as nobody, and does all at once whatever every local user may do.

As a script: it says ``at work`` once everything goes on, and goes on until it is killed.
"""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

NOBODY = 65534
UNIT = "containerd.service"
PLACES = ("/tmp", "/var/tmp", "/run/lock", "/dev/shm")  # noqa: S108 - where everybody may write
NAMES = (".toolkit-installer", "nvidia", "toolkit.pid", "ready", "lock", ".nvidia.toolkit-installer")


def signals(results: tuple[str, ...] = ("failed", "done", "canceled")) -> None:
    """Tell everybody on the system bus that jobs have ended: in systemd's shape, and in no shape at all."""
    from jeepney import DBusAddress, new_signal  # type: ignore[import-untyped]  # ships no types
    from jeepney.bus_messages import DBus, message_bus  # type: ignore[import-untyped]  # ships no types
    from jeepney.io.blocking import open_dbus_connection  # type: ignore[import-untyped]  # ships no types

    manager = DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager")
    connection = open_dbus_connection("SYSTEM")
    assert DBus
    job = 0
    while True:
        names = connection.send_and_get_reply(message_bus.ListNames()).body[0]
        for name in (name for name in names if name.startswith(":") and name != connection.unique_name):
            for number in range(job, job + 40):
                path = f"/org/freedesktop/systemd1/job/{number}"
                for result in results:
                    said = new_signal(manager, "JobRemoved", "uoss", (number, path, UNIT, result))
                    _send(connection, said, name)
            _send(connection, new_signal(manager, "JobRemoved"), name)
            _send(connection, new_signal(manager, "JobRemoved", "s", ("x" * 100_000,)), name)
        job = (job + 40) % 4000


def _send(connection: object, message: object, name: str) -> None:
    from jeepney import HeaderFields

    message.header.fields[HeaderFields.destination] = name  # type: ignore[attr-defined]  # ships no types
    connection.send(message)  # type: ignore[attr-defined]  # ships no types


def names() -> None:
    """Put links and FIFOs under our names wherever names may be put."""
    while True:
        for place in PLACES:
            for number, name in enumerate(NAMES):
                path = Path(place, name)
                with contextlib.suppress(OSError):
                    path.symlink_to("/etc/passwd") if number % 2 else os.mkfifo(path)
        time.sleep(0.1)


ACTS = (signals, names)


def main() -> None:
    """Become nobody, and begin, at everybody's priority."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    for act in ACTS:
        threading.Thread(target=act, daemon=True).start()
    time.sleep(1)
    sys.stdout.write("at work\n")
    sys.stdout.flush()
    while threading.active_count() > len(ACTS):
        time.sleep(0.2)
    sys.exit("one of them has ended")


if __name__ == "__main__":
    main()
