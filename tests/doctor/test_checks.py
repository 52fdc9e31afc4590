"""Each check is turned by an act on a node that is otherwise well: of its files, or of what it would answer."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as with_level
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change.pending import AT_NEXT_START
from installer.config_text import Value
from installer.engines import ENGINES
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.engine import OtherEngine
from installer.model.facts import CdiRow
from installer.report.doctor.model import EngineExam, Level, Node
from installer.report.doctor.verb import CHECKS, FUNCTIONS, Finding, judge_node
from tests.doctor import golden
from tests.doctor.golden import CONFIG, CONTAINERD, GPU, OTHER, RUNS, RUNTIME, SERVING, SPEC, link
from tests.support.files import put
from tests.support.golden import golden_line

SAID = Path(__file__).parents[1] / "golden/doctor.json"


@dataclass(frozen=True)
class Act:
    """What is done to the files of the node, then to what is read of it."""

    files: Callable[[Path], object] = lambda _: None
    facts: Callable[[Node], Node] = lambda node: node
    level: Level = Level.BAD

    def __and__(self, later: "Act") -> "Act":
        def files(root: Path) -> None:
            self.files(root)
            later.files(root)

        return Act(files, lambda node: later.facts(self.facts(node)))


def warn(act: Act) -> Act:
    return with_level(act, level=Level.WARN)


def text(path: str, *words: str) -> Act:
    """Return an act that edits a file: of two words each, it has to hold the first, and gets the second."""
    said = golden.FILES[path]
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old in said
        said = said.replace(old, new)
    return written(path, said)


def written(path: str, said: str) -> Act:
    return Act(lambda root: put(root, {path: said}))


def linked(path: str, target: str) -> Act:
    return Act(lambda root: link(root, path, target))


def gone(path: str) -> Act:
    return Act(lambda root: (root / path.lstrip("/")).unlink())


def logged(line: str) -> Act:
    return written("/dev/kmsg", f"4,9,9,-;{line}\n")


def node(**more: Any) -> Act:
    return Act(facts=lambda node: replace(node, **more))


def driver(**more: Any) -> Act:
    return Act(facts=lambda node: replace(node, driver=replace(node.driver, **more)))


def toolkit(**more: Any) -> Act:
    return Act(facts=lambda node: replace(node, toolkits=(replace(node.toolkits[0], **more),)))


def system(**more: Any) -> Act:
    return Act(facts=lambda node: replace(node, system=replace(node.system, **more)))


def engine(name: str, **more: Any) -> Act:
    def change(each: EngineExam) -> EngineExam:
        return replace(each, **more) if each.name == name else each

    return Act(facts=lambda node: replace(node, engines=tuple(map(change, node.engines))))


def served(serving: EffectiveConfig | None = SERVING, **more: Any) -> Act:
    """Return a containerd that serves this."""
    return engine("containerd", serving=serving, **more)


def process(pid: int, **more: Any) -> Act:
    return Act(
        facts=lambda node: replace(
            node,
            processes=tuple(replace(each, **more) if each.pid == pid else each for each in node.processes),
        )
    )


def unit(name: str, state: str) -> Act:
    return system(units={f"{name}.service": state})


def space(path: str, blocks: int, inodes: int = -1) -> Act:
    return system(spaces={PurePosixPath(path): (blocks, inodes)})


def handlers(*without: str, **more: Runtime) -> EffectiveConfig:
    left = {name: each for name, each in SERVING.handlers.items() if name not in without}
    return replace(SERVING, handlers=left | more)


def ours(**options: bool) -> Runtime:
    named: Value = {"BinaryName": RUNTIME, **options}
    return Runtime(RUNTIME, {"runtimeType": "io.containerd.runc.v2", "options": named})


# The driver of a driver container.
IN_A_CONTAINER = text(
    CONFIG, 'root = "/"', 'root = "/run/nvidia/driver"', "@/sbin", "@/run/nvidia/driver/sbin"
)
FAILED, EXITED = "failed/failed/exit-code", "inactive/dead/exit-code"
DROP_IN = PurePosixPath("/etc/containerd/d.toml")
COMPAT = "[features]\nallow-cuda-compat-libs-from-container = true\n"
NO_SUCH_DEVICE = """{"cdiVersion": "0.5.0", "kind": "a.org/b", "devices": [{"name": "0", "containerEdits":
 {"deviceNodes": [{"path": "/dev/nvidia7"}]}}]}"""
TWO_SPELLINGS: Value = {"runtimes": {"n": {"options": {"BinaryName": "/a", "binaryName": "/b"}}}}
RUNC_ALONE = EffectiveConfig({"runc": Runtime("runc")}, "runc")
PACKAGED = EffectiveConfig({"n": Runtime("/usr/bin/nvidia-container-runtime")}, "n")
KATA = handlers(kata=Runtime("/opt/kata"))
XSERVER = tuple(replace(each, label="u:r:xserver_misc_device_t:s0") for each in golden.NODES)

by_cdi = Act(facts=golden.by_cdi)
lost = served(handlers("nvidia"))
nowhere = lost & engine("docker", serving=RUNC_ALONE)
no_driver = driver(modules=frozenset())
off = served(None, disabled=True, silence_reason="use CRI on /c.sock (it is switched off)")
mode_cdi = text(CONFIG, 'mode = "auto"', 'mode = "cdi"')
nouveau = linked(f"{GPU}/driver", "../../drivers/nouveau")
ended = node(last_check="at noon, by a run that has ended")


def without(program: str) -> Act:
    return Act(facts=lambda node: replace(node, programs=node.programs - {program}))


def held(unit: str, state: str) -> Act:
    """Return a CRI-O of the ledger that does not answer."""
    return node(engine_units={"crio": (unit, state)})


ACTS: dict[str, list[Act]] = {
    "gpu-driver": [Act(lambda root: (root / "sys/module/nvidia").rename(root / "gone")), nouveau],
    "nouveau": [nouveau, warn(written("/sys/module/nouveau/refcnt", "0\n"))],
    "driver-signature": [
        logged("Loading of unsigned module is rejected") & no_driver,
        warn(written(golden.SECURE_BOOT, "\x06\0\0\0\x01") & no_driver),
    ],
    "driver-libraries": [gone("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")],
    "driver-version": [text("/sys/module/nvidia/version", "550.54.15", "550.90.07")],
    "driver-age": [warn(text("/sys/module/nvidia/version", "550.54.15", "418.87.01"))],
    "control-nodes": [driver(nodes=golden.NODES[:2])],
    "uvm": [text("/proc/devices", "508 nvidia-uvm\n", "")],
    "char-links": [
        gone("/dev/char/508:1") & node(runc={"/r/runc": ((1, 1, 5), "runc 1.1.5")}),
        warn(gone("/dev/char/508:1")),
    ],
    "xid": [
        logged("NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus."),
        warn(logged("NVRM: Xid (PCI:0000:17:00): 31, pid=7, MMU Fault")),
    ],
    "fabric-manager": [process(702, version=(535, 104, 5)), process(702, name="sleep")],
    "persistenced": [driver(persistenced="dead")],
    "cdi-specification": [
        gone(SPEC) & mode_cdi,
        # No engine takes these for one of nvidia.com/gpu.
        text(SPEC, "kind: nvidia", "kind: a.org/b\n#kind: nvidia") & mode_cdi,
        text(SPEC, "devices:", "empty:") & mode_cdi,
    ],
    "cdi-uvm-number": [text(SPEC, "major: 508", "major: 511")],
    "cdi-paths": [gone("/usr/bin/nvidia-smi"), written("/etc/cdi/own.json", NO_SUCH_DEVICE)],
    "cdi-mig": [text(SPEC, "            - path: /dev/nvidia-caps/nvidia-cap13\n", "")],
    "cdi-version": [
        text(SPEC, "0.5.0", "0.7.0") & engine("containerd", version=(1, 6, 20)),
        text(SPEC, "0.5.0", "0.7.0") & engine("docker", version=(20, 10, 24)),
    ],
    "cdi-enabled": [warn(served(replace(SERVING, cdi=False)))],
    "cdi-alone": [
        gone(SPEC) & by_cdi,
        gone(SPEC) & by_cdi & node(by_cdi=CdiRow((), "no driver")),
        by_cdi & served(replace(SERVING, cdi=False)),
        by_cdi & served(SERVING),  # of no directory
        by_cdi & node(by_cdi=CdiRow((), f"{SPEC} has one GPU")),
    ],
    "nri-plugin": [
        node(plugin=(("not registered since noon", False),)),
        node(plugin=(("registered", True), ("1 containers run without", False))),
    ],
    "libnvidia-container": [toolkit(library=(1, 0, 0))],
    "cgroup2": [toolkit(library=(1, 7, 0))],
    "toolkit-versions": [warn(toolkit(library=(1, 17, 4)))],
    "ldconfig": [
        text(CONFIG, "@/sbin/ldconfig", "@/sbin/ldconfig.real"),
        text(CONFIG, "@/sbin", "/sbin"),
        IN_A_CONTAINER & driver(libraries=("libnvidia-ml.so.1",)),
    ],
    "no-cgroups": [text(CONFIG, "no-cgroups = false", "no-cgroups = true")],
    "mode": [
        text(CONFIG, 'mode = "auto"', 'mode = "csv"'),
        warn(text(CONFIG, '"auto"', '"cdi"', "detection = true", "detection = false")),
    ],
    "low-level-runtime": [
        text(CONFIG, "/usr/sbin/runc", "/usr/sbin/no-runc"),
        text(CONFIG, "/usr/sbin/runc", RUNTIME),
    ],
    "toolkits": [
        warn(Act(facts=lambda node: replace(node, toolkits=(*node.toolkits, OTHER)))),
        warn(engine("docker", serving=PACKAGED)),
    ],
    "toolkit-log": [warn(text(CONFIG, '"/dev/null"', '"/run/n.log"', '"info"', '"debug"'))],
    "installation": [
        node(status_lines=(("/etc/x", "drifted: runtimes.nvidia", False),)),
        held("crio.service", "inactive/dead/success"),
        held("", ""),
        held("crio.service", RUNS),
        held("crio.service", "masked/dead/success"),
        warn(ended),
    ],
    "engine-answers": [engine("docker", serving=None, silence_reason="no answer within 3 s")],
    "engine-ready": [
        served(None, failed=True, silence_reason="CRI did not load"),
        served(replace(SERVING, ready=False)),
        node(engine_units={"containerd": ("c.service", RUNS)}) & off,
    ],
    "engine-below": [engine("docker", start_problem="start containers with Docker (its containerd hangs)")],
    "engine-unit": [
        engine("containerd", unit_state=FAILED),
        unit("k3s", "activating/auto-restart/exit-code"),
        unit("crio", FAILED),
        written("/etc/k0s/containerd.d/nvidia.toml", "version = 2\n") & unit("k0sworker", FAILED),
        warn(engine("containerd", unit_state=RUNS, unit_unread=True)),
    ],
    "engine-kind": [warn(engine("docker", other_engine_reason="Podman answers on it"))],
    "other-engines": [
        warn(
            node(
                other_engines=(
                    OtherEngine(ENGINES["containerd"], "k8s.service", PurePosixPath("/run/k8s.sock")),
                )
            )
        )
    ],
    "config-accepted": [
        engine("containerd", on_disk=EffectiveConfig({}, "", broken="expected key, found '='")),
        engine("containerd", on_disk=replace(SERVING, undefined="gone")),
        engine("docker", config_error="read /etc/docker/daemon.json (it is a directory)"),
        engine("docker", next_start_flaw="docker.service would not start it again: its ExecStart is gone"),
    ],
    "config-in-force": [
        engine("containerd", on_disk=handlers("nvidia")),
        engine("containerd", on_disk=KATA),
        engine("containerd", files=(CONTAINERD, DROP_IN), on_disk=KATA),  # of several configs none is blamed
        warn(engine("containerd", next_start_move="at its next start its unit gives it --root /srv")),
    ],
    "default-runtime": [served(replace(SERVING, default="gone"))],
    "config-schema": [engine("containerd", trees={CONTAINERD: {"version": 2}, DROP_IN: {"version": 3}})],
    "cgroup-driver": [
        text("/var/lib/kubelet/config.yaml", "systemd", "cgroupfs"),
        written("/proc/900/cmdline", "kubelet\0--cgroup-driver\0cgroupfs\0"),
    ],
    "docker-hook": [warn(engine("docker", has_hook=False, serving=RUNC_ALONE))],
    "live-restore": [
        warn(
            node(status_lines=(("docker", f"features.cdi {AT_NEXT_START}", True),))
            & engine("docker", serving=replace(RUNC_ALONE, live_restore=False))
        )
    ],
    "runtime-served": [nowhere, warn(lost), warn(node(toolkits=(OTHER,)) & nowhere)],
    "runtime-programs": [without(RUNTIME), without("runc")],
    "hook-programs": [node(hooks={PurePosixPath("/etc/containers/oci/hooks.d/site.json"): "/opt/gone"})],
    "runtime-options": [served(handlers(nvidia=ours(SystemdCgroup=False))), served(handlers(nvidia=ours()))],
    "runtime-type": [served(handlers(nvidia=Runtime(RUNTIME, {"options": {}})))],
    "option-twice": [engine("containerd", trees={CONTAINERD: TWO_SPELLINGS})],
    "shim-nil-pointer": [
        process(701, version=(), nil_pointer=True, deleted=True),
        process(701, version=(1, 2, 2)),
        process(701, version=(1, 2, 1)),
    ],
    "containerd-nil-pointer": [process(700, version=(1, 2, 2)), warn(process(700, version=(1, 2, 4)))],
    "shim-replaced": [warn(process(701, deleted=True))],
    "apparmor": [
        logged('audit: apparmor="DENIED" operation="signal" profile="c" peer="runc"'),
        warn(text("/sys/kernel/security/apparmor/profiles", "docker-default (", "runc (")),
    ],
    "selinux": [warn(driver(nodes=XSERVER))],
    "inotify": [system(inotify=(128, 128)), warn(system(inotify=(110, 128)))],
    "run-space": [space("/run", 100), space("/run", 10, 97), warn(space("/run", 90))],
    "disk-space": [space("/var/lib/docker", 99)],
    "driver-services": [unit("nvidia-persistenced", FAILED), warn(unit("nvidia-cdi-refresh", EXITED))],
    "holes-toolkit": [warn(toolkit(ctk=(1, 17, 7)))],
    "cuda-compat": [warn(text(CONFIG, "[nvidia-container-cli]", f"{COMPAT}\n[nvidia-container-cli]"))],
    "holes-runc": [warn(node(runc={"/usr/bin/runc": ((1, 1, 5), "runc 1.1.5")}))],
    "holes-containerd": [warn(process(700, version=(2, 1, 4), label="containerd 2.1.4"))],
}


# What is no fault of a check's, although it looks like one.
CALM: list[tuple[str, Act]] = [
    ("engine-ready", off),  # we do not configure it
    ("installation", ended & node(run_waits=True)),
    ("runtime-served", lost & node(without_runtime=frozenset({"containerd"}))),
    ("cdi-alone", by_cdi & node(specs=()) & no_driver),
    (
        "docker-hook",
        node(engine_units={"docker": ("docker.service", RUNS)})
        & engine("docker", serving=RUNC_ALONE, has_hook=False),
    ),
    ("mode", written(CONFIG, "nvidia-container-runtime = {mode = [], debug = 'x'}\n")),
]


def after(root: Path, act: Act) -> Node:
    """Return the node after an act."""
    golden.lay(root)
    act.files(root)
    return act.facts(golden.read(root))


def verdicts(node: Node) -> dict[str, Finding]:
    return {finding.name: finding for finding in judge_node(node)}


def wrong(node: Node) -> list[str]:
    return [name for name, finding in verdicts(node).items() if finding.remedy]


@pytest.fixture
def good(tmp_path: Path) -> Node:
    return golden.read(golden.lay(tmp_path))


def test_nothing_is_wrong_with_a_good_node_and_every_check_applies(good: Node) -> None:
    by_cdi = verdicts(golden.by_cdi(good))
    found = verdicts(good) | {name: by_cdi[name] for name in ("cdi-alone", "nri-plugin")}

    assert {name: verdict for name, verdict in found.items() if verdict.level is not Level.OK} == {}
    for name, verdict in found.items():
        assert golden_line(SAID, name, verdict.found) == verdict.found
    assert wrong(golden.by_cdi(good)) == []
    for name in ("runtime-served", "docker-hook"):
        assert by_cdi[name].level is Level.NONE
        assert "by CDI alone" in by_cdi[name].found


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_to_be_done_about_a_default_engine_of_any_kind(good: Node, name: str) -> None:
    kind, (docker, containerd) = ENGINES[name], golden.ENGINES
    assert docker.serving is not None
    bare = replace(docker, serving=replace(docker.serving, live_restore=False), has_hook=False)
    like = bare if name == "docker" else containerd
    usual = replace(like, kind=kind, config=kind.config, files=(kind.config,), trees={}, unit=kind.unit)
    alone = replace(usual, serving=RUNC_ALONE, on_disk=RUNC_ALONE)

    assert wrong(replace(good, engines=(usual,))) == []
    assert wrong(replace(good, engines=(alone,), toolkits=(), status_lines=())) == []


def test_nothing_is_wrong_with_a_node_without_gpu_toolkit_and_engine() -> None:
    assert wrong(Node()) == []


@pytest.mark.parametrize("name", CHECKS)
def test_each_act_turns_its_check(tmp_path: Path, name: str) -> None:
    for number, act in enumerate(ACTS[name], 1):
        verdict = verdicts(after(tmp_path / str(number), act))[name]

        assert verdict.level is act.level, (number, verdict.found)
        assert golden_line(SAID, f"{name} {number}", verdict.found) == verdict.found


@pytest.mark.parametrize(("name", "act"), CALM)
def test_what_only_looks_like_a_fault_turns_no_check(tmp_path: Path, name: str, act: Act) -> None:
    assert verdicts(after(tmp_path, act))[name].level is Level.OK


def test_ldconfig_of_a_driver_that_is_not_there_is_no_good_sign(tmp_path: Path) -> None:
    found = verdicts(after(tmp_path, IN_A_CONTAINER & driver(libraries=())))["ldconfig"]

    assert found.level is Level.NONE
    assert found.found == (
        "/run/nvidia/driver/sbin/ldconfig is not there, as no driver was found below /run/nvidia/driver"
    )


def test_doctor_reports_one_fault_once(good: Node) -> None:
    undefined = engine("containerd", on_disk=replace(SERVING, undefined="gone"))
    rewritten = replace(good, status_lines=(("containerd", "drifted: the runtime nvidia is missing", False),))

    assert wrong(undefined.facts(good)) == ["config-accepted"]
    absent = served(handlers("nvidia"), on_disk=handlers("nvidia"))
    assert wrong(absent.facts(rewritten)) == ["installation"]


def test_while_run_waits_no_remedy_names_the_install_that_it_keeps_out(good: Node) -> None:
    node = replace(
        golden.by_cdi(good), specs=(), status_lines=(("/etc/x", "drifted: runtimes.nvidia", False),)
    )

    alone, waits = (verdicts(replace(node, run_waits=waits)) for waits in (False, True))

    for name in ("installation", "cdi-alone"):
        assert "`toolkit-installer install" in str(alone[name].remedy)
        assert "toolkit-installer install" not in str(waits[name].remedy)
        assert "`toolkit-installer reconcile`" in str(waits[name].remedy)


def test_each_check_has_its_function_and_its_remedy() -> None:
    names = {name for name in FUNCTIONS if name.startswith("check_")}

    assert names == {f"check_{name.replace('-', '_')}" for name in CHECKS}
    assert [name for name, (_, row) in CHECKS.items() if not row["remedy"]] == []
