"""What becomes of the text of nvidia-ctk: the host's paths, the lowest version, and nothing that is empty."""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from installer.decide.errors import InstallerError
from installer.decide.specification import has_devices, named, specification

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

    assert named(text) == ("/d/dev/a", "/lib/a")
    assert named("---\n") == named("[]") == named('{"devices": [1]}') == ()


YAML = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits: {}\n"
FLOW = "{cdiVersion: 0.5.0, kind: nvidia.com/gpu, devices: [{name: '0'}]}"
DEEPER = "cdiVersion: 0.5.0\nkind: foo.com/gpu\ndevices:\n- name: a\n  x:\n    kind: nvidia.com/gpu\n"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        pytest.param(YAML, True, id="YAML"),
        pytest.param(f"---\n{YAML}", True, id="a document of YAML"),
        pytest.param(YAML.replace(KIND, f"'{KIND}' # mine"), True, id="in quotes, with a comment"),
        pytest.param(YAML.replace("kind:", '"kind" :'), True, id="a key in quotes"),
        pytest.param(YAML.replace(KIND, f">-\n  {KIND}"), True, id="folded"),
        pytest.param(YAML.replace(KIND, '"nvidia.com\\u002fgpu"'), True, id="a letter by its number"),
        pytest.param("".join(f"  {line}\n" for line in YAML.splitlines()), True, id="indented"),
        pytest.param(json.dumps(said()), True, id="JSON"),
        pytest.param(json.dumps(said(), indent=2), True, id="JSON with blanks"),
        pytest.param("".join(f"# {line}\n" for line in YAML.splitlines()), False, id="comments alone"),
        pytest.param(DEEPER, False, id="the kind of a deeper table"),
        pytest.param(json.dumps({**said(), "kind": "management.nvidia.com/gpu"}), False, id="management's"),
        pytest.param(YAML.replace(KIND, f"k8s.device-plugin.{KIND}"), False, id="the device plugin's"),
        pytest.param(json.dumps({**said(), "devices": []}), False, id="no devices in JSON"),
        pytest.param(YAML.partition("- name")[0], False, id="no devices in YAML"),
        pytest.param(f"{YAML.partition('devices')[0]}devices: []\n", False, id="an empty list in YAML"),
        pytest.param(YAML.replace("0.5.0", "9.9.0"), False, id="a version that nobody reads"),
        pytest.param(YAML.partition("\n")[2], False, id="no version"),
        pytest.param("", False, id="empty"),
        pytest.param("null", False, id="nothing"),
        pytest.param("[" * 100_000, False, id="too deep"),
        pytest.param(FLOW, True, id="in braces"),
        pytest.param(f"--- {FLOW}\n", True, id="in braces behind the mark of a document"),
        pytest.param(FLOW.replace(", ", ",\n\t# mine\n\t"), True, id="in braces, over lines, with comments"),
        pytest.param(FLOW.replace("kind", '"kind"').replace(KIND, f"'{KIND}'"), True, id="braces and quotes"),
        pytest.param(json.dumps(said()).replace("{", "{ # mine\n", 1), True, id="JSON with a comment"),
        pytest.param(json.dumps(said(), indent="\t")[:-1] + ",}", True, id="JSON with a comma too many"),
        pytest.param(FLOW.replace(KIND, "a.b/c"), False, id="another kind in braces"),
        pytest.param(FLOW.replace("[{name: '0'}]", "[]"), False, id="no devices in braces"),
        pytest.param(
            "{a: {kind: nvidia.com/gpu, devices: [1], cdiVersion: 0.5.0}}", False, id="deeper braces"
        ),
        pytest.param(f"{YAML}x: {{kind: b.c/d}}\n", True, id="braces in a block"),
        pytest.param(
            YAML.replace("devices:\n", "devices: [{\n").replace("- name: '0'", "name: a}]"),
            True,
            id="a list in braces in a block",
        ),
        pytest.param(YAML.replace(KIND, f"&kind {KIND}"), True, id="with an anchor"),
        pytest.param(YAML.replace(KIND, f"!!str {KIND}"), True, id="with a tag"),
        pytest.param(f"a: &kind {KIND}\n{YAML.replace(KIND, '*kind')}", None, id="by an alias"),
        pytest.param(f"<<: {{kind: {KIND}}}\n{YAML.replace('kind', 'x')}", None, id="merged from elsewhere"),
        pytest.param(f"? kind\n: {KIND}\n{YAML.replace('kind', 'x')}", None, id="a key with a question mark"),
        pytest.param(f"{FLOW[:-1]}", None, id="braces that do not end"),
        pytest.param(f"{FLOW} {FLOW}", None, id="something behind the braces"),
        pytest.param("{kind: 'nvidia.com/gpu", None, id="a quote that does not end"),
        pytest.param("{kind: 'management.example.com/gpu", False, id="not understood, and of another kind"),
        pytest.param(f"{YAML}---\n{DEEPER}", True, id="the first of two documents"),
        pytest.param(f"{DEEPER}---\n{YAML}", False, id="the second of two documents, which nobody reads"),
        pytest.param(f"%YAML 1.2\n---\n{YAML}...\n", True, id="a directive, and the mark of an end"),
        pytest.param(YAML.replace("kind: ", "kind:\t"), True, id="a tab behind the colon"),
        pytest.param(YAML.replace("kind", "Kind").replace("cdiV", "CDIV"), True, id="keys in another case"),
        pytest.param("\ufeff" + YAML, True, id="a byte order mark"),
        pytest.param(YAML.replace("\n", "\r\n"), True, id="lines of Windows"),
        pytest.param(YAML.replace("0.5.0", "'v0.5.0'"), True, id="a version with its letter"),
    ],
)
def test_only_what_an_engine_reads_gives_devices_of_a_kind(text: str, *, has: bool | None) -> None:
    assert has_devices(text, KIND, (1, 1, 0)) is has


@pytest.mark.parametrize("style", [None, True, False], ids=["mixed", "in braces", "in lines"])
@pytest.mark.parametrize("width", [20, 1000], ids=["folded", "wide"])
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="its own"),
        pytest.param({"kind": "k8s.device-plugin.nvidia.com/gpu"}, id="another kind"),
        pytest.param({"devices": []}, id="no device"),
        pytest.param(
            {"annotations": {"kind": "a: b", "x": 'it\'s # "none"'}}, id="words that look like marks"
        ),
        pytest.param({"annotations": {"x": "{[,]}: *a &b !c"}}, id="marks in a word"),
    ],
)
def test_whatever_a_library_makes_of_a_specification_is_read_as_it_was(
    more: dict[str, Any], *, style: bool | None, width: int
) -> None:
    meant = {**said(env=["A=b: c", "B=#d"]), **more}

    text = yaml.safe_dump(meant, default_flow_style=style, width=width)

    assert has_devices(text, KIND) is (meant["kind"] == KIND and bool(meant["devices"]))
