"""The gate once more: what others have written since the first one keeps an engine from being reloaded."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.dry_run import find_refusals, refuse_changed
from installer.errors import NotBegunError
from installer.host.files import Host
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import EngineState
from installer.model.files import File
from installer.model.steps import Step, WriteConfig
from tests.support.live import UNIT_PROPERTIES, containerd, live

TOML, JSON = PurePosixPath("/etc/containerd/config.toml"), PurePosixPath("/etc/docker/daemon.json")
BEFORE = {"containerd": (TOML, "version = 2\n"), "docker": (JSON, "{}")}


def engine(name: str) -> EngineState:
    row = ENGINES[name]
    path, _ = BEFORE[name]
    return EngineState(name, path, None, None, (path,), row.socket, row.unit)


def refusal(root: Path, name: str, now: str | None, *done: Step) -> str:
    path, before = BEFORE[name]
    place = root / path.relative_to("/")
    place.parent.mkdir(parents=True)
    if now is not None:
        place.write_text(now)
    try:
        refuse_changed(
            Host.under(PurePosixPath(root)), engine(name), {path: File(before.encode()).digest}, done
        )
    except NotBegunError as error:
        return f"{error.problem}; {error.remedy}"
    return ""


OURS = "version = 2\nroot = '/ours'\n"
WRITTEN = WriteConfig("containerd", TOML, None, File(OURS.encode()))
SOMEBODY = "another process has just written /etc/containerd/config.toml"


@pytest.mark.parametrize(
    ("name", "now", "done", "said"),
    [
        pytest.param("containerd", "version = 2\n", (), "", id="as it was"),
        pytest.param("containerd", OURS, (WRITTEN,), "", id="as we wrote it"),
        pytest.param("containerd", OURS, (), "", id="as others wrote it, and it would come up"),
        pytest.param(
            "containerd",
            "version = [",
            (),
            f"restart containerd (it would not come up again, {SOMEBODY}: ",
            id="as others wrote it, and it would not",
        ),
        pytest.param(
            "containerd",
            "version = [",
            (WRITTEN,),
            f"restart containerd (it would not come up again, {SOMEBODY}: ",
            id="after us",
        ),
        pytest.param("containerd", None, (), "", id="gone, which containerd takes for the built-in one"),
        pytest.param("docker", "{}", (), "", id="as it was, of one that is signalled"),
        pytest.param(
            "docker",
            '{"debug": true}',
            (),
            "reload Docker (another process has just written /etc/docker/daemon.json); look at what has just been "
            "written to the config of Docker, then run again",
            id="another text, and nobody knows what it makes of it",
        ),
        pytest.param(
            "docker", None, (), "reload Docker (another process has just written /etc/docker/", id="gone"
        ),
    ],
)
def test_what_others_have_written_since(
    tmp_path: Path, name: str, now: str | None, done: tuple[Step, ...], said: str
) -> None:
    found = refusal(tmp_path, name, now, *done)

    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_an_engine_that_serves_and_would_not_come_up_is_told_by_name(tmp_path: Path) -> None:
    place = tmp_path / "etc/containerd/config.toml"
    place.parent.mkdir(parents=True)
    place.write_text("version = [")
    host, serving = Host.under(PurePosixPath(tmp_path)), EffectiveConfig({}, "runc")
    runs, stopped = replace(engine("containerd"), serving=serving), engine("docker")

    found = find_refusals(host, [runs, stopped])
    place.write_text("version = 2\n")

    assert list(found) == ["containerd"]
    assert "config.toml" in found["containerd"]
    assert find_refusals(host, [runs, stopped]) == {}


def test_an_engine_whose_own_program_is_gone_is_told(tmp_path: Path) -> None:
    with live(tmp_path) as node:
        runs = replace(containerd(), serving=EffectiveConfig({}, "runc"))
        row = ("/usr/bin/containerd", ["/usr/bin/containerd"], False, 0, 0, 0, 0, 0, 0, 0)
        node.systemd.changed |= UNIT_PROPERTIES | {"ExecStart": ("a(sasbttttuii)", [row])}
        found = find_refusals(node.host, [runs])

    assert found == {"containerd": "its ExecStart /usr/bin/containerd is no program"}
