"""A container as a kubelet asks for it: CRI-O refuses one of an image whose name nobody told."""

from pathlib import Path

from installer.engines.trial_containers import Tools, cri_container
from installer.model.protobuf import read_fields
from tests.host.servers import either, engine, message, serving
from tests.support.cri import CRI, cri_status, version

RECORDED = Path(__file__).parents[1] / "engines/crio/config.toml"  # what a real CRI-O 1.37.0 answered
IMAGE = b"localhost/busybox:1"  # its pause_image
CONFIG, IMAGE_SPEC, NAME, USER_SPECIFIED = 2, 2, 1, 18


def test_the_image_is_crios_pause_image_by_the_name_that_a_signature_is_verified_by(tmp_path: Path) -> None:
    answers = {
        f"{CRI}Version": version("cri-o", "1.37.0"),
        f"{CRI}Status": cri_status({}),
        f"{CRI}RunPodSandbox": message((1, "pod")),
        f"{CRI}CreateContainer": message((1, "made")),
    }
    answers |= {
        f"{CRI}{name}": b""
        for name in ("ListPodSandbox", "StartContainer", "StopPodSandbox", "RemovePodSandbox")
    }
    asked: list[bytes] = []
    http = b"HTTP/1.0 200 OK\r\n\r\n" + RECORDED.read_bytes()

    with (
        engine(tmp_path / "grpc.sock", answers, asked) as grpc_only,
        serving(tmp_path / "crio.sock", either(http, grpc_only)) as crio,
        cri_container(crio, "verify-x", "nvidia", Tools((), loader=False), {}, timeout_s=5) as (made, _),
    ):
        pass

    assert made == "made"
    request = next(
        dict(read_fields(each))
        for each in asked
        if dict(read_fields(each)).get(1) == b"pod" and 3 in dict(read_fields(each))
    )
    spec = dict(read_fields(dict(read_fields(request[CONFIG]))[IMAGE_SPEC]))
    assert spec == {NAME: IMAGE, USER_SPECIFIED: IMAGE}
