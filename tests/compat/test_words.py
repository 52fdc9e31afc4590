"""Each flag and variable of nvidia.toml: names, precedence, kinds, defaults, errors, and what all come to as options."""

import ast
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import pytest

from installer.cli.flags import FLAGS
from installer.cli.nvidia import PATHS, options_from
from installer.cli.nvidia_flags import ENGINE_OF, FALSE, OWN_ENGINE_ONLY, TRUE, Row, read, rows
from installer.errors import UsageError
from installer.model.options import Cdi, Options, RestartMode
from tests.compat.nvidia import CONFIG, Nvidia
from tests.support.entry import PROJECT

PLAIN = [row for row in rows() if row.kind != "words" and row.name != "runtime"]
# A text of each kind, and what it is read as.
SAMPLES: Mapping[str, tuple[str, Any]] = {
    "bool": ("true", True),
    "text": ("some text", "some text"),
    "number": ("42", 42),
    "list": ("one, two", ["one", "two"]),
}
OTHERS = {"bool": "0", "text": "other", "number": "7", "list": "three"}
OLD = {"TOOLKIT_ARGS": "--driver-root /old --root /old", "DRIVER_ROOT": "/variable"}
# Only asked for by our own verbs: the mode, an undo while containers run on our runtimes, what monitoring is told, NRI.
OWN_ALONE = {"mode", "in-use", "metrics-textfile", "metrics-listen", "nfd-features"} | {
    f"nri-{each}" for each in ("allow", "name", "index")
}


def _for(row: Row, variable: str) -> str:
    """Return an engine for which a variable counts."""
    return ENGINE_OF.get(variable.partition("_")[0], "docker") if row.name in OWN_ENGINE_ONLY else "docker"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", CONFIG)
def test_what_nobody_says_has_its_default(engine: str) -> None:
    asked = read([], {"RUNTIME": engine})

    assert {row.name: asked[row.name] for row in PLAIN} == {
        row.name: row.default_for(engine) for row in PLAIN
    }
    assert [row.name for row in PLAIN if asked.given(row.name)] == []


def test_every_name_is_taken_with_one_dash_or_two_and_beats_every_variable() -> None:
    for row in PLAIN:
        text, value = SAMPLES[row.kind]
        for flag in (f"{dash}{name}" for name in row.names for dash in ("-", "--")[: len(name)]):
            for words in ([f"{flag}={text}"], [flag] if row.kind == "bool" else [flag, text]):
                asked = read(words, dict.fromkeys(row.env, OTHERS[row.kind]))

                assert (asked[row.name], asked.settings[row.name].by) == (value, flag), words


def test_the_first_variable_that_is_set_counts() -> None:
    variables = [(row, *place) for row in PLAIN for place in enumerate(row.env)]
    for row, place, variable in variables:
        text, value = SAMPLES[row.kind]
        later = dict.fromkeys(row.env[place + 1 :], OTHERS[row.kind])

        asked = read([], {"RUNTIME": _for(row, variable), **later, variable: text})

        assert (asked[row.name], asked.settings[row.name].by) == (value, variable)


def test_an_empty_variable_counts_and_hides_the_later_ones_with_a_warning() -> None:
    for row in (row for row in PLAIN if row.env):
        first, *later = row.env
        empty = {"bool": False, "text": ""}.get(row.kind, row.default_for("docker"))

        asked = read([], {first: "", **dict.fromkeys(later, SAMPLES[row.kind][0])})

        assert asked[row.name] == empty, row.name
        assert asked.given(row.name)
        assert [f"{name} is ignored: {first} is set, although empty, and comes first" for name in later] == [
            warning for warning in asked.warnings if "although empty" in warning
        ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(OWN_ENGINE_ONLY))
@pytest.mark.parametrize("engine", CONFIG)
def test_a_path_for_another_engine_does_not_count(name: str, engine: str) -> None:
    row = next(row for row in rows() if row.name == name)
    mine = {None, engine}
    others = {each: "/x" for each in row.env if ENGINE_OF.get(each.partition("_")[0]) not in mine}

    assert others
    assert read([], {"RUNTIME": engine, **others})[name] == row.default_for(engine)


def test_a_bool_is_one_of_twelve_words() -> None:
    for word in TRUE | FALSE:
        for asked in (read([f"--no-daemon={word}"], {}), read([], {"NO_DAEMON": word})):
            assert asked["no-daemon"] is (word in TRUE), word
    for word in ("yes", " true", "TrUe", "2"):
        with pytest.raises(UsageError, match="neither true nor false"):
            read([], {"NO_DAEMON": word})


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "environment", "name", "value"),
    [
        ("--no-daemon", {"NO_DAEMON": "x"}, "no-daemon", True),
        ("--root /a --toolkit-install-dir=/b", {}, "toolkit-install-dir", "/b"),
        ("", OLD, "driver-root", "/old"),
        ("--root /b", OLD, "toolkit-install-dir", "/b"),
        ("/a", {"ROOT": "/b"}, "toolkit-install-dir", "/a"),
        ("/a --root /b", {}, "toolkit-install-dir", "/b"),
        ("--config-source=a --config-sources b,c=/x", {}, "config-source", ["a", "b", "c=/x"]),
    ],
)
def test_what_is_said_twice_counts_once_and_a_list_is_appended_to(
    words: str, environment: dict[str, str], name: str, value: object
) -> None:
    assert read(words.split(), environment)[name] == value


def test_a_misspelt_variable_is_told_and_foreign_ones_are_not() -> None:
    said = {"foo": "bar", "NVIDIA_VISIBLE_DEVICES": "void", "HOST_ROOT": "/", "RUNTIME_CONFG": "/x"}

    assert {*read(["/a", "--root", "/b"], said).warnings} == {
        "/a is ignored: --root says where to install",
        "the variable RUNTIME_CONFG is not known: is RUNTIME_CONFIG meant?",
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--nope"], "there is no such flag"),
        (["--root"], "it needs a value"),
        (["--nri-plugin-index", "ten"], "it is no number"),
        (["--toolkit-args", "'x"], "no closing quotation"),
        (["--toolkit-args", "--nope"], "there is no such flag"),
        (["-r", "podman"], "configure the runtime 'podman'"),
        (["usr/local/nvidia"], "install into 'usr/local/nvidia' .it is not an absolute path"),
        (["--root", "/a", "b"], "install into 'b' .it is not an absolute path"),
        (["--", "-x"], "install into '-x' .it is not an absolute path"),
        (["/opt/x", "opt/y"], "take the argument 'opt/y' .one directory is all there can be"),
    ],
)
def test_a_flag_or_argument_that_makes_no_sense_is_an_error(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read(words, {})


@pytest.mark.parametrize("flag", PATHS)
def test_a_relative_path_is_refused_whichever_flag_has_it(flag: str) -> None:
    with pytest.raises(UsageError, match="use the path rel"):
        options_from(read([f"--{flag}", "rel"], {}))


def test_help_and_version_are_asked_for() -> None:
    words = {"-h": "help", "--help": "help", "help": "help", "-v": "version", "--version": "version"}

    assert {word: read([word], {}).special for word in words} == words


def test_the_form_of_2021_is_read_without_a_shell() -> None:
    asked = read(
        ["/opt/nvidia", "-n", "-t", "--nvidia-container-runtime-debug '/var/log/a b.log'"],
        {
            "RUNTIME": "containerd",
            "RUNTIME_ARGS": "-s /run/k3s/containerd.sock --set-as-default=false -c $(id)",
            "CONTAINERD_RESTART_MODE": "NONE",
        },
    )

    expected = {
        "toolkit-install-dir": "/opt/nvidia",
        "no-daemon": True,
        "nvidia-container-runtime.debug": "/var/log/a b.log",
        "socket": "/run/k3s/containerd.sock",
        "set-as-default": False,
        "config": "$(id)",
        "restart-mode": "NONE",
    }
    assert {name: asked[name] for name in expected} == expected


def _options(**variables: str) -> Options:
    return options_from(read([], {"HOST_ROOT_MOUNT": "/nowhere", **variables}))


def test_the_operators_places_are_the_hosts_where_no_root_is_mounted() -> None:
    options = _options(
        RUNTIME="containerd",
        RUNTIME_CONFIG="/runtime/config-dir/config.toml",
        RUNTIME_DROP_IN_CONFIG="/runtime/config-dir.d/99-nvidia.toml",
        RUNTIME_DROP_IN_CONFIG_HOST_PATH="/etc/k/conf.d/99-nvidia.toml",
        RUNTIME_SOCKET="/runtime/sock-dir/containerd.sock",
    )

    places = options.places["containerd"]
    assert str(places.config) == "/etc/containerd/config.toml"
    assert str(places.drop_in) == "/etc/k/conf.d/99-nvidia.toml"
    assert str(places.socket) == "/run/containerd/containerd.sock"
    assert {str(host): str(here) for host, here in options.mounts} == {
        "/etc/containerd": "/runtime/config-dir",
        "/etc/k/conf.d": "/runtime/config-dir.d",
        "/run/containerd": "/runtime/sock-dir",
    }


def test_with_nri_the_namespaces_get_the_kind_of_the_specification_and_nothing_else() -> None:
    more = {"NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES": "dra, gpu-operator", "NRI_PLUGIN_INDEX": "7"}
    asked = {"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "gpu-operator", "RUNTIME": "containerd", **more}

    options = _options(NRI_SOCKET="/runtime/nri-sock-dir/nri.sock", **asked)

    assert (options.engines, options.serves_nri) == ((), True)
    assert (str(options.nri.socket), options.nri.identity.order) == ("/var/run/nri/nri.sock", "07")
    allowed = [f"{namespace}=management.nvidia.com/gpu" for namespace in ("gpu-operator", "dra")]
    assert [*map(str, options.nri.allowed)] == allowed
    assert not _options(NO_DAEMON="true", **asked).serves_nri


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("engine", "said", "mode"),
    [
        ("docker", "signal", RestartMode.AUTO),
        ("containerd", "signal", RestartMode.AUTO),
        ("containerd", "systemd", RestartMode.AUTO),
        ("docker", "NONE", RestartMode.NONE),
    ],
)
def test_a_restart_mode_is_what_an_engine_survives(engine: str, said: str, mode: RestartMode) -> None:
    assert _options(RUNTIME=engine, RUNTIME_RESTART_MODE=said).restart_mode is mode


SPECIFICATIONS = PurePosixPath("/var/run/cdi")
# A driver root and a device root, each as the host and as we have it.
DRIVERS = ("/run/nvidia/driver",) * 4
HOSTS = {"DRIVER_ROOT": "/", "DRIVER_ROOT_CTR_PATH": "/host", "DEV_ROOT": "/dev-root"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("variables", "cdi"),
    [
        ({}, None),
        ({"CDI_ENABLED": "true", "CDI_OUTPUT_DIR": ""}, None),
        ({"CDI_ENABLED": "true"}, Cdi(SPECIFICATIONS, "management.nvidia.com/gpu", *DRIVERS, nodes=True)),
        (
            {"CDI_ENABLED": "true", "CREATE_DEVICE_NODES": "control,none"},
            Cdi(SPECIFICATIONS, "management.nvidia.com/gpu", *DRIVERS, nodes=False),
        ),
        (
            {"ENABLE_CDI": "1", "CDI_KIND": "a.b/cd", "CREATE_DEVICE_NODES": "none", **HOSTS},
            Cdi(SPECIFICATIONS, "a.b/cd", "/", "/host", "/dev-root", "/host", nodes=False),
        ),
    ],
    ids=["off", "no directory", "the defaults", "no device nodes", "a driver on the host"],
)
def test_cdi_is_asked_for_as_nvidias_variables_say(variables: dict[str, str], cdi: Cdi | None) -> None:
    options = _options(**variables)

    assert options.cdi == cdi
    assert options.extras.cdi is (cdi is not None)


def test_each_option_of_a_remedy_is_one_of_both_command_lines() -> None:
    shared = [path for path in (PROJECT / "installer").rglob("*.py") if path.parent.name != "cli"]
    nodes = [node for path in shared for node in ast.walk(ast.parse(path.read_text()))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Option"]
    named = {each.value for each in (call.args[0] for call in calls) if isinstance(each, ast.Constant)}

    assert len(named) > 5
    assert named - {flag.name.removeprefix("--") for flag in FLAGS} == set()
    assert named - {name for row in rows() for name in (row.own, *row.names)} == OWN_ALONE


def test_a_refusal_of_nvidias_entry_point_speaks_its_words(docker: Nvidia) -> None:
    (docker.source / "usr/local/sbin/nvidia-ctk").unlink()

    assert docker.refused()

    remedy = docker.events[-1]["remedy"]
    assert "--toolkit-source-root (TOOLKIT_SOURCE_ROOT)" in remedy
    assert "--toolkit-source " not in remedy
