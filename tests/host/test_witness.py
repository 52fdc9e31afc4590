"""An engine and systemd are asked by hand whether they are as they were."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from installer.host import witness
from tests.host.servers import FakeSystemd, FakeUnit, engine, message, serving
from tests.support.site import PROJECT

STATUS, VERSION = (method for method, _ in reversed(witness.QUESTIONS))


def status(*fields: tuple[int, bytes]) -> str:
    return witness.digest(*sorted(witness.fields(message(*fields))))


def asked(path: Path, said: bytes, version: bytes = message((2, "containerd"))) -> str:
    with engine(path, {VERSION: version, STATUS: said}):
        return witness.found("cri", str(path))


def test_who_answers_is_part_of_the_answer(tmp_path: Path) -> None:
    assert asked(tmp_path / "socket", b"").startswith(f"{os.getpid()}:")


def test_an_answer_in_another_order_is_the_same(tmp_path: Path) -> None:
    one, other = (2, message((1, "config"), (2, "{}"))), (2, message((1, "golang"), (2, "go1")))

    assert asked(tmp_path / "a", message(one, other)) == asked(tmp_path / "b", message(other, one))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(message((2, "a")), message((2, "b")), id="a word"),
        pytest.param(message((2, "a")), message((2, "a"), (2, "a")), id="once more"),
        pytest.param(message((1, 1)), message((1, 300)), id="a number"),
        pytest.param(b"", message((2, "")), id="an empty one"),
    ],
)
def test_another_answer_is_another(tmp_path: Path, before: bytes, after: bytes) -> None:
    assert asked(tmp_path / "a", before) != asked(tmp_path / "b", after)


def test_an_engine_of_another_version_is_another(tmp_path: Path) -> None:
    assert asked(tmp_path / "a", b"") != asked(tmp_path / "b", b"", message((2, "containerd"), (3, "2")))


@pytest.mark.parametrize("said", [b"\x0a", b"\x0a\x05ab", b"\x0d\0\0\0\0", b"\x80"])
def test_what_is_no_message_is_no_answer(said: bytes) -> None:
    with pytest.raises((ValueError, LookupError)):
        witness.fields(said)


def test_nobody_on_a_socket_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        witness.found("cri", str(tmp_path / "socket"))


def unit(path: Path, systemd: FakeSystemd) -> str:
    with serving(path, systemd) as bus:
        return witness.found("unit", f"{bus} containerd.service")


def of_its_own(**changed: tuple[str, object]) -> FakeSystemd:
    """Return systemd on its own socket, with the properties that it has besides those of the fake's."""
    lists = ("Environment", "Conditions", "Asserts", "EnvironmentFiles", "ExecStart", "ExecCondition")
    more: dict[str, tuple[str, object]] = dict.fromkeys((*lists, "ExecStartPre"), ("as", []))
    more |= dict.fromkeys(("RootDirectory", "RootImage", "KillMode"), ("s", ""))
    more |= dict.fromkeys(("NeedDaemonReload", "RefuseManualStop", "RefuseManualStart"), ("b", False))
    return FakeSystemd({"containerd.service": FakeUnit()}, behind_bus=False, changed={**more, **changed})


def test_a_unit_that_is_as_it_was_gives_the_same_answer(tmp_path: Path) -> None:
    assert unit(tmp_path / "a", of_its_own()) == unit(tmp_path / "b", of_its_own())


@pytest.mark.parametrize("after", [of_its_own(NeedDaemonReload=("b", True)), of_its_own(MainPID=("u", 7))])
def test_a_unit_that_is_another_gives_another_answer(tmp_path: Path, after: FakeSystemd) -> None:
    assert unit(tmp_path / "a", of_its_own()) != unit(tmp_path / "b", after)


def test_systemd_that_refuses_gives_no_answer(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        unit(tmp_path / "a", FakeSystemd(state="refusing", behind_bus=False))


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    one = subprocess.Popen(["/bin/sleep", "60"])
    try:
        first = witness.found("started", str(one.pid))
        again = witness.found("started", str(one.pid))
        own = witness.found("started", str(os.getpid()))
    finally:
        one.kill()
        one.wait()

    assert first == again
    assert own != first


def test_it_loads_no_more_than_a_bare_interpreter_has() -> None:
    code = "import sys; before = {*sys.modules}; from installer import unchanged; print(*({*sys.modules} - before))"

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(PROJECT)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )

    ours = {f"installer{name}" for name in ("", ".host", ".host.glance", ".host.unary", ".host.witness")}
    ours |= {"installer.probes", "installer.unchanged"}
    assert {*done.stdout.split()} - ours <= {"_blake2", "_socket", "_stat", "time"}
