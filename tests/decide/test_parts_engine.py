"""What is held of an engine once it is installed."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_install
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import EngineRow, Record
from tests.decide.golden import Case, cases

CASE: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
SOCKET = PurePosixPath("/s")
DOCKERS = EngineRow("docker", SOCKET, "docker.service", {}, PurePosixPath("/docker"))
ITS = EngineRow("containerd", SOCKET, "containerd.service", {}, PurePosixPath("/before"))


@pytest.mark.parametrize(
    ("serving", "held", "state"),
    [
        (None, (), None),
        (None, (DOCKERS,), None),
        (None, (DOCKERS, ITS), "/before"),
        (EffectiveConfig({}, "runc"), (DOCKERS, ITS), "/before"),
        (EffectiveConfig({}, "runc", state=PurePosixPath("/now")), (DOCKERS, ITS), "/now"),
    ],
)
def test_where_its_containers_are_it_tells_or_has_told(
    serving: EffectiveConfig | None, held: tuple[EngineRow, ...], state: str | None
) -> None:
    facts = CASE.facts(CASE.before, Record(), {})
    engines = tuple(replace(engine, serving=serving) for engine in facts.engines)

    final = plan_install(replace(facts, engines=engines, held=Record(engines=held)), CASE.options).final

    assert final is not None
    found = {row.name: row.state for row in final.engines}
    assert found["containerd"] == (PurePosixPath(state) if state else None)
