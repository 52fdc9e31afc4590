"""A neighbour who means harm: runs in a node as nobody, and tells everybody on the system bus what is not so.

As a script: it says ``at work`` once it has begun, and goes on until it is killed.
"""

import os
import sys

NOBODY = 65534
UNIT = "containerd.service"


def signals() -> None:
    """Tell everybody on the system bus that jobs have ended: in systemd's shape, and in no shape at all."""
    from jeepney import DBusAddress, new_signal  # type: ignore[import-untyped]  # ships no types
    from jeepney.bus_messages import DBus, message_bus  # type: ignore[import-untyped]  # ships no types
    from jeepney.io.blocking import open_dbus_connection  # type: ignore[import-untyped]  # ships no types

    manager = DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager")
    connection = open_dbus_connection("SYSTEM")
    assert DBus
    sys.stdout.write("at work\n")
    sys.stdout.flush()
    job = 0
    while True:
        names = connection.send_and_get_reply(message_bus.ListNames()).body[0]
        for name in (name for name in names if name.startswith(":") and name != connection.unique_name):
            for number in range(job, job + 40):
                path = f"/org/freedesktop/systemd1/job/{number}"
                for result in ("failed", "done", "canceled"):
                    said = new_signal(manager, "JobRemoved", "uoss", (number, path, UNIT, result))
                    _send(connection, said, name)
            _send(connection, new_signal(manager, "JobRemoved"), name)
            _send(connection, new_signal(manager, "JobRemoved", "s", ("x" * 100_000,)), name)
        job = (job + 40) % 4000


def _send(connection: object, message: object, name: str) -> None:
    from jeepney import HeaderFields

    message.header.fields[HeaderFields.destination] = name  # type: ignore[attr-defined]  # ships no types
    connection.send(message)  # type: ignore[attr-defined]  # ships no types


def main() -> None:
    """Become nobody, and begin, at everybody's priority."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    signals()


if __name__ == "__main__":
    main()
