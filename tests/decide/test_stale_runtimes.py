"""Which runtimes an engine serves that its next start takes away, or changes."""

from pathlib import PurePosixPath

import pytest

from installer.decide.effect import Effect, Handler
from installer.decide.facts import EngineFacts
from installer.decide.reloading import stale_runtimes

SERVED = {"nvidia": Handler("/toolkit/nvidia"), "gone": Handler("/opt/gone"), "other": Handler("/opt/new")}
DEFINED = {"other": Handler("/opt/old")}


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
    engine = EngineFacts("docker", *places, serving=Effect(SERVED, "runc"))

    said = list(stale_runtimes(engine, Effect(DEFINED, "runc"), ours))

    assert len(said) == len(told)
    assert all(f"Docker serves the runtime {words}" in line for words, line in zip(told, said, strict=True))
