"""A pod of deploy/ on a node, as the kubelet would have the engine run it: all of it is the manifest's own."""

import ctypes
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from tests.deploy.rendered import Manifest, kustomized, pod_of
from tests.engines.cri import Container, CriError, Mount, Pod
from tests.engines.nodes import Node
from tests.support.entry import VERSION
from tests.support.waiting import until

TAG = VERSION
POLICY = "TOOLKIT_INSTALLER_ON_EXIT"
LOGS = "run/podlogs"
NODE_NAME = "gpu-node-1"  # what a manifest takes from spec.nodeName
ACCOUNT = "var/lib/account"  # on the node: the kubelet's token of the pod
POD_LOGS = "var/log/pods"
CLONE_NEWNET = 0x40000000  # linux/sched.h
SUFFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def apply(node: Node, name: str, pod: Manifest, tag: str, drop: str = "") -> "Running":
    """Start a pod of deploy/ of one container; ``tag`` is the image's, ``drop`` a capability that it does not get.

    The nodes have no CNI: the pod is on the node's network, which is all that is not the manifest's. Its name is that
    of its host, as of all that have a network of their own.
    """
    (container,) = pod["containers"]
    security = container["securityContext"]
    volumes = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    mounts = []
    for each in container["volumeMounts"]:
        from_host = each.get("mountPropagation") == "HostToContainer"
        there = volumes[each["name"]]
        mounts.append(Mount(each["mountPath"], there, each.get("readOnly", False), from_host))
    limit = container.get("resources", {}).get("limits", {}).get("memory", "0Mi")
    assert security["capabilities"]["drop"] == ["ALL"]
    assert not pod.get("hostPID")
    wanted = Container(
        command=tuple(container["command"]),
        args=tuple(container["args"]),
        image=f"localhost/{container['image'].partition(':')[0]}:{tag}",
        mounts=tuple(mounts),
        env={each["name"]: each.get("value", NODE_NAME) for each in container["env"]} | {"HOSTNAME": name},
        log=f"{name}.log",
        memory_limit=int(limit[:-2]) * SUFFIXES[limit[-2:]],
        read_only_root=security["readOnlyRootFilesystem"],
        capabilities=tuple(name for name in security["capabilities"]["add"] if name != drop),
        confined=security["seccompProfile"]["type"] == "RuntimeDefault"
        and not security["allowPrivilegeEscalation"],
        apparmor=False,
        selinux_type=security["seLinuxOptions"]["type"],
    )
    sandbox = node.cri.run_pod(name=name)
    started = node.cri.start(sandbox, wanted)
    return Running(node, sandbox, started, wanted.log, pod["terminationGracePeriodSeconds"])


@dataclass
class Running:
    """A pod of one container that was started; ``delete`` does as the kubelet: TERM, KILL after its grace, removal."""

    node: Node
    sandbox: Pod
    container: str
    file: str
    grace_s: int
    code: int = 0

    def log(self) -> str:
        return (self.node.root / LOGS / self.file).read_text()

    def runs(self) -> bool:
        return self._state()[0] == 1

    def exit_code(self) -> int:
        return self._state()[1]

    def _state(self) -> tuple[int, int]:
        try:
            return self.node.cri.container_state(self.container)
        except CriError:  # the engine is being restarted
            self.node.cri.wait()
            return self.node.cri.container_state(self.container)

    def exec(self, *command: str) -> CompletedProcess[str]:
        try:
            return self.node.cri.exec(self.container, *command)
        except CriError as error:  # which is a probe that failed
            return CompletedProcess(command, 1, "", str(error))

    def kill(self) -> None:
        self.node.cri.stop_container(self.container)

    def delete(self) -> int:
        with suppress(CriError):  # its call ends with the containerd that took it
            self.node.cri.stop_container(self.container, self.grace_s)
        self.node.cri.wait()
        until(self._is_removed, self.log)
        self.node.cri.remove_pod(self.sandbox)
        return self.code

    def _is_removed(self) -> bool:
        try:
            self.node.cri.stop_container(self.container, self.grace_s)
            self.code = self.exit_code()
            self.node.cri.remove_container(self.container)
        except CriError:  # a containerd that has just started may not know yet that it has ended
            return False
        return True


def announce(node: Node, name: str) -> None:
    """Make the directory for a pod's logs, as the kubelet does right before it asks for the pod's sandbox."""
    (node.root / POD_LOGS / f"node-toolkit-installer_{name}_uid-{name}").mkdir(parents=True)


def forget(node: Node) -> None:
    """Remove these directories, as the kubelet does some time after the pods."""
    for directory in (node.root / POD_LOGS).iterdir():
        directory.rmdir()
    (node.root / POD_LOGS).rmdir()


def problem(log: str) -> str:
    """Return the sentence in which the installer ended, from whatever surrounds it in the log."""
    said = [line[line.index("{") :] for line in log.splitlines() if "{" in line]
    found = [json.loads(line) for line in said if '"problem"' in line]
    return f"{found[-1]['problem']}; {found[-1]['remedy']}" if found else log


def daemon_set(policy: str, **more: str) -> Manifest:
    """Return the pod of the overlay for mixed clusters with a policy, and more of our variables."""
    pod = pod_of(kustomized("overlays/auto"))
    (container,) = pod["containers"]
    env = [{**each, "value": policy} if each["name"] == POLICY else each for each in container["env"]]
    env += [{"name": f"TOOLKIT_INSTALLER_{name}", "value": value} for name, value in more.items()]
    return {**pod, "containers": [{**container, "env": env}]}


def network_of(node: Node) -> AbstractContextManager[None]:
    """Let this thread make sockets in the network of a node during the block."""
    return _entered(Path(f"/proc/{node.leader}/ns/net"))


@contextmanager
def _entered(network: Path) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as own, network.open() as other:
        assert libc.setns(other.fileno(), CLONE_NEWNET) == 0
        try:
            yield
        finally:
            assert libc.setns(own.fileno(), CLONE_NEWNET) == 0


def with_api(pod: Manifest, port: int) -> Manifest:
    """Return a pod of components/auto as the kubelet runs it: with the API's address and the token's directory."""
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is True
    host, number = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
    env = [*container["env"], {"name": host, "value": "127.0.0.1"}, {"name": number, "value": str(port)}]
    mount = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    mounts = [*container["volumeMounts"], mount]
    token = {"name": "token", "hostPath": {"path": f"/{ACCOUNT}"}}
    containers = [{**container, "env": env, "volumeMounts": mounts}]
    return {**pod, "containers": containers, "volumes": [*pod["volumes"], token]}


def probe(pod: Running, manifest: Manifest, kind: str) -> int:
    """Run the pod's ``readinessProbe`` or ``livenessProbe`` and return its exit code."""
    (container,) = manifest["containers"]
    return pod.exec(*container[kind]["exec"]["command"]).returncode


def begin(node: Node, name: str, manifest: Manifest, tag: str = TAG, drop: str = "") -> Running:
    """Start a pod, without a capability if one is named, and return as soon as it is ready."""
    pod = apply(node, name, manifest, tag, drop)

    def is_ready() -> bool:
        assert pod.runs(), pod.log()
        return probe(pod, manifest, "readinessProbe") == 0

    until(is_ready, pod.log)
    return pod


def on_disk(files: dict[str, str]) -> dict[str, str]:
    """Return the files without those that a boot begins anew with."""
    return {path: what for path, what in files.items() if not path.startswith("/run/")}
