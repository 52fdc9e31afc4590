"""The event that a step is in the log when it is done."""

from pathlib import PurePosixPath

import pytest

from installer.model.files import File
from installer.model.steps import (
    ConcreteStep,
    MakeDirectory,
    Reload,
    RemoveDirectory,
    SwitchToolkit,
    WriteConfig,
    describe,
)

PATH = PurePosixPath("/etc/docker/daemon.json")


@pytest.mark.parametrize(
    ("step", "event"),
    [
        (MakeDirectory(PATH), "directory made"),
        (RemoveDirectory(PATH), "directory removed"),
        (WriteConfig("docker", PATH, None, File(b"{}")), "config written"),
        (WriteConfig("docker", PATH, File(b"{}"), None), "config removed"),
        (SwitchToolkit("", "v"), "toolkit link created"),
        (SwitchToolkit("v", "w"), "toolkit link changed"),
        (SwitchToolkit("v", ""), "toolkit link removed"),
        (SwitchToolkit("v", None), "previous toolkit restored"),
        (SwitchToolkit(None, None), "previous toolkit removed"),
        (Reload("docker", ()), "engine reloaded"),
        (Reload("microk8s", ()), "engine restarted"),
        (Reload("k0s", ()), "engine restarted by itself"),
    ],
)
def test_a_step_that_is_done_is_told_in_the_past(step: ConcreteStep, event: str) -> None:
    assert describe(step).event == event
