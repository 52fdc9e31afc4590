"""How an engine was started, and will be: by its process, by systemd's words, by the host's own /proc."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.engines import ENGINES
from installer.engines.observe import with_process, with_start
from installer.engines.startup import read_start
from installer.host.files import Host
from installer.model.facts import EngineState, Started
from installer.model.options import Places
from tests.host.servers import FakeSystemd, FakeUnit, serving
from tests.support.live import UNIT_PROPERTIES

ROW = ENGINES["containerd"]
PID = 61


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "run/dbus").mkdir(parents=True)
    return Host.under(PurePosixPath(tmp_path))


def facts(host: Host) -> EngineState:
    program = host.local_path(PurePosixPath("/usr/bin/containerd"))
    return EngineState(
        "containerd",
        ROW.config,
        None,
        None,
        (),
        ROW.socket,
        "containerd.service",
        exe=PurePosixPath(program),
    )


def process(host: Host, name: str, *words: str) -> None:
    """Make the process that systemd tells as the unit's own, as the host's /proc has it."""
    directory = host.local_path(PurePosixPath(f"/proc/{PID}"))
    directory.mkdir(parents=True)
    (directory / "comm").write_text(f"{name}\n")
    (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    (directory / "environ").write_bytes(b"PATH=/opt/bin\0NOTIFY_SOCKET=/run/systemd/notify\0")


def systemd(host: Host, **said: tuple[str, Any]) -> Any:
    bus = host.local_path(PurePosixPath("/run/dbus/system_bus_socket"))
    return serving(
        bus, FakeSystemd({"containerd.service": FakeUnit(main_pid=PID)}, changed=UNIT_PROPERTIES | said)
    )


def command(*words: str) -> tuple[str, Any]:
    return "a(sasbttttuii)", [(words[0], [*words], False, 0, 0, 0, 0, 0, 0, 0)]


def test_a_process_that_is_not_seen_from_here_is_found_in_the_hosts_proc(host: Host) -> None:
    process(host, "containerd", "/usr/bin/containerd", "--config", "/opt/c.toml")

    with systemd(host):
        found = read_start(host, facts(host))

    assert found == Started(("--config", "/opt/c.toml"), {"PATH": "/opt/bin"}, "/usr/bin/containerd")


def test_its_unit_is_read_once(host: Host) -> None:
    process(host, "containerd", "/usr/bin/containerd", "--config", "/opt/c.toml")
    told = FakeSystemd({"containerd.service": FakeUnit(main_pid=PID)}, changed=UNIT_PROPERTIES)

    with serving(host.local_path(PurePosixPath("/run/dbus/system_bus_socket")), told):
        found = with_process(host, facts(host), Places())

    assert found.words == ("--config", "/opt/c.toml")
    assert told.calls.count("GetAll") == 1


def test_another_process_under_that_number_tells_nothing_of_the_engine(host: Host) -> None:
    process(host, "sleep", "/bin/sleep", "--config", "/opt/c.toml")

    with systemd(host):
        found = read_start(host, facts(host))

    assert found is None


def test_a_word_of_an_environment_file_is_part_of_the_next_start(host: Host, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/default").write_text("# of the site\nWORDS='--root /srv/c'\n")
    process(host, "containerd", "/usr/bin/containerd")

    with systemd(
        host,
        ExecStart=command("/usr/bin/containerd", "$WORDS", "--log-level=${LEVEL}"),
        Environment=("as", ["LEVEL=warn"]),
        EnvironmentFiles=("a(sb)", [("/etc/default", False)]),
    ):
        found = with_start(host, facts(host))

    assert found.next_start is not None
    assert found.next_start.words == ("--root", "/srv/c", "--log-level=warn")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(("/usr/bin/containerd", "--root", "/srv"), ("--root", "/srv"), id="the engine"),
        pytest.param(
            ("/usr/bin/nice", "-n", "5", "/usr/bin/containerd", "-a", "/x"), ("-a", "/x"), id="nice"
        ),
        pytest.param(("/bin/sh", "-c", "exec /usr/bin/containerd --root /srv"), (), id="a shell"),
        pytest.param(("/bin/sh", "-c", "/usr/bin/containerd --root /srv/containerd"), (), id="its last word"),
        pytest.param(("/opt/start", "--root", "/srv"), (), id="a script"),
    ],
)
def test_the_words_of_the_next_start_are_those_behind_the_engines_program(
    host: Host, words: tuple[str, ...], told: tuple[str, ...]
) -> None:
    with systemd(host, ExecStart=command(*words)):
        found = with_start(host, facts(host))

    assert (found.next_start.words if found.next_start else ()) == told
