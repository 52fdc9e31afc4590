"""Which names count in a directory that an engine reads by a pattern, and what it made of its configs itself."""

from pathlib import Path, PurePosixPath

import pytest

from installer.engines.config_files import explain_unread, with_configs
from installer.engines.k0s import DIRECTORY, K0S, MERGED
from installer.engines.microk8s import ARGS, MICROK8S, RENDERED
from installer.host.files import Host
from installer.model.engine_spec import EngineSpec
from installer.model.facts import EngineState


def _facts(engine: EngineSpec, drop_in: PurePosixPath | None = None) -> EngineState:
    drop_in = drop_in or engine.drop_ins.usual
    return EngineState(engine.name, engine.config, drop_in, None, (), engine.socket, engine.unit)


def _host(root: Path, texts: dict[PurePosixPath, str]) -> Host:
    for path, text in texts.items():
        place = root / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return Host.under(PurePosixPath(root))


def test_names_beside_the_pattern_and_below_the_directory_are_not_read(tmp_path: Path) -> None:
    root = f'imports = ["{DIRECTORY}/other.toml", "{MERGED}"]\n'
    names = ("gvisor.toml", "other.toml", "notes.txt", "certs.d/docker.io/hosts.toml")
    texts = {K0S.config: root, MERGED: "", **{DIRECTORY / name: "" for name in names}}

    found = with_configs(_host(tmp_path, texts), _facts(K0S))

    beside = (DIRECTORY / "gvisor.toml", K0S.drop_ins.usual, DIRECTORY / "other.toml")
    assert found.files == (K0S.config, *beside)
    assert found.rendered is not None


def test_what_was_rendered_is_read_and_is_no_config(tmp_path: Path) -> None:
    texts = {MICROK8S.config: "version = 2\n", ARGS / RENDERED: "# made of it\n"}

    found = with_configs(_host(tmp_path, texts), _facts(MICROK8S))

    assert found.files == (MICROK8S.config,)
    assert found.rendered is not None
    assert found.rendered.content == b"# made of it\n"


@pytest.mark.parametrize("name", ["nvidia.conf", "more/nvidia.toml", "../nvidia.toml"])
def test_a_drop_in_that_is_not_read_is_refused_with_one_that_is(tmp_path: Path, name: str) -> None:
    host = _host(tmp_path, {K0S.config: "", DIRECTORY / "more/x": ""})

    (refusal,) = explain_unread(host, _facts(K0S, DIRECTORY / name))

    assert f"(it reads {DIRECTORY}/*.toml)" in refusal.problem
    assert not list(explain_unread(host, _facts(K0S, DIRECTORY / "a.toml")))
