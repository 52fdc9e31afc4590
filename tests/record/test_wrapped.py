"""What a unit's command gives to an engine, where a shell or a script starts that."""

from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import Host
from installer.record.wrapped import engine_words

ENGINE = "/usr/bin/containerd"
SCRIPT = "/usr/local/sbin/start-containerd"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "usr/local/sbin").mkdir(parents=True)
    return Host.under(PurePosixPath(tmp_path))


def in_shell(host: Host, text: str, *given: str) -> tuple[str, ...] | None:
    return engine_words(host, ("/bin/sh", "-c", text, *given), "containerd")


def in_script(host: Host, text: str, *given: str) -> tuple[str, ...] | None:
    host.local_path(PurePosixPath(SCRIPT)).write_text(text)
    return engine_words(host, (SCRIPT, *given), "containerd")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((ENGINE,), ()),
        ((ENGINE, "--root", "/srv"), ("--root", "/srv")),
        (("/usr/bin/nice", "-n", "-5", ENGINE, "-a", "/run/x"), ("-a", "/run/x")),
        (("/usr/bin/env", "GODEBUG=1", ENGINE), ()),
        (("/usr/bin/k3s", "server"), None),
        ((), None),
    ],
)
def test_the_words_behind_the_engines_program_are_found(
    host: Host, command: tuple[str, ...], words: tuple[str, ...] | None
) -> None:
    assert engine_words(host, command, "containerd") == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"exec {ENGINE} --root /srv", ("--root", "/srv")),
        (f"ulimit -n 4096; A=1 exec {ENGINE} --state=/run/x 2>&1", ("--state=/run/x", "2")),
        (f"test -x {ENGINE} && exec {ENGINE} '--config' \"/etc/a b\"", ("--config", "/etc/a b")),
        (f"echo {ENGINE} starts; {ENGINE}", ()),
        (f"exec {ENGINE} \\\n  --root /srv", ("--root", "/srv")),
        pytest.param(f"exec {ENGINE} $OPTIONS", None, id="a variable"),
        pytest.param(f"exec {ENGINE} --root $(cat /x)", None, id="what a command says"),
        pytest.param(f"test -e /x && exec {ENGINE} --root /x; exec {ENGINE}", None, id="two starts"),
        pytest.param(f"exec {ENGINE} 'over\nlines'", None, id="over several lines"),
        pytest.param("exec /usr/bin/k3s", None, id="another program"),
    ],
)
def test_a_shells_text_is_understood_as_far_as_it_is_plain(
    host: Host, text: str, words: tuple[str, ...] | None
) -> None:
    assert in_shell(host, text) == words
    assert in_script(host, f"#!/bin/sh -e\n# {ENGINE} --not-this\n{text}\n") == words


def test_words_that_are_handed_on_come_from_the_unit(host: Host) -> None:
    assert in_shell(host, f'exec {ENGINE} "$@"', "sh", "--root", "/srv") == ("--root", "/srv")
    assert in_script(host, f'#!/bin/sh\nexec {ENGINE} "$@" -l info\n', "--root", "/srv") == (
        "--root",
        "/srv",
        "-l",
        "info",
    )


def test_what_is_no_script_of_a_shell_tells_nothing(host: Host) -> None:
    assert in_script(host, f"#!/usr/bin/python3\n{ENGINE}\n") is None
    assert in_script(host, f"\x7fELF {ENGINE}\n") is None
    assert in_script(host, f"#!/bin/sh\n{'#' * 100_000}\nexec {ENGINE}\n") is None
    assert engine_words(host, ("/usr/local/sbin/absent",), "containerd") is None
