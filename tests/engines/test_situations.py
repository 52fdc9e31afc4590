"""What happens on a node between an engine's start and ours: which of it is refused, and which goes on with a note.

Each situation is asked on the host and in our pod. There the kernel keeps the environment, the program and the root
of an engine from us. The host's side of some is a test elsewhere, which their row names.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from subprocess import CompletedProcess

import pytest
from _pytest.mark import ParameterSet

from installer.config_text import Value
from tests.engines.bound_docker import bind, is_running, run_container
from tests.engines.configs import CONTAINERD, DAEMON_JSON, DOCKER
from tests.engines.conftest import Containerd
from tests.engines.cri import Cri
from tests.engines.crio_nodes import (
    ASKED,
    CONTAINER,
    DEADLY,
    OWNERS,
    UNIT_DROP_IN,
    crio,
    crio_node,
    owned,
    write_unit,
)
from tests.engines.distribution import UNSEEN, Distribution
from tests.engines.load_texts import registry_mirrors, spell
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.rancher_nodes import TEMPLATE, name_of, rancher, use_template
from tests.engines.second_engines import DOCKERD, started
from tests.engines.told import but_the_ledger, sentence, served, snapshot, starts

pytestmark = pytest.mark.any_version
__all__ = ["crio", "crio_node", "owned", "rancher"]  # fixtures

Containerds = dict[str, Containerd]
HOST_ROOT = "/run/container/host"
POD = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh")
SIDES = ("host", "pod")
PROGRAM = "/usr/bin/containerd"
LEDGER = "/usr/local/nvidia/.toolkit-installer/ledger"
UNIT_FILE = "/run/systemd/system/containerd.service.d/site.conf"
CHANGED = f"{CONTAINERD} was changed after the start of containerd: its restart brings that into force"


def ask(node: Node, side: str, verb: str, *words: str) -> CompletedProcess[str]:
    """Run a verb on the host, or in a container with the rights of our pod."""
    if side == "host":
        return node.installer(verb, *words)
    words = tuple(word.replace("containerd=/", f"containerd={HOST_ROOT}/") for word in words)
    return node.run([*POD, verb, *words, "--host-root", HOST_ROOT], check=False)


def _edit_unit(node: Node, text: str) -> None:
    node.write(UNIT_FILE, f"[Service]\n{text}\n")
    node.run(["systemctl", "daemon-reload"])


def _add_keys(node: Node, keys: Mapping[str, Value]) -> None:
    node.write(CONTAINERD, spell(node, node.read(CONTAINERD), keys))


def cloud_init_writes(node: Node, _: Containerds) -> None:
    node.write(CONTAINERD, f"# Written by cloud-init.\n{node.read(CONTAINERD)}")


def kubeadm_joins(node: Node, _: Containerds) -> None:
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "loopback"}]}
    node.write("/etc/cni/net.d/10-pods.conflist", json.dumps(network))
    node.write("/etc/kubernetes/kubelet.conf", "apiVersion: v1\n")


def kubeadm_wants_systemds_cgroups(node: Node, _: Containerds) -> None:
    node.write(CONTAINERD, node.read(CONTAINERD).replace("SystemdCgroup = false", "SystemdCgroup = true", 1))


def _add_kata(node: Node) -> None:
    _add_keys(node, {"R|containerd|runtimes|kata|snapshotter": ""})


def kata_adds_its_handler(node: Node, _: Containerds) -> None:
    _add_kata(node)


def kata_takes_its_handler_away(node: Node, _: Containerds) -> None:
    usual = node.read(CONTAINERD)
    _add_kata(node)
    node.restart_engine()
    node.write(CONTAINERD, usual)


def nydus_does_not_run(node: Node, _: Containerds) -> None:
    proxy = {"proxy_plugins|nydus|type": "snapshot", "proxy_plugins|nydus|address": "/run/nydus.sock"}
    _add_keys(node, {"N|snapshotter": "nydus", **proxy})


def apt_upgrades(node: Node, _: Containerds) -> None:
    node.run(["cp", PROGRAM, f"{PROGRAM}.new"])
    node.run(["mv", f"{PROGRAM}.new", PROGRAM])


def apt_upgrades_to_another_major_version(node: Node, containerds: Containerds) -> None:
    other = "sid" if node.containerd_version.startswith("1.") else "bookworm"
    shutil.copy(containerds[other][0], node.path(f"{PROGRAM}.new"))
    node.run(["mv", f"{PROGRAM}.new", PROGRAM])


def a_tool_writes_the_same(node: Node, _: Containerds) -> None:
    node.write(CONTAINERD, node.read(CONTAINERD))


def a_tool_writes_the_same_after_an_install(node: Node, _: Containerds) -> None:
    node.installer("install", *SOURCE, check=True)
    node.write(CONTAINERD, node.read(CONTAINERD))
    node.run(["touch", CONTAINERD])


def a_proxy_is_set(node: Node, _: Containerds) -> None:
    _edit_unit(node, "Environment=HTTPS_PROXY=http://who:secret@proxy:1")


def an_earlier_version_of_ours_was_installed(node: Node, _: Containerds) -> None:
    node.installer("install", *SOURCE, "--runtime-name", "gpu", check=True)


def its_ledger_is_lost_too(node: Node, _: Containerds) -> None:
    node.installer("install", *SOURCE, check=True)
    node.run(["rm", LEDGER])


def it_reboots(node: Node, _: Containerds) -> None:
    node.write(CONTAINERD, node.read(CONTAINERD))
    node.reboot()
    node.cri.wait()


def an_image_deploys_files_of_1970(node: Node, _: Containerds) -> None:
    """Have the times of an ostree: of what is in a file they say nothing, of its placing ctime does."""
    node.run(["cp", CONTAINERD, "/etc/containerd/new"])
    node.run(["touch", "--date=@0", "/etc/containerd/new"])
    node.run(["mv", "/etc/containerd/new", CONTAINERD])


def an_image_deployed_files_of_1970_before_the_start(node: Node, containerds: Containerds) -> None:
    an_image_deploys_files_of_1970(node, containerds)
    node.restart_engine()


def mirrors_stand_beside_a_config_path(node: Node, _: Containerds) -> None:
    node.write(CONTAINERD, node.read(CONTAINERD) + registry_mirrors(node))


def a_base_spec_is_cut_short(node: Node, _: Containerds) -> None:
    spec = "/etc/containerd/cri-base.json"
    node.write(spec, node.run(["ctr", "oci", "spec"]).stdout)
    _add_keys(node, {"R|containerd|runtimes|runc|base_runtime_spec": spec})
    node.restart_engine()
    node.write(spec, '{"ociVersion": "1.0')


def its_unit_names_another_config(node: Node, _: Containerds) -> None:
    node.run(["cp", CONTAINERD, "/opt/mine.toml"])
    _edit_unit(node, f"ExecStart=\nExecStart={PROGRAM} --config /opt/mine.toml")
    node.restart_engine()


def its_unit_gets_a_word_that_it_dies_of(node: Node, _: Containerds) -> None:
    _edit_unit(node, f"ExecStart=\nExecStart={PROGRAM} --bogus-flag")


def its_unit_gets_a_variable_file_that_is_missing(node: Node, _: Containerds) -> None:
    _edit_unit(node, "EnvironmentFile=/opt/variables")


@dataclass(frozen=True)
class Situation:
    """An act of a node's owner; the words of its refusal, or what a plan notes and does not note."""

    happens: Callable[[Node, Containerds], None]
    refused: str = ""
    notes: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    words: tuple[str, ...] = SOURCE
    undo_differs: bool = False  # the same is no reason against an undo, or another one
    sides: tuple[str, ...] = field(default=SIDES)


ON_POD = ("pod",)
SITUATIONS = {
    # refused
    "kubeadm's pending SystemdCgroup": Situation(  # host: test_pending.py, what is served now
        kubeadm_wants_systemds_cgroups,
        "its next start gives the runtime runc SystemdCgroup = true, and it runs with false",
        sides=ON_POD,
    ),
    "kata's handler goes": Situation(  # host: test_pending.py, what is served now
        kata_takes_its_handler_away,
        "its next start takes away the runtime kata, which it serves",
        sides=ON_POD,
    ),
    "nydus does not run": Situation(
        nydus_does_not_run, f"the snapshotter nydus of {CONTAINERD} does not answer on /run/nydus.sock"
    ),
    "another major version": Situation(  # host: test_pending.py, another major version
        apt_upgrades_to_another_major_version,
        "its program was replaced by one of another major version",
        sides=ON_POD,
    ),
    "mirrors beside a config_path": Situation(  # host: test_load.py
        mirrors_stand_beside_a_config_path, "and registry.config_path is set too", sides=ON_POD
    ),
    "a base spec that is cut short": Situation(  # host: test_load.py
        a_base_spec_is_cut_short, "which is no whole JSON", sides=ON_POD
    ),
    "a config that it does not read": Situation(  # host: test_unread_configs.py
        its_unit_names_another_config,
        f"cannot configure containerd in {CONTAINERD} (it reads /opt/mine.toml)",
        words=(*SOURCE, "--config", f"containerd={CONTAINERD}"),
        undo_differs=True,
        sides=ON_POD,
    ),
    "a word of its unit": Situation(  # host: test_pending.py, what a unit says
        its_unit_gets_a_word_that_it_dies_of, "flag provided but not defined", sides=ON_POD
    ),
    "a variable file that is missing": Situation(  # host: test_pending.py, what a unit says
        its_unit_gets_a_variable_file_that_is_missing, "EnvironmentFile /opt/variables is not", sides=ON_POD
    ),
    # goes on
    "cloud-init": Situation(cloud_init_writes, notes=(CHANGED,)),
    "kubeadm join": Situation(kubeadm_joins, unsaid=(CHANGED,)),
    "kata's handler is new": Situation(
        kata_adds_its_handler, notes=("the restart of containerd adds the runtime kata",)
    ),
    "apt upgrade": Situation(
        apt_upgrades,
        notes=(f"{PROGRAM} was replaced after the start of containerd: its restart runs the new program",),
    ),
    "the same text, for the first time": Situation(a_tool_writes_the_same, notes=(CHANGED,)),
    "the same text, after an install": Situation(
        a_tool_writes_the_same_after_an_install, unsaid=(CHANGED,), words=(*SOURCE, "--set-as-default")
    ),
    "a proxy": Situation(
        a_proxy_is_set,
        notes=("containerd.service was changed after the start of containerd",),
        unsaid=("secret",),
    ),
    "an earlier install of ours": Situation(
        an_earlier_version_of_ours_was_installed, unsaid=(CHANGED,), words=(*SOURCE, "--set-as-default")
    ),
    "an earlier install of ours without its ledger": Situation(
        its_ledger_is_lost_too, unsaid=("that others have defined",), words=(*SOURCE, "--set-as-default")
    ),
    "a reboot": Situation(it_reboots, unsaid=(CHANGED,)),
    "an image of 1970, after the start": Situation(an_image_deploys_files_of_1970, notes=(CHANGED,)),
    "an image of 1970, before the start": Situation(
        an_image_deployed_files_of_1970_before_the_start, unsaid=(CHANGED,)
    ),
}


def list_cases(*, refused: bool, undo: bool = False) -> Iterator[ParameterSet]:
    for name, situation in SITUATIONS.items():
        if bool(situation.refused) == refused and not (undo and situation.undo_differs):
            for side in situation.sides:
                yield pytest.param(situation, side, id=f"{name}, {side}")


def test_our_pod_may_not_look_at_the_engine(containerd_node: Node) -> None:
    node = containerd_node
    process = f"{HOST_ROOT}/proc/{node.pid_of()}"
    looks = CONTAINER.replace('-m installer "$@"', '-c "import os, sys; os.open(sys.argv[1], 0)" "$@"')
    contained = (*POD[:-2], looks, "sh")

    for name in ("environ", "exe", "root/etc/hostname"):
        done = node.run([*contained, f"{process}/{name}"], check=False)
        assert "PermissionError" in done.stderr, (name, done)
    assert node.run([*contained, f"{process}/cmdline"], check=False).returncode == 0


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("situation", "side"), [*list_cases(refused=True)])
def test_an_install_is_refused_and_nothing_is_changed(
    containerd_node: Node, containerds: Containerds, cri: Cri, situation: Situation, side: str
) -> None:
    node = containerd_node
    situation.happens(node, containerds)
    container = cri.start_container(cri.run_pod())
    files, pid = snapshot(node), node.pid_of()

    plan = ask(node, side, "plan", *situation.words, "--json")
    done = ask(node, side, "install", *situation.words)

    assert (plan.returncode, done.returncode) == (1, 1), (plan.stdout, done.stderr)
    assert situation.refused in " ".join(each["problem"] for each in json.loads(plan.stdout)["obstacles"])
    assert situation.refused in sentence(done.stderr)
    assert (snapshot(node), node.pid_of()) == (files, pid)
    assert cri.exec(container, "echo", "alive").stdout == "alive\n"


@pytest.mark.night
@pytest.mark.parametrize(("situation", "side"), [*list_cases(refused=True, undo=True)])
def test_an_undo_restarts_nothing_into_it(
    containerd_node: Node, containerds: Containerds, cri: Cri, situation: Situation, side: str
) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    situation.happens(node, containerds)
    if "nvidia" not in node.read(CONTAINERD):  # the act has put a text of before in place
        node.installer("install", *SOURCE, check=True)
    container = cri.start_container(cri.run_pod())
    pid = node.pid_of()

    done = ask(node, side, "uninstall")

    assert done.returncode == 4, done.stderr
    assert situation.refused in sentence(done.stderr)
    assert node.pid_of() == pid
    assert node.has("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    assert cri.exec(container, "echo", "alive").stdout == "alive\n"


@pytest.mark.night
@pytest.mark.parametrize("edited", [True, False], ids=["edited", "not edited"])
def test_a_start_that_is_not_seen_is_that_of_the_unit(containerd_node: Node, *, edited: bool) -> None:
    node = containerd_node
    if edited:
        node.write(CONTAINERD, node.read(CONTAINERD))

    plan = node.run([*UNSEEN, PYTHON, "-m", "installer", "plan", *SOURCE, "--json"], check=False)

    assert plan.returncode == 10, plan.stdout + plan.stderr
    assert (CHANGED in json.loads(plan.stdout)["notes"]) == edited


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("situation", "side"), [*list_cases(refused=False)])
def test_an_install_goes_on_and_notes_what_it_brings_into_force(
    containerd_node: Node, containerds: Containerds, situation: Situation, side: str
) -> None:
    node = containerd_node
    situation.happens(node, containerds)
    cri = node.cri
    container = cri.start_container(cri.run_pod())
    before = served(node)[0]

    plan = ask(node, side, "plan", *situation.words, "--json")
    done = ask(node, side, "install", *situation.words)

    assert (plan.returncode, done.returncode) == (10, 0), (plan.stdout, done.stderr)
    notes = "\n".join(json.loads(plan.stdout)["notes"])
    for said in situation.notes:
        assert said in notes
        assert said in done.stderr
    for unsaid in situation.unsaid:
        assert unsaid not in plan.stdout + done.stderr
    assert served(node)[0] >= {"runc"} | OURS | (before - {"gpu", "gpu-cdi", "gpu-legacy"})
    assert cri.exec(container, "echo", "alive").stdout == "alive\n"
    undone = ask(node, side, "uninstall")
    assert undone.returncode == 0, undone.stderr
    assert not served(node)[0] & OURS
    assert cri.exec(container, "echo", "alive").stdout == "alive\n"


@pytest.mark.parametrize("side", ON_POD)  # host: test_pending.py, what a reload of docker takes up
def test_a_reload_of_docker_brings_into_force_what_a_reload_takes(docker_node: Node, side: str) -> None:
    node = docker_node
    node.write(DOCKER, '{"log-driver": "json-file", "labels": ["a=b"], "data-root": "/srv/docker"}\n')

    plan = ask(node, side, "plan", *SOURCE, "--json")
    done = ask(node, side, "install", *SOURCE)

    assert (plan.returncode, done.returncode) == (10, 0), (plan.stdout, done.stderr)
    said = f"{DOCKER} was changed after the start of Docker: its reload takes up labels, too"
    assert said in json.loads(plan.stdout)["notes"]
    assert ask(node, side, "uninstall").returncode == 0


@pytest.mark.sampled(16)
@pytest.mark.parametrize("side", ON_POD)  # host: test_bound_units.py
def test_containers_of_a_bound_docker_are_not_ended(docker_node: Node, side: str) -> None:
    node = docker_node
    node.write(DOCKER, DAEMON_JSON)
    bind(node, "Requires")
    run_container(node)
    files, pids = snapshot(node), [node.pid_of(unit) for unit in ("containerd", "docker")]

    done = ask(node, side, "install", "--runtime", "containerd", *SOURCE)

    assert done.returncode == 1, done.stderr
    for said in ("docker.service, which has Requires=containerd.service", "web", "live-restore"):
        assert said in sentence(done.stderr)
    assert is_running(node)
    assert (snapshot(node), [node.pid_of(unit) for unit in ("containerd", "docker")]) == (files, pids)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("side", ON_POD)  # host: test_second_engines.py
def test_the_toolkit_outlives_an_engine_beside_ours(docker_node: Node, side: str) -> None:
    node = docker_node
    assert ask(node, side, "install", *SOURCE).returncode == 0
    node.write("/etc/docker2/daemon.json", node.read(DOCKER))
    started(node, "docker2.service", DOCKERD)

    done = ask(node, side, "uninstall")

    assert done.returncode == 4, done.stderr
    assert "Docker of docker2.service runs and reads /etc/docker2/daemon.json" in sentence(done.stderr)
    assert node.has("/usr/local/nvidia/toolkit/nvidia-container-runtime")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("side", ON_POD)  # host: test_k3s.py
def test_a_template_without_our_runtime_is_refused(rancher: Distribution, side: str) -> None:
    node, name = rancher.node, name_of(rancher.unit)
    own = node.read(TEMPLATE.replace("NAME", name).replace("config-v3.toml.tmpl", "config.toml"))
    path = use_template(rancher, own)
    files, pid = snapshot(node), node.pid_of(rancher.unit)

    done = ask(node, side, "install", *SOURCE)

    assert done.returncode == 1, done.stderr
    assert f"its template {path} defines no runtime nvidia" in sentence(done.stderr)
    assert "containerd.runtimes.nvidia] with runtime_type" in sentence(done.stderr)
    assert (snapshot(node), node.pid_of(rancher.unit)) == (files, pid)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("side", ON_POD)  # host: test_crio.py
@pytest.mark.parametrize(("text", "reason"), DEADLY.values(), ids=DEADLY)
def test_no_crio_is_restarted_into_what_its_next_start_dies_of(
    owned: Node, side: str, text: str, reason: str
) -> None:
    if text.startswith("["):
        owned.write(OWNERS, text)
    else:
        write_unit(owned, text)
    files, count = snapshot(owned), starts(owned, "crio")

    refused = ask(owned, side, "install", *ASKED)

    assert refused.returncode == 1, refused.stderr
    assert reason in sentence(refused.stderr)
    assert (starts(owned, "crio"), snapshot(owned)) == (count, files)
    owned.run(["rm", "-rf", UNIT_DROP_IN, OWNERS])
    owned.run(["systemctl", "daemon-reload"])
    assert ask(owned, side, "install", *ASKED).returncode == 0
    count = starts(owned, "crio")
    if text.startswith("["):
        owned.write(OWNERS, text)
    else:
        write_unit(owned, text)
    kept = ask(owned, side, "uninstall")
    assert (kept.returncode, reason in sentence(kept.stderr)) == (4, True), kept.stderr
    assert starts(owned, "crio") == count


@pytest.mark.sampled(16)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "text",
    ["Environment=CONTAINER_ROOT=/srv/root", "Environment=CONTAINER_RUNROOT=/srv/run"],
    ids=["root", "runroot"],
)
def test_no_crio_is_restarted_into_another_root_by_a_variable(owned: Node, side: str, text: str) -> None:
    write_unit(owned, text)
    files, count = snapshot(owned), starts(owned, "crio")

    refused = ask(owned, side, "install", *ASKED)

    assert refused.returncode == 1, refused.stderr
    assert "/srv/r" in sentence(refused.stderr)
    assert (starts(owned, "crio"), snapshot(owned)) == (count, files)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("side", SIDES)
def test_a_drop_in_that_crio_takes_is_a_note(owned: Node, side: str) -> None:
    owned.write(OWNERS, '[crio.runtime]\nlog_level = "debug"\n')

    plan = ask(owned, side, "plan", *ASKED, "--json")
    done = ask(owned, side, "install", *ASKED)

    assert (plan.returncode, done.returncode) == (10, 0), (plan.stdout, done.stderr)
    said = f"{OWNERS} was changed after the start of CRI-O: its restart brings that into force"
    assert said in json.loads(plan.stdout)["notes"]
    assert but_the_ledger(snapshot(owned))[OWNERS]


@pytest.mark.parametrize("side", ON_POD)  # host: test_crio.py, a default that the unit gives
@pytest.mark.parametrize("verb", [("install", *ASKED), ("uninstall",)], ids=["install", "uninstall"])
def test_another_default_of_the_owners_variable_is_expected(
    owned: Node, side: str, verb: tuple[str, ...]
) -> None:
    owned.installer("install", *ASKED, "--set-as-default", check=True)
    write_unit(owned, "Environment=CONTAINER_DEFAULT_RUNTIME=runc")
    count = starts(owned, "crio")

    done = ask(owned, side, *verb)

    assert done.returncode == 0, done.stderr
    assert starts(owned, "crio") == count + 1
