"""What becomes of the text of nvidia-ctk: the host's paths, the lowest version, and nothing that is empty."""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from installer.cdi.specification import named_paths, specification
from installer.errors import InstallerError

KIND = "nvidia.com/gpu"
HOST, DRIVER = PurePosixPath("/host"), PurePosixPath("/driver")
ROOT, RUN_DRIVER = PurePosixPath("/"), PurePosixPath("/run/nvidia/driver")


def said(
    *,
    name: str = "gpu0",
    node: dict[str, Any] | None = None,
    device: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    edits = {"mounts": [{"hostPath": "/lib/a", "containerPath": "/lib/a"}], **more}
    one = {
        "name": name,
        "containerEdits": {"deviceNodes": [node or {"path": "/dev/nvidia0"}], **(device or {})},
    }
    return {"cdiVersion": "1.1.0", "kind": KIND, "devices": [one], "containerEdits": edits}


def done(text: dict[str, Any], *moves: tuple[PurePosixPath, PurePosixPath]) -> Any:
    return json.loads(specification(json.dumps(text), KIND, moves))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param(said(), "0.3.0", id="nothing of later versions"),
        pytest.param(
            said(mounts=[{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]), "0.4.0", id="mount type"
        ),
        pytest.param(said(name="0"), "0.5.0", id="a name that begins with a digit"),
        pytest.param(
            said(node={"path": "/dev/a", "hostPath": "/d/dev/a"}), "0.5.0", id="host path of a node"
        ),
        pytest.param(said() | {"annotations": {"a": "b"}}, "0.6.0", id="annotations"),
        pytest.param(said(device={"additionalGids": [44]}), "0.7.0", id="groups"),
        pytest.param(said(name="0", intelRdt={"closID": "x"}), "0.7.0", id="the highest of several"),
        pytest.param(
            said(netDevices=[{"hostInterfaceName": "a"}]), "1.1.0", id="what we do not know stays as it is"
        ),
    ],
)
def test_the_version_is_the_lowest_that_has_all_of_it(text: dict[str, Any], version: str) -> None:
    assert done(text)["cdiVersion"] == version


def test_groups_are_left_out_where_an_engine_reads_no_version_that_has_them() -> None:
    text = json.dumps(said(device={"additionalGids": [44]}, additionalGids=[44]))

    old = json.loads(specification(text, KIND, (), (0, 6, 0)))
    new = json.loads(specification(text, KIND, (), (0, 7, 0)))

    assert "additionalGids" not in json.dumps(old)
    assert (old["cdiVersion"], new["cdiVersion"]) == ("0.3.0", "0.7.0")
    assert json.dumps(new).count("additionalGids") == 2


def test_what_an_engine_cannot_read_at_all_is_refused() -> None:
    text = json.dumps(said(intelRdt={"closID": "x"}))

    with pytest.raises(
        InstallerError, match=r"it is of version 0\.7\.0, and an engine here reads up to 0\.6\.0"
    ):
        specification(text, KIND, (), (0, 6, 0))


@pytest.mark.parametrize(
    ("moves", "mount", "there", "node", "host_path"),
    [
        pytest.param(
            [(HOST, ROOT)], "/host/lib/a", "/lib/a", "/host/dev/nvidia0", None, id="the host's root"
        ),
        pytest.param(
            [(HOST / "run/nvidia/driver", RUN_DRIVER), (HOST, ROOT)],
            *("/host/run/nvidia/driver/lib/a", "/run/nvidia/driver/lib/a", "/host/dev/nvidia0", None),
            id="a driver's root below it",
        ),
        pytest.param(
            [(HOST, ROOT), (DRIVER, RUN_DRIVER)],
            *(
                "/driver/lib/a",
                "/run/nvidia/driver/lib/a",
                "/driver/dev/nvidia0",
                "/run/nvidia/driver/dev/nvidia0",
            ),
            id="devices of the driver's root",
        ),
        pytest.param(
            [(HOST, ROOT)], "/hostile/lib/a", "/hostile/lib/a", "/dev/nvidia0", None, id="a longer name"
        ),
    ],
)
def test_paths_are_the_hosts(
    moves: list[tuple[PurePosixPath, PurePosixPath]], mount: str, there: str, node: str, host_path: str | None
) -> None:
    text = said(
        node={"path": "/dev/nvidia0", "hostPath": node},
        mounts=[{"hostPath": mount, "containerPath": "/lib/a"}],
    )

    found = done(text, *moves)

    assert found["containerEdits"]["mounts"] == [{"hostPath": there, "containerPath": "/lib/a"}]
    assert found["devices"][0]["containerEdits"]["deviceNodes"][0].get("hostPath") == host_path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "it is no specification in JSON", id="nothing"),
        pytest.param("---\nkind: nvidia.com/gpu\n", "it is no specification in JSON", id="YAML"),
        pytest.param("[" * 100_000, "it is no specification in JSON", id="too deep"),
        pytest.param("[]", "it is no specification in JSON", id="a list"),
        pytest.param(
            '{"devices": [{"name": "0"}], "kind": "nvidia.com/gpu"}',
            "it is no specification in JSON",
            id="no edits",
        ),
        pytest.param(
            json.dumps(said() | {"kind": "b.c/d"}), f"it has no devices of {KIND}", id="another kind"
        ),
        pytest.param(json.dumps(said() | {"devices": []}), f"it has no devices of {KIND}", id="no device"),
        pytest.param(
            json.dumps(said(device={"deviceNodes": []})), "it names no device", id="a device without a node"
        ),
        pytest.param(json.dumps(said(mounts=[])), "it names no file of the driver", id="no library"),
    ],
)
def test_what_is_empty_or_nothing_of_the_kind_is_refused(text: str, why: str) -> None:
    with pytest.raises(InstallerError, match=r"take what nvidia-ctk generates") as caught:
        specification(text, KIND, ())

    assert f"({why})" in caught.value.problem


def test_what_a_specification_names_is_what_has_to_be_there() -> None:
    text = specification(json.dumps(said(node={"path": "/dev/a", "hostPath": "/d/dev/a"})), KIND, ())

    assert named_paths(text) == ("/d/dev/a", "/lib/a")
    assert named_paths("---\n") == named_paths("[]") == named_paths('{"devices": [1]}') == ()
