"""``make test-gpu`` where there is no GPU: what it says, and how it judges what it was told."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import bundle
from tests.gpu.__main__ import same
from tests.gpu.machine import DEVICE, DRIVER, SHIPPED, UVM, lacks
from tests.support.site import PROJECT

SPECIFICATION = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "hooks": [{"hookName": "createContainer", "path": "/opt/hook", "args": ["hook", "update-ldcache"]}],
        "mounts": [{"hostPath": "/opt/a", "containerPath": "/usr/lib/x/a", "options": ["ro", "nosuid"]}],
        "additionalGids": [44],
    },
}


def test_on_a_machine_without_a_gpu_it_says_in_one_line_what_is_lacking_and_fails(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "TOOLKIT_SOURCE": str(tmp_path)}
    command = [sys.executable, "-m", "tests.gpu"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT, env=environment)

    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("test-gpu cannot run on this machine, which lacks ")
    assert "runc" in line
    assert f"TOOLKIT_SOURCE={tmp_path} (no nvidia-ctk nvidia-cdi-hook nvidia-container-runtime)" in line


def test_each_thing_that_it_needs_is_named_and_nothing_where_all_is_there(tmp_path: Path) -> None:
    needed = [DRIVER, DEVICE, UVM, "bin/runc", "bin/ldd", *(f"usr/bin/{name}" for name in SHIPPED)]
    for name in needed:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)

    def lacking() -> str:
        return lacks(tmp_path, tmp_path, str(tmp_path / "bin"), uid=0)

    assert lacking() == ""
    assert lacks(tmp_path, tmp_path, str(tmp_path / "bin"), uid=1000) == "root's rights"
    for name in needed:
        (tmp_path / name).rename(tmp_path / "away")
        assert name.rpartition("/")[2] in lacking()
        (tmp_path / "away").rename(tmp_path / name)


def test_a_device_by_cdi_is_what_an_engine_makes_of_its_edits() -> None:
    before = bundle.config(Path("/root"), ("/bin/true",), {"A": "b"})

    given = bundle.with_device(before, SPECIFICATION, "0")

    assert given["process"]["env"] == [*before["process"]["env"], "NVIDIA_VISIBLE_DEVICES=void"]
    assert given["process"]["user"]["additionalGids"] == [44]
    assert given["hooks"] == {"createContainer": [{"path": "/opt/hook", "args": ["hook", "update-ldcache"]}]}
    (node,) = given["linux"]["devices"]
    assert (node["path"], node["type"], node["major"], node["minor"]) == ("/dev/null", "c", 1, 3)
    assert given["linux"]["resources"]["devices"][-1] == {
        "allow": True,
        "access": "rwm",
        "type": "c",
        "major": 1,
        "minor": 3,
    }
    (mount,) = [each for each in given["mounts"] if each["source"] == "/opt/a"]
    assert mount["options"] == ["bind", "ro", "nosuid"]
    assert before == bundle.config(Path("/root"), ("/bin/true",), {"A": "b"}), "which stays as it was"


def test_two_specifications_are_the_same_but_for_the_places_of_a_hook_and_of_a_node_that_says_its_own() -> (
    None
):
    edits, (device,) = SPECIFICATION["containerEdits"], SPECIFICATION["devices"]
    assert isinstance(edits, dict)
    assert isinstance(device, dict)
    hook = {"hookName": "createContainer", "path": "/usr/bin/hook", "args": ["hook", "update-ldcache"]}
    theirs = {**SPECIFICATION, "cdiVersion": "0.7.0", "containerEdits": {**edits, "hooks": [hook]}}
    node = {"deviceNodes": [{"path": "/dev/null", "hostPath": "/dev/null"}]}
    other = {"deviceNodes": [{"path": "/dev/null", "hostPath": "/dev/zero"}]}

    assert same(SPECIFICATION, theirs) == "1 devices, 5 edits"
    assert same(SPECIFICATION, {**theirs, "devices": [{**device, "containerEdits": node}]})
    with pytest.raises(RuntimeError, match="all devices, env"):
        same(SPECIFICATION, {**theirs, "containerEdits": {**edits, "env": []}})
    with pytest.raises(RuntimeError, match="deviceNodes"):
        same(SPECIFICATION, {**theirs, "devices": [{**device, "containerEdits": other}]})
