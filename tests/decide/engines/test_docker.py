"""Docker: what daemon.json should say, and what no daemon.json may say."""

import json

import pytest

from installer.config_text import Value
from installer.errors import InstallerError
from tests.decide.engines.configs import NVIDIA, at, decided, result


def entry_after(entry: str, *, name: str = "nvidia") -> Value:
    text = f'{{"runtimes": {{"{name}": {entry}}}}}'
    return at(result(decided("docker", text, name=name), text=text), "runtimes", name)


@pytest.mark.parametrize(
    ("entry", "after"),
    [
        pytest.param(
            '{"Path": "/b/x", "path": "/b/y"}', {"Path": NVIDIA, "path": NVIDIA}, id="both spellings"
        ),
        pytest.param("{}", {"path": NVIDIA, "args": []}, id="an empty entry is a new one"),
        pytest.param("null", {"path": NVIDIA, "args": []}, id="no entry is a new one"),
    ],
)
def test_an_entry_of_our_name_becomes(entry: str, after: Value) -> None:
    assert entry_after(entry) == after


@pytest.mark.parametrize(
    ("entry", "starts"),
    [
        pytest.param('{"Path": "/b/x"}', "/b/x", id="by a path in capitals"),
        pytest.param('{"runtimeType": "io.containerd.kata.v2"}', "io.containerd.kata.v2", id="by a shim"),
    ],
)
def test_a_name_that_another_runtime_has_is_refused(entry: str, starts: str) -> None:
    with pytest.raises(InstallerError) as refusal:
        entry_after(entry, name="gpu")

    assert str(refusal.value) == (
        f"cannot use /etc/docker/daemon.json (a runtime named gpu is there already and starts {starts}); "
        "choose another name with --runtime-name"
    )


def test_a_chosen_name_that_is_ours_already_may_stay() -> None:
    assert entry_after('{"path": "/opt/old/nvidia-container-runtime"}', name="gpu") == {"path": NVIDIA}


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        pytest.param('{"runtimes": {"a b": 1}}', 'runtimes."a b" is a number where', id="any entry"),
        pytest.param('{"runtimes": {"x": {"Path": 1}}}', "runtimes.x.Path is a number where", id="path"),
        pytest.param(
            '{"runtimes": {"x": {"runtimeType": []}}}', "runtimes.x.runtimeType is an array where", id="type"
        ),
        pytest.param(
            '{"runtimes": {"x": {"options": 1}}}', "runtimes.x.options is a number where", id="options"
        ),
        pytest.param('{"default-runtime": true}', "default-runtime is a boolean where", id="default"),
    ],
)
def test_a_wrong_type_is_refused_by_its_key(text: str, flaw: str) -> None:
    with pytest.raises(InstallerError) as refusal:
        decided("docker", text)

    assert str(refusal.value).startswith(f"cannot use /etc/docker/daemon.json ({flaw}")


@pytest.mark.parametrize("ours", [True, False])
def test_a_default_that_nobody_defines_is_refused_also_where_ours_takes_its_place(*, ours: bool) -> None:
    with pytest.raises(InstallerError, match='its default-runtime "youki" is not defined'):
        decided("docker", '{"default-runtime": "youki"}', default=ours)


@pytest.mark.parametrize(
    "default",
    [
        pytest.param("runc", id="built in"),
        pytest.param("io.containerd.runc.v2", id="a shim"),
    ],
)
def test_a_default_needs_no_definition_that_is(default: str | None) -> None:
    text = json.dumps({"default-runtime": default})

    assert at(result(decided("docker", text), text=text), "default-runtime") == default


@pytest.mark.parametrize(
    ("entry", "starts"),
    [
        ({"path": "/a"}, "/a"),
        ({"path": "/a", "runtimeType": ""}, "/a"),
        ({"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/b"}}, "/b"),
        ({"runtimetype": "io.containerd.runc.v2", "OPTIONS": {"binaryname": "/b"}}, "/b"),
        ({"runtimeType": "io.containerd.runc.v2", "options": {"Root": "/r"}}, None),
        ({"runtimeType": "io.containerd.runc.v2"}, None),
        ({"runtimeType": "io.containerd.kata.v2", "options": {"BinaryName": "/b"}}, None),
        ({}, None),
    ],
)
def test_what_a_runtime_starts_is_its_path_or_what_a_shim_of_runc_is_told(
    entry: dict[str, Value], starts: str | None
) -> None:
    text = json.dumps({"runtimes": {"its-own": entry}, "default-runtime": "its-own"})

    found = decided("docker", text).low_level

    assert found == (*([starts] if starts else []), "runc", "crun")
