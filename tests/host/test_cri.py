import json
import socket
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines.cri import CREATED, ask_status, list_ids
from installer.engines.node_shell import Tools
from installer.engines.verify_pods import cri_container
from installer.errors import InstallerError
from installer.model.effective import Answer, EffectiveConfig, Runtime
from installer.model.protobuf import read_fields
from tests.host.servers import answer, either, engine, hang, message, serving
from tests.support.cri import (
    BAD_DEFAULT,
    CONTAINERD,
    CONTAINERD_CONFIG,
    CRI,
    PLUGINS,
    RUNTIMES,
    cri_status,
    plugins,
    version,
)

RECORDED = Path(__file__).parents[1] / "engines/crio"  # what a real CRI-O 1.37.0 answered
CREATED_ONLY = b"\x0a\x02\x12\x00"

CDI_DIRS = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
SERVED = EffectiveConfig(
    {name: Runtime("/opt/nvidia" if name == "nvidia" else "", table) for name, table in RUNTIMES.items()},
    "runc",
    cdi=True,
    cdi_dirs=CDI_DIRS,
)
CRIO = {f"{CRI}Version": version("cri-o", "1.37.0"), f"{CRI}Status": cri_status({"sandboxImage": "pause"})}


@pytest.mark.parametrize("ready", [True, False])
def test_what_the_engine_serves_is_what_it_says(tmp_path: Path, *, ready: bool) -> None:
    answers = CONTAINERD | {f"{CRI}Status": cri_status(CONTAINERD_CONFIG, ready=ready)}

    with engine(tmp_path / "cri.sock", answers) as cri:
        said = ask_status(cri, timeout_s=5)

    assert said == Answer(replace(SERVED, ready=ready), "1.7.24", "containerd")


def test_crio_is_asked_for_its_config_over_http_whatever_its_status_tells(tmp_path: Path) -> None:
    http = b"HTTP/1.0 200 OK\r\n\r\n" + (RECORDED / "config.toml").read_bytes()
    told = json.loads((RECORDED / "status.json").read_text())["info"]["config"]

    with (
        engine(tmp_path / "grpc.sock", CRIO | {f"{CRI}Status": cri_status(json.loads(told))}) as grpc_only,
        serving(tmp_path / "crio.sock", either(http, grpc_only)) as crio,
    ):
        said = ask_status(crio, timeout_s=5)

    serves = said.serving
    assert (said.name, said.version) == ("cri-o", "1.37.0")
    assert serves.binaries == {"crun": "/usr/libexec/crio/crun", "runc": "/usr/libexec/crio/runc"}
    assert (serves.default, serves.ready, serves.cdi) == ("crun", True, True)
    assert serves.cdi_dirs == CDI_DIRS
    assert str(serves.state) == "/run/containers/storage/overlay-containers"
    assert [str(path) for path in serves.hook_dirs] == ["/usr/share/containers/oci/hooks.d"]
    assert serves.handlers["crun"].table["runtime_root"] == "/run/crun"


def test_an_endless_config_of_a_crio_is_left(tmp_path: Path) -> None:
    def endless(connection: socket.socket) -> None:
        if connection.recv(3, socket.MSG_PEEK) == b"GET":
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"#" * 100_000)
        either(b"", tmp_path / "grpc.sock")(connection)

    with (
        engine(tmp_path / "grpc.sock", CRIO),
        serving(tmp_path / "crio.sock", endless) as crio,
        pytest.raises(InstallerError, match="more than 16 MB"),
    ):
        ask_status(crio, timeout_s=5)


V1, V2 = "io.containerd.grpc.v1", "io.containerd.cri.v1"
NO_PART = f"no plugins registered for {V2}.runtime"
FAILED = f"unable to load dependency: {BAD_DEFAULT}"


@pytest.mark.parametrize(
    ("listed", "code", "words"),
    [
        ([], "cri-disabled", "switched off"),
        ([(V2, "images", ""), (V1, "cri", NO_PART)], "cri-disabled", "switched off"),
        ([(V1, "cri", BAD_DEFAULT)], "cri-failed", BAD_DEFAULT),
        ([(V1, "cri", FAILED), (V2, "runtime", BAD_DEFAULT)], "cri-failed", f"not load: {BAD_DEFAULT}\\)"),
        ([(V1, "cri", "")], "cri-failed", "update containerd"),
    ],
    ids=["switched off", "2.x, a part switched off", "failed", "2.x, failed", "too old"],
)
def test_a_containerd_without_cri_says_why(
    tmp_path: Path, listed: list[tuple[str, str, str]], code: str, words: str
) -> None:
    with (
        engine(tmp_path / "cri.sock", {PLUGINS: plugins(*listed)}) as cri,
        pytest.raises(InstallerError, match=words) as raised,
    ):
        ask_status(cri, timeout_s=5)

    assert raised.value.code == code


def test_a_server_of_something_else_is_not_taken_for_an_engine(tmp_path: Path) -> None:
    with engine(tmp_path / "cri.sock", {}) as other, pytest.raises(InstallerError, match="find CRI on"):
        ask_status(other, timeout_s=5)


def test_containers_that_are_made_but_not_started_are_listed(tmp_path: Path) -> None:
    asked: list[bytes] = []
    two = message((1, message((1, "a1"), (2, "pod"))), (1, message((1, "b2"), (6, 0))))

    with engine(tmp_path / "cri.sock", {f"{CRI}ListContainers": two}, asked) as cri:
        assert list_ids(cri, "ListContainers", CREATED, timeout_s=5) == ("a1", "b2")

    assert asked == [CREATED_ONLY]


@pytest.mark.parametrize(
    ("behave", "words"),
    [(hang, r"no answer within 0\.3 s"), (answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "reach the engine")],
)
def test_an_engine_that_does_not_answer_is_left_at_the_deadline(
    tmp_path: Path, behave: Callable[[Any], None], words: str
) -> None:
    started = time.monotonic()

    with serving(tmp_path / "cri.sock", behave) as cri, pytest.raises(InstallerError, match=words):
        ask_status(cri, timeout_s=0.3)

    assert time.monotonic() - started < 20


# What a verify makes: an image that CRI-O lets pass.

IMAGE = b"localhost/busybox:1"  # its pause_image
CONFIG, IMAGE_SPEC, NAME, USER_SPECIFIED = 2, 2, 1, 18


def test_the_image_is_crios_pause_image_by_the_name_that_a_signature_is_verified_by(tmp_path: Path) -> None:
    made_ids = {"RunPodSandbox": message((1, "pod")), "CreateContainer": message((1, "made"))}
    acts = dict.fromkeys(("ListPodSandbox", "StartContainer", "StopPodSandbox", "RemovePodSandbox"), b"")
    said = {"Version": version("cri-o", "1.37.0"), "Status": cri_status({})} | made_ids | acts
    answers = {f"{CRI}{name}": answer for name, answer in said.items()}
    asked: list[bytes] = []
    http = b"HTTP/1.0 200 OK\r\n\r\n" + (RECORDED / "config.toml").read_bytes()

    with (
        engine(tmp_path / "grpc.sock", answers, asked) as grpc_only,
        serving(tmp_path / "crio.sock", either(http, grpc_only)) as crio,
        cri_container(crio, "verify-x", "nvidia", Tools((), loader=False), {}, timeout_s=5) as (made, _),
    ):
        pass

    assert made == "made"
    requests = [dict(read_fields(each)) for each in asked]
    request = next(each for each in requests if each.get(1) == b"pod" and 3 in each)
    spec = dict(read_fields(dict(read_fields(request[CONFIG]))[IMAGE_SPEC]))
    assert spec == {NAME: IMAGE, USER_SPECIFIED: IMAGE}
