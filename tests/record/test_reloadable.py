"""Whether an engine could be reloaded by its unit, told before anything is changed."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.facts import EngineFacts
from installer.decide.options import Options, RestartMode
from installer.host.files import Host
from installer.record.reloadable import unit_obstacle, unit_obstacles
from tests.host.servers import FakeSystemd, FakeUnit, serving

WELL = FakeUnit(can_reload=True)
REACHED = "run it as a systemd service, or configure it unproven with --restart-mode none"
UNSEEN = "run with the host's pid namespace (hostPID: true), for its process cannot be seen from here"


def facts(name: str, pid: int | None, *, unit: bool = True) -> EngineFacts:
    row = ENGINES[name]
    return EngineFacts(name, row.config, None, None, (), row.socket, row.unit if unit else "", pid=pid)


def refusal(root: Path, engine: EngineFacts, unit: FakeUnit | None) -> str:
    with ExitStack() as held:
        if unit is not None:
            (root / "run/dbus").mkdir(parents=True)
            systemd = FakeSystemd({engine.unit: unit})
            held.enter_context(serving(root / "run/dbus/system_bus_socket", systemd))
        found = unit_obstacle(Host.under(PurePosixPath(root)), engine)
    return f"{found.problem}; {found.remedy}" if found else ""


@pytest.mark.parametrize(
    ("engine", "unit", "said"),
    [
        # Restarted by systemd.
        (facts("containerd", 7), FakeUnit(), ""),
        (facts("containerd", None), FakeUnit(), ""),
        (
            facts("containerd", 7, unit=False),
            FakeUnit(),
            f"restart containerd (it runs outside any systemd service); {REACHED}",
        ),
        (
            facts("containerd", None, unit=False),
            FakeUnit(),
            f"restart containerd (it runs outside any systemd service); {UNSEEN}",
        ),
        (
            facts("containerd", 7),
            FakeUnit(active="failed", sub="failed"),
            "restart containerd (its unit containerd.service is failed, so something else serves); "
            + REACHED,
        ),
        # Signalled, by its unit where its process is not seen.
        (facts("docker", 7), None, ""),
        (facts("docker", 7, unit=False), None, ""),
        (facts("docker", None), WELL, ""),
        (
            facts("docker", None),
            FakeUnit(),
            f"reload Docker (its unit docker.service has no ExecReload); {UNSEEN}",
        ),
        (
            facts("docker", None),
            replace(WELL, active="inactive"),
            f"reload Docker (its unit docker.service is inactive, so something else serves); {UNSEEN}",
        ),
        # It restarts itself.
        (facts("k0s", 7, unit=False), None, ""),
        (facts("k0s", None), FakeUnit(active="failed"), ""),
    ],
)
def test_why_an_engine_could_not_be_reloaded(
    tmp_path: Path, engine: EngineFacts, unit: FakeUnit | None, said: str
) -> None:
    assert refusal(tmp_path, engine, unit) == said


def test_a_systemd_that_nobody_reaches_is_the_reason(tmp_path: Path) -> None:
    assert refusal(tmp_path, facts("containerd", 7), None).startswith("reach systemd")
    assert refusal(tmp_path, facts("docker", None), None).startswith("reload Docker (reach systemd")


@pytest.mark.parametrize(
    ("mode", "serves", "told"),
    [
        (RestartMode.AUTO, True, 1),
        (RestartMode.WHEN_IDLE, True, 1),
        (RestartMode.NONE, True, 0),
        (RestartMode.AUTO, False, 0),  # a start is its owner's
    ],
)
def test_only_engines_that_serve_and_are_reloaded_need_a_unit(
    tmp_path: Path, mode: RestartMode, told: int, *, serves: bool
) -> None:
    engine = replace(facts("containerd", 7, unit=False), serving=Effect({}, "runc") if serves else None)

    found = unit_obstacles(
        Host.under(PurePosixPath(tmp_path)), replace(Options(), restart_mode=mode), [engine]
    )

    assert len(found) == told
