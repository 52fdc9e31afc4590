from pathlib import Path, PurePosixPath

import pytest

from installer.engines import ENGINES
from installer.engines.startup import explain_overruling, find_place, flags_of, value_of
from installer.host.files import Host
from installer.model.engine_spec import Flags
from installer.model.facts import Started
from installer.model.options import Options


@pytest.mark.parametrize(
    ("cmdline", "value"),
    [
        pytest.param("/usr/bin/containerd --config /opt/c.toml", "/opt/c.toml", id="a word of its own"),
        pytest.param("/usr/bin/containerd --config=/opt/c.toml", "/opt/c.toml", id="behind an equals sign"),
        pytest.param("/usr/bin/containerd -c /opt/c.toml -l debug", "/opt/c.toml", id="short"),
        pytest.param("/usr/bin/containerd --config", "", id="without a value"),
        pytest.param("/usr/bin/containerd --configure x", None, id="another flag"),
        pytest.param("", None, id="nothing to see"),
    ],
)
def test_a_flag_is_read_as_engines_read_it(cmdline: str, value: str | None) -> None:
    assert value_of(cmdline.split(), ("--config", "-c")) == value


@pytest.mark.parametrize(
    ("engine", "cmdline", "config", "state"),
    [
        pytest.param("containerd", "containerd --state /mnt/s", "", "/mnt/s", id="containerd's flag"),
        pytest.param("containerd", "containerd", 'state = "/mnt/s"\n', "/mnt/s", id="containerd's config"),
        pytest.param("containerd", "containerd", "", None, id="the usual place"),
        pytest.param("containerd", "containerd", "state = [", None, id="a config that cannot be read"),
        pytest.param(
            "docker", "dockerd --exec-root=/mnt/d", "", "/mnt/d/containerd/daemon", id="dockerd's flag"
        ),
        pytest.param("crio", "crio", "", None, id="CRI-O keeps none of the kind"),
    ],
)
def test_where_an_engine_keeps_its_state_is_told_by_flag_or_config(
    tmp_path: Path, engine: str, cmdline: str, config: str, state: str | None
) -> None:
    (tmp_path / "config.toml").write_text(config)
    host = Host.under(PurePosixPath(tmp_path))

    found = find_place(host, ENGINES[engine].state, cmdline.split(), PurePosixPath("/config.toml"))

    assert found == (PurePosixPath(state) if state else None)


VARIABLE = "CONTAINER_DEFAULT_RUNTIME"


@pytest.mark.parametrize(
    ("engine", "cmdline", "default", "flags"),
    [
        pytest.param("docker", "dockerd --add-runtime=a=/b", False, ["--add-runtime"], id="more runtimes"),
        pytest.param("docker", "dockerd --default-runtime a", True, ["--default-runtime"], id="a default"),
        pytest.param("docker", "dockerd --default-runtime a", False, [], id="a default, not asked for"),
        pytest.param("docker", "dockerd -H fd://", True, [], id="none of them"),
        pytest.param("crio", "crio --default-runtime=a", False, [], id="a default of CRI-O's, not asked for"),
        pytest.param("crio", "crio --default-runtime=a", True, ["--default-runtime"], id="and asked for"),
        pytest.param("crio", f"crio {VARIABLE}=a", True, [VARIABLE], id="a variable, and asked for"),
        pytest.param("crio", f"crio {VARIABLE}=a", False, [], id="a variable, not asked for"),
        pytest.param("crio", f"crio {VARIABLE}=nvidia", True, [], id="a variable that names ours"),
        pytest.param("containerd", "containerd -l debug", True, [], id="containerd has none"),
    ],
)
def test_a_flag_that_is_stronger_than_the_config_is_reported(
    engine: str, cmdline: str, *, default: bool, flags: list[str]
) -> None:
    found = list(explain_overruling(ENGINES[engine], cmdline.split(), Options(set_as_default=default)))

    assert [flag for flag in flags if any(flag in error.problem for error in found)] == flags
    assert len(found) == len(flags)


@pytest.mark.parametrize(
    ("engine", "cmdline", "environment", "told"),
    [
        pytest.param("docker", "dockerd -H fd://", {}, Flags(), id="nothing"),
        pytest.param("docker", "dockerd --default-runtime=a", {}, Flags("a"), id="a default"),
        pytest.param(
            "docker",
            "dockerd --add-runtime a=/b --add-runtime=c=/d",
            {},
            Flags("", {"a": "/b", "c": "/d"}),
            id="runtimes",
        ),
        pytest.param(
            "crio",
            "crio --default-runtime a",
            {"CONTAINER_DEFAULT_RUNTIME": "b"},
            Flags("a"),
            id="a flag wins",
        ),
        pytest.param("crio", "crio", {"CONTAINER_DEFAULT_RUNTIME": "b"}, Flags("b"), id="a variable"),
        pytest.param(
            "crio",
            "crio --runtimes a:/b:/root,c:/d",
            {},
            Flags("", {"a": "/b", "c": "/d"}),
            id="runtimes of CRI-O",
        ),
        pytest.param("containerd", "containerd --default-runtime a", {}, Flags(), id="none of containerd's"),
    ],
)
def test_what_an_engine_was_told_of_runtimes_at_its_start(
    engine: str, cmdline: str, environment: dict[str, str], told: Flags
) -> None:
    assert flags_of(ENGINES[engine], Started(tuple(cmdline.split()), environment)) == told
