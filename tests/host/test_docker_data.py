"""What is read below dockerd's data-root may be anything."""

import json
import os
from pathlib import Path, PurePosixPath

import pytest

from installer.engines.docker import api as dockerd
from installer.engines.docker.api import DockerContainer
from installer.host.files import MOST_BYTES, Host

ID = "3f6c0d5e8a9b4c7d" * 4
ROOT = PurePosixPath("/var/lib/docker")
HOST_CONFIG = b'{"Binds":null,"Runtime":"nvidia"}'
CONFIG = b'{"State":{"Running":false},"Name":"/trainer"}'


def containers(root: Path) -> tuple[DockerContainer, ...]:
    return dockerd.containers_on_disk(Host.under(PurePosixPath(root)), ROOT)


def container(root: Path, host_config: bytes = HOST_CONFIG, config: bytes = CONFIG, name: str = ID) -> Path:
    directory = root / "var/lib/docker/containers" / name
    directory.mkdir(parents=True)
    (directory / "hostconfig.json").write_bytes(host_config)
    (directory / "config.v2.json").write_bytes(config)
    return directory


def test_containers_are_read_from_the_files(tmp_path: Path) -> None:
    container(tmp_path)

    assert containers(tmp_path) == (DockerContainer(ID, "trainer", "nvidia", running=False),)


def test_without_a_data_root_there_are_none(tmp_path: Path) -> None:
    assert containers(tmp_path) == ()


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"Runtime":7}', b'{"Runtime":""}', b"{}"],
    ids=range(9),
)
def test_a_text_that_names_no_runtime_is_no_container(tmp_path: Path, text: bytes) -> None:
    container(tmp_path, text)

    assert containers(tmp_path) == ()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"Name":7}',
        json.dumps({"Name": "/\ud800"}).encode(),
        b'{"Name":"/a\\nb"}',
        b'{"Name":""}',
    ],
    ids=range(6),
)
def test_a_container_without_a_name_of_dockers_goes_by_its_id(tmp_path: Path, text: bytes) -> None:
    container(tmp_path, config=text)

    assert [each.name for each in containers(tmp_path)] == [ID[:12]]


def test_what_is_no_file_of_roots_or_too_large_is_not_read(tmp_path: Path) -> None:
    ids = [f"{number:064x}" for number in range(4)]
    fifo, link, anybodys, large = (container(tmp_path, name=each) / "hostconfig.json" for each in ids)
    fifo.unlink()
    os.mkfifo(fifo)
    link.unlink()
    link.symlink_to(anybodys)
    os.chown(anybodys, 65534, 65534)
    large.write_bytes(HOST_CONFIG + b" " * MOST_BYTES)
    container(tmp_path, name="no-id-of-dockers")

    assert containers(tmp_path) == ()
