"""Containers that a verify makes: the node's own shell in them, and an image that CRI-O lets pass."""

import subprocess
from pathlib import Path, PurePosixPath

from installer.engines.trial_containers import Tools, cri_container, shell_of
from installer.host.files import Host
from installer.model.protobuf import read_fields
from tests.host.servers import either, engine, message, serving
from tests.support.cri import CRI, cri_status, version

HERE = Host.under(PurePosixPath("/"))


def test_what_it_links_to_is_enough_to_run_it(tmp_path: Path) -> None:
    for there, inside in shell_of(HERE).files:
        (tmp_path / inside.name).symlink_to(there)

    command = [str(tmp_path / "ld"), "--inhibit-cache", "--library-path", str(tmp_path), str(tmp_path / "sh")]
    done = subprocess.run([*command, "-c", "echo alive"], capture_output=True, text=True, check=False, env={})

    assert done.stdout == "alive\n", done.stderr


RECORDED = Path(__file__).parents[1] / "engines/crio/config.toml"  # what a real CRI-O 1.37.0 answered
IMAGE = b"localhost/busybox:1"  # its pause_image
CONFIG, IMAGE_SPEC, NAME, USER_SPECIFIED = 2, 2, 1, 18


def test_the_image_is_crios_pause_image_by_the_name_that_a_signature_is_verified_by(tmp_path: Path) -> None:
    made_ids = {"RunPodSandbox": message((1, "pod")), "CreateContainer": message((1, "made"))}
    acts = dict.fromkeys(("ListPodSandbox", "StartContainer", "StopPodSandbox", "RemovePodSandbox"), b"")
    said = {"Version": version("cri-o", "1.37.0"), "Status": cri_status({})} | made_ids | acts
    answers = {f"{CRI}{name}": answer for name, answer in said.items()}
    asked: list[bytes] = []
    http = b"HTTP/1.0 200 OK\r\n\r\n" + RECORDED.read_bytes()

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
