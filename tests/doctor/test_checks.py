"""Each check is turned by an act on a node that is otherwise well: of its files, or of what it would answer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.reloading import AT_NEXT_START
from installer.model.engine_spec import EffectiveConfig, Runtime
from installer.model.facts import CdiRow
from installer.report.doctor.model import EngineExam, Level, Node
from installer.report.doctor.verb import CHECKS, FUNCTIONS, Finding, judge_node
from tests.doctor import golden
from tests.doctor.golden import CONFIG, CONTAINERD, GPU, RUNTIME, SERVING, SPEC, link, put
from tests.support.golden import golden_line

if TYPE_CHECKING:
    from installer.config_text import Value

BAD, WARN = Level.BAD, Level.WARN
SAID = Path(__file__).parents[1] / "golden/doctor.json"


@dataclass(frozen=True)
class Act:
    """What is done to the files of the node, to what is read of it, or both."""

    files: Callable[[Path], Any] = lambda _: None
    facts: Callable[[Node], Node] = lambda node: node
    level: Level = BAD


def text(path: str, *words: str) -> Callable[[Path], None]:
    """Return an act that edits a file: of two words each, it has to hold the first, and gets the second."""

    def edit(root: Path) -> None:
        said = golden.FILES[path]
        for old, new in zip(words[::2], words[1::2], strict=True):
            assert old in said
            said = said.replace(old, new)
        put(root, path, said)

    return edit


def both(*acts: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Return an act that is several, one after the other."""

    def act(root: Path) -> None:
        for each in acts:
            each(root)

    return act


NO_SUCH_DEVICE = """{"cdiVersion": "0.5.0", "kind": "a.org/b", "devices": [{"name": "0", "containerEdits":
 {"deviceNodes": [{"path": "/dev/nvidia7"}]}}]}"""


by_cdi_alone = text(CONFIG, 'mode = "auto"', 'mode = "cdi"')


def gone(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path.lstrip("/")).unlink()


def logged(line: str) -> Callable[[Path], None]:
    return lambda root: put(root, "/dev/kmsg", f"4,9,9,-;{line}\n")


def node(**more: Any) -> Callable[[Node], Node]:
    return lambda node: replace(node, **more)


def driver(**more: Any) -> Callable[[Node], Node]:
    return lambda node: replace(node, driver=replace(node.driver, **more))


def toolkit(**more: Any) -> Callable[[Node], Node]:
    return lambda node: replace(node, toolkits=(replace(node.toolkits[0], **more),))


def system(**more: Any) -> Callable[[Node], Node]:
    return lambda node: replace(node, system=replace(node.system, **more))


def engine(name: str, **more: Any) -> Callable[[Node], Node]:
    def change(each: EngineExam) -> EngineExam:
        return replace(each, **more) if each.name == name else each

    return lambda node: replace(node, engines=tuple(map(change, node.engines)))


def process(pid: int, **more: Any) -> Callable[[Node], Node]:
    return lambda node: replace(
        node, processes=tuple(replace(each, **more) if each.pid == pid else each for each in node.processes)
    )


def handlers(*without: str, **more: Runtime) -> EffectiveConfig:
    return replace(
        SERVING,
        handlers={name: each for name, each in SERVING.handlers.items() if name not in without} | more,
    )


def ours(**options: bool) -> Runtime:
    table: dict[str, Value] = {
        "runtimeType": "io.containerd.runc.v2",
        "options": {"BinaryName": RUNTIME, **options},
    }
    return Runtime(RUNTIME, table)


DROP_IN = PurePosixPath("/etc/containerd/d.toml")
ENDED = "at noon, by a run that has ended"
COMPAT = "[features]\nallow-cuda-compat-libs-from-container = true\n"
WITHOUT = {"docker": EffectiveConfig({"runc": Runtime("runc")}, "runc")}


def nowhere(node: Node) -> Node:
    """Return the node with engines that serve no runtime of ours."""
    return engine("docker", serving=WITHOUT["docker"])(engine("containerd", serving=handlers("nvidia"))(node))


lost = engine("containerd", serving=handlers("nvidia"))
cri_is_off = engine(
    "containerd", serving=None, disabled=True, silence="use CRI on /c.sock (it is switched off)"
)
ACTS: dict[str, list[Act]] = {
    "gpu-driver": [
        Act(lambda root: (root / "sys/module/nvidia").rename(root / "gone")),
        Act(lambda root: link(root, f"{GPU}/driver", "../../drivers/nouveau")),
    ],
    "nouveau": [
        Act(lambda root: link(root, f"{GPU}/driver", "../../drivers/nouveau")),
        Act(lambda root: put(root, "/sys/module/nouveau/refcnt", "0\n"), level=WARN),
    ],
    "driver-signature": [
        Act(logged("Loading of unsigned module is rejected"), driver(modules=frozenset())),
        Act(lambda root: put(root, golden.SECURE_BOOT, "\x06\0\0\0\x01"), driver(modules=frozenset()), WARN),
    ],
    "driver-libraries": [Act(gone("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"))],
    "driver-version": [Act(text("/sys/module/nvidia/version", "550.54.15", "550.90.07"))],
    "driver-age": [Act(text("/sys/module/nvidia/version", "550.54.15", "418.87.01"), level=WARN)],
    "control-nodes": [Act(facts=driver(nodes=golden.NODES[:2]))],
    "uvm": [Act(text("/proc/devices", "508 nvidia-uvm\n", ""))],
    "char-links": [
        Act(gone("/dev/char/508:1"), node(runc={"/r/runc": ((1, 1, 5), "runc 1.1.5")})),
        Act(gone("/dev/char/508:1"), level=WARN),
    ],
    "xid": [
        Act(logged("NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.")),
        Act(logged("NVRM: Xid (PCI:0000:17:00): 31, pid=7, MMU Fault"), level=WARN),
    ],
    "fabric-manager": [
        Act(facts=process(702, version=(535, 104, 5))),
        Act(facts=process(702, name="sleep")),
    ],
    "persistenced": [Act(facts=driver(persistenced="dead"))],
    "cdi-specification": [
        Act(both(gone(SPEC), by_cdi_alone)),
        # No engine takes these for one of nvidia.com/gpu.
        Act(both(text(SPEC, "kind: nvidia", "kind: a.org/b\n#kind: nvidia"), by_cdi_alone)),
        Act(both(text(SPEC, "devices:", "empty:"), by_cdi_alone)),
    ],
    "cdi-uvm-number": [Act(text(SPEC, "major: 508", "major: 511"))],
    "cdi-paths": [
        Act(gone("/usr/bin/nvidia-smi")),
        Act(lambda root: put(root, "/etc/cdi/own.json", NO_SUCH_DEVICE)),
    ],
    "cdi-mig": [Act(text(SPEC, "            - path: /dev/nvidia-caps/nvidia-cap13\n", ""))],
    "cdi-version": [
        Act(text(SPEC, "0.5.0", "0.7.0"), engine("containerd", version=(1, 6, 20))),
        Act(text(SPEC, "0.5.0", "0.7.0"), engine("docker", version=(20, 10, 24))),
    ],
    "cdi-enabled": [Act(facts=engine("containerd", serving=replace(SERVING, cdi=False)), level=WARN)],
    "cdi-alone": [
        Act(gone(SPEC), golden.by_cdi),
        Act(gone(SPEC), lambda node: replace(golden.by_cdi(node), by_cdi=CdiRow((), "no driver"))),
        Act(
            facts=lambda node: engine("containerd", serving=replace(SERVING, cdi=False))(golden.by_cdi(node))
        ),
        Act(facts=lambda node: engine("containerd", serving=SERVING)(golden.by_cdi(node))),  # of no directory
        Act(facts=lambda node: replace(golden.by_cdi(node), by_cdi=CdiRow((), f"{SPEC} has one GPU"))),
    ],
    "nri-plugin": [
        Act(facts=node(plugin=(("not registered since noon", False),))),
        Act(facts=node(plugin=(("registered", True), ("1 containers run without", False)))),
    ],
    "libnvidia-container": [Act(facts=toolkit(library=(1, 0, 0)))],
    "cgroup2": [Act(facts=toolkit(library=(1, 7, 0)))],
    "toolkit-versions": [Act(facts=toolkit(library=(1, 17, 4)), level=WARN)],
    "ldconfig": [
        Act(text(CONFIG, "@/sbin/ldconfig", "@/sbin/ldconfig.real")),
        Act(text(CONFIG, "@/sbin", "/sbin")),
    ],
    "no-cgroups": [Act(text(CONFIG, "no-cgroups = false", "no-cgroups = true"))],
    "mode": [
        Act(text(CONFIG, 'mode = "auto"', 'mode = "csv"')),
        Act(text(CONFIG, '"auto"', '"cdi"', "detection = true", "detection = false"), level=WARN),
    ],
    "low-level-runtime": [
        Act(text(CONFIG, "/usr/sbin/runc", "/usr/sbin/no-runc")),
        Act(text(CONFIG, "/usr/sbin/runc", RUNTIME)),
    ],
    "toolkits": [
        Act(facts=lambda node: replace(node, toolkits=(*node.toolkits, golden.OTHER)), level=WARN),
        Act(
            facts=engine(
                "docker", serving=EffectiveConfig({"n": Runtime("/usr/bin/nvidia-container-runtime")}, "n")
            ),
            level=WARN,
        ),
    ],
    "toolkit-log": [
        Act(text(CONFIG, '"/dev/null"', '"/run/n.log"', '"info"', '"debug"'), level=WARN),
    ],
    "installation": [
        Act(facts=node(installed=(("/etc/x", "drifted: runtimes.nvidia", False),))),
        Act(facts=node(configured={"crio": ("crio.service", "inactive/dead/success")})),
        Act(facts=node(configured={"crio": ("", "")})),
        Act(facts=node(configured={"crio": ("crio.service", golden.RUNS)})),
        Act(facts=node(configured={"crio": ("crio.service", "masked/dead/success")})),
        Act(facts=node(unwatched=ENDED), level=WARN),
    ],
    "engine-answers": [Act(facts=engine("docker", serving=None, silence="no answer within 3 s"))],
    "engine-ready": [
        Act(facts=engine("containerd", serving=None, failed=True, silence="CRI did not load")),
        Act(facts=engine("containerd", serving=replace(SERVING, ready=False))),
        Act(
            facts=lambda node: cri_is_off(
                replace(node, configured={"containerd": ("c.service", golden.RUNS)})
            )
        ),
    ],
    "engine-below": [
        Act(facts=engine("docker", unable="start containers with Docker (its containerd hangs)"))
    ],
    "engine-unit": [
        Act(facts=engine("containerd", unit_state="failed/failed/exit-code")),
        Act(facts=system(units={"k3s.service": "activating/auto-restart/exit-code"})),
        Act(facts=system(units={"crio.service": "failed/failed/exit-code"})),
        Act(
            lambda root: put(root, "/etc/k0s/containerd.d/nvidia.toml", "version = 2\n"),
            system(units={"k0sworker.service": "failed/failed/exit-code"}),
        ),
    ],
    "engine-kind": [Act(facts=engine("docker", another="Podman answers on it"), level=WARN)],
    "config-accepted": [
        Act(facts=engine("containerd", on_disk=EffectiveConfig({}, "", broken="expected key, found '='"))),
        Act(facts=engine("containerd", on_disk=replace(SERVING, undefined="gone"))),
        Act(facts=engine("docker", invalid="read /etc/docker/daemon.json (it is a directory)")),
        Act(
            facts=engine("docker", next_flaw="docker.service would not start it again: its ExecStart is gone")
        ),
    ],
    "config-in-force": [
        Act(facts=engine("containerd", on_disk=handlers("nvidia"))),
        Act(facts=engine("containerd", on_disk=handlers(kata=Runtime("/opt/kata")))),
        # Of several configs none is blamed.
        Act(
            facts=engine(
                "containerd", files=(CONTAINERD, DROP_IN), on_disk=handlers(kata=Runtime("/opt/kata"))
            )
        ),
    ],
    "default-runtime": [
        Act(facts=engine("containerd", serving=replace(SERVING, default="gone"))),
    ],
    "config-schema": [
        Act(
            facts=engine(
                "containerd",
                trees={CONTAINERD: {"version": 2}, DROP_IN: {"version": 3}},
            )
        )
    ],
    "cgroup-driver": [
        Act(text("/var/lib/kubelet/config.yaml", "systemd", "cgroupfs")),
        Act(lambda root: put(root, "/proc/900/cmdline", "kubelet\0--cgroup-driver\0cgroupfs\0")),
    ],
    "docker-hook": [Act(facts=engine("docker", has_hook=False, serving=WITHOUT["docker"]), level=WARN)],
    "live-restore": [
        Act(
            facts=lambda node: engine("docker", serving=replace(WITHOUT["docker"], live_restore=False))(
                replace(node, installed=(("docker", f"features.cdi {AT_NEXT_START}", True),))
            ),
            level=WARN,
        )
    ],
    "runtime-served": [
        Act(facts=nowhere),
        Act(facts=lost, level=WARN),
        Act(facts=lambda node: nowhere(replace(node, toolkits=(golden.OTHER,))), level=WARN),
    ],
    "runtime-programs": [
        Act(facts=lambda node: replace(node, programs=node.programs - {RUNTIME})),
        Act(facts=lambda node: replace(node, programs=node.programs - {"runc"})),
    ],
    "runtime-options": [
        Act(facts=engine("containerd", serving=handlers(nvidia=ours(SystemdCgroup=False)))),
        Act(facts=engine("containerd", serving=handlers(nvidia=ours()))),
    ],
    "runtime-type": [
        Act(facts=engine("containerd", serving=handlers(nvidia=Runtime(RUNTIME, {"options": {}})))),
    ],
    "option-twice": [
        Act(
            facts=engine(
                "containerd",
                trees={
                    CONTAINERD: {"runtimes": {"n": {"options": {"BinaryName": "/a", "binaryName": "/b"}}}}
                },
            )
        )
    ],
    "shim-nil-pointer": [
        Act(facts=process(701, version=(), nil_pointer=True, deleted=True)),
        Act(facts=process(701, version=(1, 2, 2))),
        Act(facts=process(701, version=(1, 2, 1))),
    ],
    "containerd-nil-pointer": [
        Act(facts=process(700, version=(1, 2, 2))),
        Act(facts=process(700, version=(1, 2, 4)), level=WARN),
    ],
    "shim-replaced": [Act(facts=process(701, deleted=True), level=WARN)],
    "apparmor": [
        Act(logged('audit: apparmor="DENIED" operation="signal" profile="c" peer="runc"')),
        Act(text("/sys/kernel/security/apparmor/profiles", "docker-default (", "runc ("), level=WARN),
    ],
    "selinux": [
        Act(
            level=WARN,
            facts=driver(
                nodes=tuple(replace(each, label="u:r:xserver_misc_device_t:s0") for each in golden.NODES)
            ),
        )
    ],
    "inotify": [
        Act(facts=system(inotify=(128, 128))),
        Act(facts=system(inotify=(110, 128)), level=WARN),
    ],
    "run-space": [
        Act(facts=system(spaces={PurePosixPath("/run"): (100, -1)})),
        Act(facts=system(spaces={PurePosixPath("/run"): (10, 97)})),
        Act(facts=system(spaces={PurePosixPath("/run"): (90, -1)}), level=WARN),
    ],
    "disk-space": [Act(facts=system(spaces={PurePosixPath("/var/lib/docker"): (99, -1)}))],
    "driver-services": [
        Act(facts=system(units={"nvidia-persistenced.service": "failed/failed/exit-code"})),
        Act(facts=system(units={"nvidia-cdi-refresh.service": "inactive/dead/exit-code"}), level=WARN),
    ],
    "holes-toolkit": [Act(facts=toolkit(ctk=(1, 17, 7)), level=WARN)],
    "cuda-compat": [
        Act(text(CONFIG, "[nvidia-container-cli]", f"{COMPAT}\n[nvidia-container-cli]"), level=WARN),
    ],
    "holes-runc": [Act(facts=node(runc={"/usr/bin/runc": ((1, 1, 5), "runc 1.1.5")}), level=WARN)],
    "holes-containerd": [Act(facts=process(700, version=(2, 1, 4), label="containerd 2.1.4"), level=WARN)],
}


# What is no fault of a check's, although it looks like one.
CALM: list[tuple[str, Act]] = [
    ("engine-ready", Act(facts=cri_is_off)),  # we do not configure it
    ("installation", Act(facts=node(unwatched=ENDED, run_waits=True))),
    ("runtime-served", Act(facts=lambda node: replace(lost(node), exempt=frozenset({"containerd"})))),
    (
        "cdi-alone",
        Act(facts=lambda node: driver(modules=frozenset())(replace(golden.by_cdi(node), specs=()))),
    ),
    (
        "docker-hook",
        Act(
            facts=lambda node: engine("docker", serving=WITHOUT["docker"], has_hook=False)(
                replace(node, configured={"docker": ("docker.service", golden.RUNS)})
            )
        ),
    ),
    ("mode", Act(lambda root: put(root, CONFIG, "nvidia-container-runtime = {mode = [], debug = 'x'}\n"))),
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
    """Return a node on which nothing is wrong."""
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
    off = replace(docker, serving=replace(docker.serving, live_restore=False), has_hook=False)
    like = off if name == "docker" else containerd
    usual = replace(like, name=name, config=kind.config, files=(kind.config,), trees={}, unit=kind.unit)
    alone = replace(usual, serving=WITHOUT["docker"], on_disk=WITHOUT["docker"])

    assert wrong(replace(good, engines=(usual,))) == []
    assert wrong(replace(good, engines=(alone,), toolkits=(), installed=())) == []


def test_nothing_is_wrong_with_a_node_without_gpu_toolkit_and_engine() -> None:
    assert wrong(Node()) == []


@pytest.mark.parametrize(
    ("name", "number", "act"),
    [
        pytest.param(name, number, act, id=f"{name}-{number}")
        for name in CHECKS
        for number, act in enumerate(ACTS[name], 1)
    ],
)
def test_an_act_turns_its_check(tmp_path: Path, name: str, number: int, act: Act) -> None:
    verdict = verdicts(after(tmp_path, act))[name]

    assert verdict.level is act.level, verdict.found
    assert golden_line(SAID, f"{name} {number}", verdict.found) == verdict.found


@pytest.mark.parametrize(("name", "act"), CALM)
def test_what_only_looks_like_a_fault_turns_no_check(tmp_path: Path, name: str, act: Act) -> None:
    assert verdicts(after(tmp_path, act))[name].level is Level.OK


def test_what_follows_from_a_fault_that_another_check_names_is_no_second_line(good: Node) -> None:
    undefined = engine("containerd", on_disk=replace(SERVING, undefined="gone"))
    rewritten = replace(good, installed=(("containerd", "drifted: the runtime nvidia is missing", False),))

    assert wrong(undefined(good)) == ["config-accepted"]
    without = engine("containerd", serving=handlers("nvidia"), on_disk=handlers("nvidia"))
    assert wrong(without(rewritten)) == ["installation"]


def test_of_a_containerd_whose_program_is_not_seen_the_engines_own_version_counts(good: Node) -> None:
    assert "containerd 2.1.9" in verdicts(replace(good, processes=()))["holes-containerd"].found


def test_while_run_waits_no_remedy_names_the_install_that_it_keeps_out(good: Node) -> None:
    node = replace(golden.by_cdi(good), specs=(), installed=(("/etc/x", "drifted: runtimes.nvidia", False),))

    alone, waits = (verdicts(replace(node, run_waits=waits)) for waits in (False, True))

    for name in ("installation", "cdi-alone"):
        assert "`toolkit-installer install" in str(alone[name].remedy)
        assert "toolkit-installer install" not in str(waits[name].remedy)
        assert "`toolkit-installer reconcile`" in str(waits[name].remedy)


def test_each_check_has_its_function_and_its_remedy() -> None:
    names = {name for name in FUNCTIONS if name.startswith("check_")}

    assert names == {f"check_{name.replace('-', '_')}" for name in CHECKS}
    assert [name for name, (_, row) in CHECKS.items() if not row["remedy"]] == []
