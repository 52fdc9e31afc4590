"""A pod of deploy/ on a node, as the kubelet would have the engine run it: all of it is the manifest's own."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from tests.deploy.rendered import Manifest
from tests.engines.cri import NODE, Container, Cri, CriError, Executed, Mount, Pod
from tests.engines.nodes import Node

LOGS = "run/podlogs"
POD_LOGS = "var/log/pods"
REMOVED_S = 60
SUFFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def wanted(pod: Manifest, tag: str, log: str, drop: str = "") -> Container:
    """Translate the one container of a pod; ``tag`` is the image's, ``drop`` a capability that it does not get.

    The nodes have no CNI: the pod is on the node's network, which is all that is not the manifest's.
    """
    (container,) = pod["containers"]
    security = container["securityContext"]
    volumes = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    mounts = tuple(
        Mount(
            each["mountPath"],
            volumes[each["name"]],
            each.get("readOnly", False),
            each.get("mountPropagation") == "HostToContainer",
        )
        for each in container["volumeMounts"]
    )
    limit = container.get("resources", {}).get("limits", {}).get("memory", "0Mi")
    assert security["capabilities"]["drop"] == ["ALL"]
    assert not pod.get("hostPID")
    return Container(
        command=tuple(container["command"]),
        args=tuple(container["args"]),
        image=f"localhost/{container['image'].partition(':')[0]}:{tag}",
        mounts=mounts,
        env={each["name"]: each["value"] for each in container["env"]},
        log=log,
        memory_limit=int(limit[:-2]) * SUFFIXES[limit[-2:]],
        read_only_root=security["readOnlyRootFilesystem"],
        capabilities=tuple(name for name in security["capabilities"]["add"] if name != drop),
        confined=security["seccompProfile"]["type"] == "RuntimeDefault"
        and not security["allowPrivilegeEscalation"],
        apparmor=False,
        selinux_type=security["seLinuxOptions"]["type"],
    )


@dataclass
class CriPod:
    """A pod of one container that was started; ``delete`` does as the kubelet: TERM, KILL after its grace, removal."""

    node: Node
    sandbox: Pod
    container: str
    file: str
    grace_s: int

    @property
    def _cri(self) -> Cri:
        return self.node.cri

    def log(self) -> str:
        return (self.node.root / LOGS / self.file).read_text()

    def runs(self) -> bool:
        return self._state()[0] == 1

    def exit_code(self) -> int:
        return self._state()[1]

    def _state(self) -> tuple[int, int]:
        try:
            return self._cri.container_state(self.container)
        except CriError:  # the engine is being restarted
            self._cri.wait()
            return self._cri.container_state(self.container)

    def exec(self, *command: str) -> Executed:
        try:
            return self._cri.exec(self.container, *command)
        except CriError as error:  # which is a probe that failed
            return Executed(1, "", str(error))

    def kill(self) -> None:
        self._cri.stop_container(self.container)

    def delete(self) -> int:
        with suppress(CriError):  # its call ends with the containerd that took it
            self._cri.stop_container(self.container, self.grace_s)
        self._cri.wait()
        deadline = time.monotonic() + REMOVED_S
        while True:
            try:
                self._cri.stop_container(self.container, self.grace_s)
                code = self.exit_code()
                self._cri.remove_container(self.container)
                break
            except CriError:  # a containerd that has just started may not know yet that it has ended
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self._cri.remove_pod(self.sandbox)
        return code


@dataclass
class DockerPod:
    """The same as a container of Docker's."""

    node: Node
    name: str
    grace_s: int

    @classmethod
    def started(cls, node: Node, name: str, wanted: Container, grace_s: int) -> Self:
        """Translate once more: the container as ``docker run`` has it."""
        words = ["--name", name, "--net", "none", "--memory", str(wanted.memory_limit)]
        words += ["--cap-drop", "ALL"] if wanted.capabilities is not None else []
        words += [word for each in wanted.capabilities or () for word in ("--cap-add", each)]
        words += ["--privileged"] if wanted.privileged else []
        words += ["--pid", "host"] if wanted.pid == NODE else []
        words += ["--security-opt", "no-new-privileges"] if wanted.confined else []
        words += ["--security-opt", "apparmor=unconfined"]
        words += ["--security-opt", f"label=type:{wanted.selinux_type}"] if wanted.selinux_type else []
        words += ["--read-only"] if wanted.read_only_root else []
        for mount in wanted.mounts:
            modes = ["ro"] if mount.read_only else []
            modes += ["rslave"] if mount.from_host else []
            words += ["--volume", ":".join([mount.there, mount.local, ",".join(modes)]).rstrip(":")]
        words += [word for key, value in (wanted.env or {}).items() for word in ("--env", f"{key}={value}")]
        words += ["--entrypoint", wanted.command[0], wanted.image, *wanted.command[1:], *wanted.args]
        node.run(["docker", "run", "--detach", *words])
        return cls(node, name, grace_s)

    def _state(self, field: str) -> str:
        return self.node.run(
            ["docker", "inspect", "--format", f"{{{{.State.{field}}}}}", self.name]
        ).stdout.strip()

    def log(self) -> str:
        done = self.node.run(["docker", "logs", self.name])
        return done.stdout + done.stderr

    def runs(self) -> bool:
        return self._state("Running") == "true"

    def exit_code(self) -> int:
        return int(self._state("ExitCode"))

    def exec(self, *command: str) -> Executed:
        done = self.node.run(["docker", "exec", self.name, *command], check=False)
        return Executed(done.returncode, done.stdout, done.stderr)

    def kill(self) -> None:
        self.node.run(["docker", "kill", self.name])

    def delete(self) -> int:
        self.node.run(["docker", "stop", "--time", str(self.grace_s), self.name], timeout_s=self.grace_s + 20)
        code = self.exit_code()
        self.node.run(["docker", "rm", self.name])
        return code


Running = CriPod | DockerPod


def apply(node: Node, name: str, pod: Manifest, tag: str, drop: str = "") -> Running:
    """Start a pod of deploy/ on a node; its name is that of its host, as of all that have a network of their own."""
    container = wanted(pod, tag, f"{name}.log", drop)
    container = replace(container, env={**(container.env or {}), "HOSTNAME": name})
    return start(node, name, container, pod["terminationGracePeriodSeconds"])


def announce(node: Node, name: str) -> None:
    """Make the directory for a pod's logs, as the kubelet does right before it asks for the pod's sandbox."""
    (node.root / POD_LOGS / f"node-toolkit-installer_{name}_uid-{name}").mkdir(parents=True)


def forget(node: Node) -> None:
    """Remove these directories, as the kubelet does some time after the pods."""
    for directory in (node.root / POD_LOGS).iterdir():
        directory.rmdir()
    (node.root / POD_LOGS).rmdir()


def start(node: Node, name: str, container: Container, grace_s: int) -> Running:
    """Start a pod of one container."""
    if node.engine == "docker":
        return DockerPod.started(node, name, container, grace_s)
    sandbox = node.cri.run_pod(name=name, pid=container.pid, privileged=container.privileged)
    return CriPod(node, sandbox, node.cri.start(sandbox, container), container.log, grace_s)


def probe(pod: Running, manifest: Manifest, kind: str) -> int:
    """Run the pod's ``readinessProbe`` or ``livenessProbe`` and return its exit code."""
    (container,) = manifest["containers"]
    return pod.exec(*container[kind]["exec"]["command"]).returncode


def problem(log: str) -> str:
    """Return the sentence in which the installer ended, from whatever surrounds it in the log."""
    said = [line[line.index("{") :] for line in log.splitlines() if "{" in line]
    found = [json.loads(line) for line in said if '"problem"' in line]
    return f"{found[-1]['problem']}; {found[-1]['remedy']}" if found else log
