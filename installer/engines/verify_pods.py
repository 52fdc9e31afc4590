"""Test pods for verify, by CRI: a container of the node's own shell on the runtime to be verified."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from installer.engines.cri import SANDBOXES, Calls, ask_status, open_calls
from installer.engines.engine_api import RunScript
from installer.engines.node_shell import MARK, RETRY_S, WAITS, Tools, explain_end, refuse_ended
from installer.errors import InstallerError
from installer.model.protobuf import Schema, pack_fields

NODE: Final = 2  # NamespaceMode: a network of its own would need CNI
CONTAINER: Final = 1
USER_SPECIFIED: Final = 18  # ImageSpec.user_specified_image
EXEC_S: Final = 30  # a busy node starts a process within seconds
EXITED: Final = 2  # ContainerState
STATUS: Final[Schema] = {
    1: ("status", {3: ("state", int), 7: ("exit_code", int), 10: ("reason", str), 11: ("message", str)})
}
ID: Final[Schema] = {1: ("id", str)}  # of a new pod or container


@contextmanager
def cri_container(  # noqa: PLR0913 - a container has many sides
    socket: Path, name: str, handler: str, tools: Tools, environment: Mapping[str, str], *, timeout_s: float
) -> Iterator[tuple[str, RunScript]]:
    """Run a container on ``handler`` in a pod of a new name; yield its id, and a function to run scripts."""
    status = ask_status(socket, timeout_s=timeout_s)
    metadata = pack_fields((1, name), (2, name), (3, "default"))
    security = pack_fields((1, pack_fields((1, NODE), (2, CONTAINER))))
    runtime = status.serving.handlers.get(handler)
    # The parent that a kubelet would give: containerd fails without a slice for systemd's cgroups.
    parent = "/"
    if status.name == "cri-o":
        parent = ""
    elif runtime and runtime.options.get("systemdcgroup"):
        parent = "system.slice"
    linux = pack_fields((1, parent), (2, security))
    pod = pack_fields((1, metadata), (8, linux))
    try:
        with open_calls(socket, timeout_s) as engine:
            sandbox = engine.call("RunPodSandbox", pack_fields((1, pod), (2, handler)), ID)["id"]
            # The image of the sandbox is on the node (engine-facts.md#crio-sandbox-image).
            config = _container(status.pause_image or _image(engine, sandbox), tools, environment)
            request = pack_fields((1, sandbox), (2, config), (3, pod))
            made = engine.call("CreateContainer", request, ID)["id"]
            engine.call("StartContainer", pack_fields((1, made)))

            def run(script: str) -> str:
                words = [(2, word) for word in tools.command(script)]
                request = pack_fields((1, made), *words, (3, EXEC_S))
                try:
                    return str(engine.call("ExecSync", request, {1: ("stdout", str)})["stdout"])
                except InstallerError:
                    refuse_ended(lambda: _find_end(engine, made))
                    raise

            yield made, run
    finally:
        # With a deadline of its own: the pod has to go although the rest took too long.
        remove_pods(socket, name, timeout_s=timeout_s)


def _find_end(engine: Calls, container_id: str) -> InstallerError | None:
    """Explain the end of a container that has ended by itself."""
    answer = engine.call("ContainerStatus", pack_fields((1, container_id)), STATUS)["status"]
    if answer["state"] != EXITED:
        return None
    reason = ": ".join(filter(None, (answer["reason"], answer["message"])))
    return explain_end(answer["exit_code"], reason)


def remove_pods(socket: Path, name: str, *, timeout_s: float) -> list[str]:
    """Remove the pods of a name, the stopped pods included; return a word for each removed pod."""
    with open_calls(socket, timeout_s) as engine:
        listed = engine.call("ListPodSandbox", answer=SANDBOXES)["sandboxes"]
        ids = [sandbox["id"] for sandbox in listed if sandbox["metadata"]["name"] == name]
        for sandbox_id in ids:
            request = pack_fields((1, sandbox_id))
            while True:
                with suppress(InstallerError):  # removal stops what runs, too
                    engine.call("StopPodSandbox", request)
                try:
                    engine.call("RemovePodSandbox", request)
                    break
                except InstallerError:
                    if engine.left_s() < 1:
                        raise
                    time.sleep(RETRY_S)
    return ["pod"] * len(ids)


def _image(calls: Calls, sandbox: str) -> str:
    """Return the image of a sandbox, by the engine's answer."""
    answer = calls.call("PodSandboxStatus", pack_fields((1, sandbox), (2, 1)), {2: ("info", dict)})
    with suppress(ValueError, AttributeError):
        image = json.loads(answer["info"].get("info", "")).get("image")
        if isinstance(image, str) and image:
            return image
    problem = "find the image of a sandbox (the engine does not name it)"
    raise InstallerError(problem, remedy="see its log", code="verify-failed")


def _container(image: str, tools: Tools, environment: Mapping[str, str]) -> bytes:
    """Build the ContainerConfig of a waiting shell."""
    # A kubelet adds the image as its user names it: a signature is verified by that name.
    named = pack_fields((1, image), (USER_SPECIFIED, image))
    words = [(3, word) for word in tools.command(WAITS)]
    variables = [(6, pack_fields((1, name), (2, value))) for name, value in environment.items()]
    mounts = [(7, pack_fields((1, str(inside)), (2, str(path)), (3, 1))) for path, inside in tools.files]
    terminal = [(12, 1), (14, 1)]  # without input: reading from it waits
    security = pack_fields((3, pack_fields((1, NODE), (2, CONTAINER))))
    about = ((1, pack_fields((1, MARK))), (2, named))
    return pack_fields(*about, *words, *variables, *mounts, *terminal, (15, pack_fields((2, security))))
