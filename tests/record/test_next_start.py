"""Whether a unit would start again, from what systemd 252 and 257 say of one (``systemctl show``, GetAll)."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.host.files import Host
from installer.host.unit_start import UnitStart
from installer.record.next_start import missing

FLAG = "/opt/site/flag"
CONTAINERD = ("/usr/bin/containerd", ["/usr/bin/containerd"], False)
MODPROBE = ("/sbin/modprobe", ["/sbin/modprobe", "overlay"], True)
SERVICE = {
    "ExecStart": [CONTAINERD],
    "ExecStartPre": [MODPROBE],
    "Environment": [],
    "EnvironmentFiles": [],
    "RootDirectory": "",
    "RootImage": "",
}
UNIT = {"NeedDaemonReload": False, "Conditions": [], "Asserts": []}


def condition(
    kind: str, path: str = FLAG, *, either: bool = False, negated: bool = False
) -> tuple[str, bool, bool, str, int]:
    return (kind, either, negated, path, 0)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for name in ("usr/bin/containerd", "opt/site/program", "opt/site/text"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o644 if name.endswith("text") else 0o755)
    (tmp_path / "opt/site/empty").touch()
    (tmp_path / "opt/site/link").symlink_to("/opt/site/text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/lock").touch()
    return Host.under(PurePosixPath(tmp_path))


def said(host: Host, **changed: Any) -> str:
    """Return why a unit of these properties would not start."""
    return missing(host, UnitStart.of(UNIT | SERVICE | changed))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"EnvironmentFiles": [(FLAG, False)]}, "its EnvironmentFile /opt/site/flag is not there"),
        (
            {"EnvironmentFiles": [("/opt/site/*.env", False)]},
            "its EnvironmentFile /opt/site/*.env is not there",
        ),
        ({"ExecStart": [(FLAG, [FLAG], False)]}, "its ExecStart /opt/site/flag is no program"),
        ({"ExecStart": [(FLAG, ["/opt/site/text"], False)]}, "its ExecStart /opt/site/text is no program"),
        ({"ExecStartPre": [(FLAG, [FLAG], False)]}, "its ExecStartPre /opt/site/flag is no program"),
        ({"Conditions": [condition("ConditionPathExists")]}, f"ConditionPathExists={FLAG} does not hold"),
        ({"Asserts": [condition("AssertPathExists")]}, f"AssertPathExists={FLAG} does not hold"),
        (
            {"Conditions": [condition("ConditionPathExists", "/opt/site/text", negated=True)]},
            "ConditionPathExists=!/opt/site/text does not hold",
        ),
        (
            {"Conditions": [condition("ConditionPathExistsGlob", "/opt/site/*.flag")]},
            "ConditionPathExistsGlob=/opt/site/*.flag does not hold",
        ),
        (
            {"Conditions": [condition("ConditionPathIsDirectory", "/opt/site/text")]},
            "ConditionPathIsDirectory=/opt/site/text does not hold",
        ),
        (
            {"Conditions": [condition("ConditionPathIsSymbolicLink", "/opt/site/text")]},
            "ConditionPathIsSymbolicLink=/opt/site/text does not hold",
        ),
        (
            {"Conditions": [condition("ConditionDirectoryNotEmpty")]},
            f"ConditionDirectoryNotEmpty={FLAG} does not hold",
        ),
        (
            {"Conditions": [condition("ConditionFileNotEmpty", "/opt/site/empty")]},
            "ConditionFileNotEmpty=/opt/site/empty does not hold",
        ),
        (
            {"Conditions": [condition("ConditionFileIsExecutable", "/opt/site/text")]},
            "ConditionFileIsExecutable=/opt/site/text does not hold",
        ),
        (
            {"Conditions": [condition("ConditionPathExists", either=True)]},
            f"none of ConditionPathExists=|{FLAG} holds",
        ),
    ],
)
def test_what_a_unit_needs_and_would_not_find_is_told(
    host: Host, changed: dict[str, Any], reason: str
) -> None:
    assert said(host, **changed) == reason


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, id="all is there"),
        pytest.param({"EnvironmentFiles": [(FLAG, True)]}, id="a file that may be absent"),
        pytest.param({"EnvironmentFiles": [("/opt/site/te*", False)]}, id="a pattern with a file"),
        pytest.param({"ExecStartPre": [(FLAG, [FLAG], True)]}, id="a command that may fail"),
        pytest.param({"ExecStart": [("containerd", ["containerd"], False)]}, id="a word"),
        pytest.param({"ExecStart": [(FLAG, [FLAG], False)], "RootDirectory": "/srv"}, id="another root"),
        pytest.param(
            {"Conditions": [condition("ConditionKernelCommandLine", "nogpu")]}, id="not about a path"
        ),
        pytest.param(
            {
                "Conditions": [
                    condition("ConditionPathExists", either=True),
                    condition("ConditionPathExists", "/opt/site/link", either=True),
                ]
            },
            id="one of two",
        ),
        pytest.param(
            {"Conditions": [condition("ConditionPathExists", "/run/lock", negated=True)]},
            id="the service's own lock",
        ),
        pytest.param(
            {"Conditions": [condition("ConditionPathIsSymbolicLink", "/opt/site/link")]}, id="a link"
        ),
    ],
)
def test_what_would_start_or_cannot_be_judged_is_left_alone(host: Host, changed: dict[str, Any]) -> None:
    assert said(host, **changed) == ""


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ([MODPROBE, ["/usr/bin/test", "-f", "/nowhere"]], "its ExecStartPre /usr/bin/test -f /nowhere fails"),
        ([["/usr/bin/[", "-d", "/etc/passwd", "]"]], "its ExecStartPre /usr/bin/[ -d /etc/passwd ] fails"),
        ([["/usr/bin/test", "-d", "/etc"]], ""),
        ([["/usr/bin/touch", "/nowhere"], ["/usr/bin/test", "-f", "/nowhere"]], ""),
        ([["/usr/bin/test", "!", "-e", "/etc"]], ""),
        ([["/usr/bin/test", "-f", "${FLAG}"]], ""),
    ],
)
def test_a_look_at_a_file_before_the_start_is_taken_unless_it_may_come_out_otherwise_then(
    before: list[Any], reason: str
) -> None:
    commands = [each if isinstance(each, tuple) else (each[0], each, False) for each in before]
    start = UnitStart.of(
        UNIT | SERVICE | {"ExecStart": [("true", ["true"], False)], "ExecStartPre": commands}
    )

    assert missing(Host.under(PurePosixPath("/")), start) == reason
