"""Which runtimes an engine serves that its next start takes away, or changes."""

from pathlib import PurePosixPath

import pytest

from installer.engines.reloading import explain_stale_runtimes
from installer.model.engine_spec import EffectiveConfig, Runtime
from installer.model.facts import EngineState

SERVED = {"nvidia": Runtime("/toolkit/nvidia"), "gone": Runtime("/opt/gone"), "other": Runtime("/opt/new")}
DEFINED = {"other": Runtime("/opt/old")}


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        pytest.param(("nvidia",), ["gone, which is not", "other, which is not"], id="those of others"),
        pytest.param(("nvidia", "gone", "other"), [], id="none of ours"),
    ],
)
def test_what_the_next_start_takes_from_others_is_told_and_ours_is_not(
    ours: tuple[str, ...], told: list[str]
) -> None:
    path = PurePosixPath("/etc/docker/daemon.json")
    places = (path, None, None, (path,), PurePosixPath("/run/docker.sock"), "docker.service")
    engine = EngineState("docker", *places, serving=EffectiveConfig(SERVED, "runc"))

    said = list(explain_stale_runtimes(engine, EffectiveConfig(DEFINED, "runc"), ours))

    assert len(said) == len(told)
    assert all(f"Docker serves the runtime {words}" in line for words, line in zip(told, said, strict=True))
