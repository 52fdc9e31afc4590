"""A specification: what becomes of the text of nvidia-ctk, and what engines make of one of somebody else."""

import json
import re
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from installer.cdi.specification import DEPTH, SIZE, named_paths, read_devices, read_yaml, specification
from installer.errors import InstallerError
from installer.host.files import text_of
from installer.model.files import File, Meta
from tests.support.specifications import READ, UNREAD, YAML

KIND = "nvidia.com/gpu"
GROUPS: dict[str, Any] = {"additionalGids": [44]}


NODE: dict[str, Any] = {"path": "/dev/nvidia0"}
MOVED_NODE: dict[str, Any] = {"path": "/dev/a", "hostPath": "/d/dev/a"}


def said(
    *, name: str = "gpu0", node: dict[str, Any] = NODE, device: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    edits = {"mounts": [{"hostPath": "/lib/a", "containerPath": "/lib/a"}], **more}
    one = {"name": name, "containerEdits": {"deviceNodes": [node], **(device or {})}}
    return {"cdiVersion": "1.1.0", "kind": KIND, "devices": [one], "containerEdits": edits}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param(said(name="0"), "0.5.0", id="a name that begins with a digit"),
        pytest.param(said(node=MOVED_NODE), "0.5.0", id="host path of a node"),
        pytest.param(said(device=GROUPS), "0.7.0", id="groups"),
        pytest.param(said(name="0", intelRdt={"closID": "x"}), "0.7.0", id="the highest of several"),
        pytest.param(said(netDevices=[{"hostInterfaceName": "a"}]), "1.1.0", id="what we do not know stays"),
    ],
)
def test_the_version_is_the_lowest_that_has_all_of_it(text: dict[str, Any], version: str) -> None:
    assert json.loads(specification(json.dumps(text), KIND, ()))["cdiVersion"] == version


def test_groups_are_left_out_where_an_engine_reads_no_version_that_has_them_and_all_else_is_refused() -> None:
    text = json.dumps(said(device=GROUPS, **GROUPS))

    old, new = (specification(text, KIND, (), (0, minor, 0)) for minor in (6, 7))

    assert (json.loads(old)["cdiVersion"], old.count("additionalGids")) == ("0.3.0", 0)
    assert (json.loads(new)["cdiVersion"], new.count("additionalGids")) == ("0.7.0", 2)
    words = r"it is of version 0\.7\.0, and an engine here reads up to 0\.6\.0"
    with pytest.raises(InstallerError, match=words):
        specification(json.dumps(said(intelRdt={"closID": "x"})), KIND, (), (0, 6, 0))


@pytest.mark.parametrize(
    ("mount", "there", "node", "host_path"),
    [
        pytest.param("/host/lib/a", "/lib/a", "/host/dev/nvidia0", None, id="the host's root"),
        pytest.param("/driver/a", "/run/d/a", "/driver/dev/x", "/run/d/dev/x", id="the driver's root"),
        pytest.param("/hostile/a", "/hostile/a", "/dev/nvidia0", None, id="a longer name"),
    ],
)
def test_paths_are_the_hosts(mount: str, there: str, node: str, host_path: str | None) -> None:
    moves = [(PurePosixPath(here), PurePosixPath(to)) for here, to in (("/host", "/"), ("/driver", "/run/d"))]
    text = said(node=NODE | {"hostPath": node}, mounts=[{"hostPath": mount, "containerPath": "/lib/a"}])

    found = json.loads(specification(json.dumps(text), KIND, moves))

    assert found["containerEdits"]["mounts"] == [{"hostPath": there, "containerPath": "/lib/a"}]
    assert found["devices"][0]["containerEdits"]["deviceNodes"][0].get("hostPath") == host_path


NO_JSON = "it is no specification in JSON"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", NO_JSON, id="nothing"),
        pytest.param(json.dumps(said() | {"kind": "b.c/d"}), f"it has no devices of {KIND}", id="other kind"),
        pytest.param(json.dumps(said() | {"devices": []}), f"it has no devices of {KIND}", id="no device"),
        pytest.param(json.dumps(said(device={"deviceNodes": []})), "it names no device", id="without a node"),
        pytest.param(json.dumps(said(mounts=[])), "it names no file of the driver", id="no library"),
    ],
)
def test_what_is_empty_or_nothing_of_the_kind_is_refused(text: str, why: str) -> None:
    with pytest.raises(InstallerError, match=r"take what nvidia-ctk generates") as caught:
        specification(text, KIND, ())

    assert f"({why})" in caught.value.problem


def test_what_a_specification_names_is_what_has_to_be_there() -> None:
    text = specification(json.dumps(said(node=MOVED_NODE)), KIND, ())

    assert named_paths(text) == ("/d/dev/a", "/lib/a")
    assert named_paths("---\n") == named_paths("[]") == named_paths('{"devices": [1]}') == ()


# Of somebody else. The images have the library's parser in C; elsewhere it may be that in Python.


@pytest.fixture(params=["C", "Python"])
def in_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    assert hasattr(yaml, "CBaseLoader")
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CBaseLoader")
    return bool(request.param == "C")


def _has(text: str | bytes) -> bool:
    """Tell whether the text has devices for containerd 2.1.9."""
    content = text.encode() if isinstance(text, str) else text
    return bool(read_devices(text_of(File(content, Meta())), KIND, (1, 0, 0)))


def _refused(text: str | bytes) -> bool:
    """Tell whether it is refused in a sentence; engines may read it."""
    try:
        _has(text)
    except InstallerError as error:
        return error.problem.startswith("read a CDI specification (it has ")
    return False


# What is refused in a sentence has one of these: a tag, an alias or anchor, a merge, a directive, `\\/`.
SIGN = re.compile(r"!|[&*]\w|<<|%|\\/")
# Nobody writes these: a kind that no search finds, and words that are no numbers where numbers belong.
ENCODED = {"in base 64"}
UNKNOWN = re.compile(r"a directive that nobody knows|number .*|rdt .*enableCMT: 1")
# JSON of tabs, and words with tabs behind them: PyYAML without its parser in C reads none of them.
TABS = {"a tab behind the colon", "JSON with tabs"}


def test_what_containerd_reads_gives_devices_and_nothing_else(*, in_c: bool) -> None:
    refused = {name for name, text in (READ | UNREAD).items() if _refused(text)}

    unread = {name for name, text in READ.items() if name not in refused and not _has(text)}
    assert unread == ENCODED | (set() if in_c else TABS)
    read = {name for name, text in UNREAD.items() if name not in refused and _has(text)}
    assert [name for name in read if not UNKNOWN.fullmatch(name)] == []
    assert all(SIGN.search(str(each)) for name, each in (READ | UNREAD).items() if name in refused)


DEEPER = YAML.replace(KIND, "foo.com/gpu") + f"annotations:\n  kind: {KIND}\n"
HAS_NOT = {
    "the kind of a deeper table": DEEPER.replace("0.5.0", "0.6.0"),  # which has annotations
    "management's": YAML.replace(KIND, "management.nvidia.com/gpu"),
    "a version that nobody reads": YAML.replace("0.5.0", "9.9.0"),
    "no version": YAML.partition("\n")[2],
    "the second of two documents, which nobody reads": f"{YAML.replace(KIND, 'a.b/c')}---\n{YAML}",
}


def test_only_what_an_engine_reads_or_may_read_in_a_later_release_gives_devices_of_a_kind() -> None:
    assert [name for name, text in HAS_NOT.items() if _has(text)] == []
    assert read_devices(YAML.replace("0.5.0", "9.9.0") + "later: 1\n", KIND)


MEANS: dict[str, Any] = {
    "a: {b: [c, 'd']}\ne: |\n  f\n": {"a": {"b": ["c", "d"]}, "e": "f\n"},
    "# a": None,
    "a: b\n...\n[[[\n": {"a": "b"},
    "\ufeffa: b\n": {"a": "b"},
    "[~, null, NULL, Null, 'null', nULL, ]": [None, None, None, None, "null", "nULL"],
    "a: {'<<': b}\n": {"a": {"<<": "b"}},  # in quotes nothing is merged
    "# " + "x" * (SIZE - 2): None,
}


@pytest.mark.usefixtures("in_c")
def test_yaml_scalars_have_the_values_that_engines_read() -> None:
    assert {text: read_yaml(text) for text in MEANS} == MEANS
    assert read_yaml("[" * DEPTH + "]" * DEPTH)


@pytest.mark.usefixtures("in_c")
def test_what_engines_refuse_is_refused() -> None:
    """Half a character and one past the last too, and what is no UTF-8, in a comment."""
    odd = 'a: "\\ud800"\n', 'a: "\\U00110000"\n', "# \ufffd\na: b\n"
    for text in ("a: [b\n", "a: b\n  c: d\n", "a: b\na: c\n", "{a: b, 'a': c}\n", "~: a\n", *odd):
        with pytest.raises((TypeError, ValueError)):
            read_yaml(text)


OUT_OF_BOUNDS = {
    "# " + "x" * SIZE: "1 MiB",
    "[" * (DEPTH + 1): "32 levels",
    "a: &x b\nc: *x\n": "an alias or a tag",
    "a: !!int b\n": "an alias or a tag",
    "a:\n  <<: {b: c}\n": "merged",
    'a: "b\\/c"\n': "a slash",
    "%YAML 1.2\n---\na: b\n": "directives",
}


@pytest.mark.usefixtures("in_c")
def test_what_is_out_of_bounds_is_refused_in_a_sentence() -> None:
    for text, reason in OUT_OF_BOUNDS.items():
        with pytest.raises(InstallerError) as refused:
            read_yaml(text)

        assert refused.value.problem.startswith("read a CDI specification (")
        assert reason in refused.value.problem
