"""What is found of the GPUs' specification, its neighbours and the devices, and how nvidia-ctk is asked for it."""

import json
import signal
import threading
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer import watch
from installer.cdi import generate
from installer.change.observe import observe_install
from installer.engines import ENGINES
from installer.errors import StoppedError
from installer.host.files import Host
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.facts import CdiRow, ConfigRow, GpuSpecification, Record
from installer.model.files import File, Layout
from installer.model.options import Cdi, Mode, Options
from installer.model.steps import RemoveDeviceNodes
from tests.support.cdi_site import OWN, TOOL, CdiSite

HOOK = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
PATH = PurePosixPath("/var/run/cdi/nvidia.com-gpu.json")
DIRS = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
SERVING = EffectiveConfig({}, "runc", cdi=True, cdi_dirs=DIRS)
ENGINE = replace(EngineState.usual(ENGINES["containerd"]), version=(2, 1, 9), serving=SERVING)


def theirs(*names: str) -> str:
    """Return a specification of somebody else that has these devices."""
    devices = "".join(f"- name: '{name}'\n  containerEdits: {{env: [A=b]}}\n" for name in names)
    return f"---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}"


class Node(CdiSite):
    """A host below a directory, with a driver, and a toolkit whose nvidia-ctk is a script."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.host = Host.under(PurePosixPath(self.root))
        self.tool = next(self.source.rglob("nvidia-ctk"))

    def options(self, driver_root: str = "/driver") -> Options:
        source, root = PurePosixPath(self.source), PurePosixPath(self.root)
        return Options(toolkit_source=source, host_root=root, driver_root=driver_root)

    def found(self, held: Record | None = None, driver_root: str = "/driver") -> GpuSpecification:
        now = self.host.read(PATH)
        options = self.options(driver_root)
        return generate.gpu_specification(self.host, options, (ENGINE,), held or Record(), now)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def held(text: str) -> Record:
    row = ConfigRow("cdi", PATH, None, None, (File(text.encode()).digest,), ())
    return Record(configs=(row,), cdi=CdiRow(("containerd",)))


@pytest.mark.parametrize(
    ("driver_root", "own_devices"), [("/driver", False), ("/link/", False), ("/link", True)]
)
def test_the_hosts_paths_are_named_however_the_drivers_root_is_given(
    node: Node, driver_root: str, *, own_devices: bool
) -> None:
    (node.root / "link").symlink_to("driver")
    for name in ("nvidiactl", "nvidia0") if own_devices else ():
        node.write(f"driver/dev/{name}")

    found, none = node.found(driver_root=driver_root), node.found(driver_root="/nowhere")

    said, (driver, dev) = json.loads(found.text), generate.roots(node.host, node.options())
    assert (str(driver), str(dev)) == ("/driver", "/driver" if own_devices else "/")
    device = said["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert device.get("hostPath", device["path"]) == str(dev / "dev/nvidia0")
    assert said["containerEdits"]["mounts"][0]["hostPath"] == "/driver/usr/lib64/libcuda.so.1"
    assert (found.lacking, none.text) == ("", "")
    assert "no driver" in none.lacking, "in the words of NVIDIA's tool"


A, B, BESIDE_A = "etc/cdi/a.yaml", "run/cdi/b.yaml", "etc/cdi/b.yaml"
ALL = theirs("0", "all")
ALL_OF_OURS = TOOL.replace('"name":"0"', '"name":"all","containerEdits":{"env":["A=b"]}},{"name":"0"')


@pytest.mark.parametrize(
    ("files", "others", "missing"),
    [
        pytest.param({}, "", "", id="nobody else"),
        pytest.param({A: ALL}, "a.yaml", "", id="all"),
        pytest.param({"etc/cdi/.yaml": ALL}, ".yaml", "", id="suffix alone"),
        pytest.param({A: theirs("all")}, "a.yaml", "0", id="all GPUs by one name"),
        pytest.param({A: theirs("0")}, "a.yaml", "all", id="one GPU"),
        pytest.param({A: theirs("0"), B: theirs("all")}, "b.yaml a.yaml", "", id="all by two files"),
        pytest.param({A: ALL, BESIDE_A: theirs("all")}, "a.yaml b.yaml", "all", id="two that engines drop"),
        pytest.param({A: ALL, B: theirs("all")}, "b.yaml a.yaml", "", id="one that hides another's"),
        pytest.param({OWN: theirs("team-a")}, PATH.name, "0 all", id="in our place, other devices"),
    ],
)
def test_each_device_has_one_owner_and_what_nobody_has_is_told(
    node: Node, files: dict[str, str], others: str, missing: str
) -> None:
    node.tool.write_text(ALL_OF_OURS)
    for name, text in files.items():
        node.write(name, text)

    found = node.found()

    assert [path.name for path in found.others] == others.split()
    assert found.missing == tuple(missing.split())
    assert found.text or others
    assert (found.problem is not None) == ("all" in missing)
    if found.problem is not None:
        several = len(found.others) > 1
        has = "have" if several else "has"
        assert f"{found.others[-1]} {has} devices of ours" in found.problem.problem
        assert f"move {'those files' if several else 'that file'} away" in str(found.problem.remedy)


def test_an_engine_that_reads_other_cdi_directories_is_reported_without_devices(node: Node) -> None:
    node.tool.write_text(ALL_OF_OURS)
    node.write(A, ALL)
    other = replace(ENGINE, kind=ENGINES["docker"], serving=replace(SERVING, cdi_dirs=DIRS[1:]))

    found = generate.gpu_specification(node.host, node.options(), (ENGINE, other), Record(), None)

    assert (found.missing, found.problem is not None) == (("0", "all"), True)


@pytest.mark.parametrize(("names", "serves"), [(("team-a",), False), (("0", "all"), True)])
def test_where_nvidia_ctk_fails_a_file_of_somebody_else_is_enough_if_it_has_all(
    node: Node, names: tuple[str, ...], *, serves: bool
) -> None:
    node.tool.write_text("#!/bin/sh\nexit 1\n")
    node.write(A, theirs(*names))
    node.write("proc/driver/nvidia/version")

    found = node.found()

    assert (bool(found.others), found.problem is None) == (serves, serves)


@pytest.mark.parametrize(
    ("there", "record", "ours"),
    [
        pytest.param("ours", held("ours"), True, id="as we wrote it"),
        pytest.param(f'{{"path": "{HOOK}"}}', Record(), True, id="the ledger is lost, but it names our hook"),
        pytest.param(theirs("0"), held("ours"), False, id="somebody has replaced it"),
        pytest.param(theirs("0"), Record(), False, id="somebody has put it there before us"),
    ],
)
def test_the_owner_of_the_file_at_our_cdi_path_is_recognised(
    node: Node, there: str, record: Record, *, ours: bool
) -> None:
    node.write(OWN, there)

    found = node.found(record)

    assert found.ours is ours
    assert found.others == (() if ours else (PATH,))


def test_a_file_without_devices_at_our_cdi_path_is_replaced_only_if_it_was_ours(node: Node) -> None:
    node.write(OWN, "# kind: nvidia.com/gpu\n")

    spoilt, before_us = node.found(held("ours")), node.found()

    assert (spoilt.others, spoilt.lacking) == ((), "")
    assert json.loads(spoilt.text)["kind"] == "nvidia.com/gpu"
    assert (before_us.others, before_us.text) == ((), "")
    assert before_us.lacking == f"cannot replace {PATH} (it is no specification of ours); move it away"


def test_a_specification_that_somebody_writes_meanwhile_is_not_taken_for_what_was_there(node: Node) -> None:
    written = node.root / OWN
    somebody = f"test $1 = cdi && mkdir -p {written.parent} && printf theirs > {written}\n"
    node.tool.write_text(TOOL.replace("#!/bin/sh\n", f"#!/bin/sh\n{somebody}"))
    node.write("etc/containerd/config.toml")
    options = replace(node.options(), engines=("containerd",), mode=Mode.CDI)

    facts = observe_install(node.host, options, Record())

    assert written.read_text() == "theirs"
    assert facts.cdi
    assert facts.cdi.gpus
    assert (facts.cdi.gpus.lacking, facts.contents[PATH]) == ("", None)


def test_a_stop_ends_an_nvidia_ctk_that_hangs(node: Node) -> None:
    node.tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        # To this thread: those of whoever runs the tests have not blocked it.
        threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
        with pytest.raises(StoppedError):
            node.found()
    finally:
        came = signal.sigtimedwait([signal.SIGTERM], 30)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert came is not None


def test_one_that_names_what_is_gone_is_stale(node: Node) -> None:
    text = node.found().text
    node.write(OWN, text)
    assert node.found(held(text)).stale == ()

    (node.root / "driver/usr/lib64/libcuda.so.1").unlink()
    (node.root / "dev/nvidia0").unlink()

    assert node.found(held(text)).stale == ("/dev/nvidia0", "/driver/usr/lib64/libcuda.so.1")


def test_whatever_makes_another_specification_is_watched(node: Node) -> None:
    text = node.found().text
    node.write(OWN, text)

    watched = generate.list_watched(node.host, node.options(), held(text))
    places = {(kind, path.removeprefix(str(node.root))) for kind, path in watched}

    assert places >= {
        (watch.NAMES, "/dev/nvidia"),
        (watch.NAMES, "/dev/nvidia-caps/"),
        (watch.NAMES, "/dev/dri/"),
        (watch.EXISTENCE, "/proc/driver/nvidia/version"),
        (watch.PATH, "/driver/usr/lib64/libcuda.so.1"),
        (watch.PATH, "/driver/usr/lib64"),
        (watch.PATH, "/driver"),
        (watch.DIRECTORY, "/run/cdi"),
        (watch.DIRECTORY, "/etc/cdi"),
    }
    assert (watch.PATH, "/dev/nvidia0") not in places, "a device is written to all the time"
    assert [*generate.list_watched(node.host, node.options(), Record())] == []


MOVED = ["--from=/host/run/driver --to=/run/driver", "--from=/host --to=/"]


@pytest.mark.parametrize(
    ("driver", "dev", "transformed"),
    [
        pytest.param("/run/driver", "/", [], id="the host's own paths"),
        pytest.param("/host/run/driver", "/host", MOVED, id="both moved"),
        pytest.param("/run/driver", "/run/driver", ["--from=/run/driver/dev --to=/dev"], id="one here"),
    ],
)
def test_paths_of_managements_specification_are_the_hosts(
    node: Node, driver: str, dev: str, transformed: list[str]
) -> None:
    node.tool.write_text('#!/bin/sh\ntest "$2" = transform && cat\necho "$*"\n')  # says how it was called
    cdi = Cdi(PurePosixPath("/var/run/cdi"), "nvidia.com/x", "/run/driver", driver, "/", dev, nodes=False)

    said = generate.management_specification(PurePosixPath(node.source), Layout(), cdi).splitlines()

    assert said[0].startswith(f"cdi generate --mode=management --driver-root={driver} --dev-root={dev} ")
    assert said[1:] == [f"cdi transform root {words}" for words in transformed]


@pytest.mark.parametrize("since", ["ours", "made anew by the driver", "of another boot"])
def test_of_device_nodes_only_those_of_ours_are_removed(node: Node, since: str) -> None:
    path = PurePosixPath("/dev/nvidiactl")
    node.write("dev/nvidiactl")
    ours = generate.held_node(node.host, generate.absent_node(path))
    assert ours is not None
    if since == "made anew by the driver":
        node.write("dev/other")
        (node.root / "dev/other").rename(node.root / "dev/nvidiactl")
    elif since == "of another boot":
        ours = replace(ours, born=f"another-boot {ours.born.split()[1]}")

    generate.change_device_nodes(node.host, RemoveDeviceNodes((ours,)))

    assert node.host.exists(path) is (since != "ours")
