"""The reference tells every flag, and what it promises about them is so."""

from pathlib import Path

import pytest

from installer.decide.errors import UsageError
from installer.flags import FLAGS, Flag, options_from

REFERENCE = (Path(__file__).parent.parent / "docs/reference.md").read_text()
DEFAULTS = {flag.field: flag.default for flag in FLAGS}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_flag_its_variable_and_its_meaning_are_in_the_reference(flag: Flag) -> None:
    row = next(line for line in REFERENCE.splitlines() if line.startswith(f"| `{flag.name}"))

    assert f"`{flag.variable}`" in row
    assert flag.help in row


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"config": ["/x"]}, "which engine", id="a bare path and auto"),
        pytest.param({"runtime": ["auto", "docker"]}, "mix --runtime auto", id="auto and another"),
        pytest.param({"mount": ["/a"]}, "mount '/a'", id="half a mount"),
        pytest.param(
            {"runtime": ["docker"], "drop_in_config": ["/x"]}, "Docker a drop-in", id="a drop-in for Docker"
        ),
        pytest.param({"install_dir": "/"}, "install into /", id="the root"),
        pytest.param({"install_dir": "a/b"}, "use the path a/b", id="a relative path"),
        pytest.param(
            {"runtime": ["containerd"], "restart_mode": "signal"}, "by a signal", id="a signal for containerd"
        ),
        pytest.param(
            {"host_root": "/host", "runtime": ["docker"], "config": ["/etc/x"]},
            "outside the host's root",
            id="outside",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options_from(DEFAULTS | values, frozenset())


def test_a_path_as_this_process_sees_it_becomes_the_hosts() -> None:
    given = {
        "host_root": "/host",
        "mount": ["/etc/docker=/runtime"],
        "config": ["docker=/runtime/daemon.json"],
    }

    options = options_from(DEFAULTS | given | {"socket": ["crio=/host/run/x.sock"]}, frozenset())

    assert str(options.places["docker"].config) == "/etc/docker/daemon.json"
    assert str(options.places["crio"].socket) == "/run/x.sock"
