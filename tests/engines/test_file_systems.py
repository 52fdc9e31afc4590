"""File systems as nodes have them: full, read-only, mounted file by file, with labels and ACLs. Root, but no engine."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import missing, must_run
from tests.engines.mounted import MountedSite, fill, mount_namespace
from tests.engines.told import sentence
from tests.support.site import DAEMON_JSON

CONTAINERD = "etc/containerd/config.toml"
DROP_IN = "etc/crio/crio.conf.d/99-nvidia.toml"
TOOLKIT = "usr/local/nvidia/toolkit"
LABEL = "security.selinux"
ACL = "system.posix_acl_access"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MountedSite]:
    if (lack := missing()) and not must_run():
        pytest.skip(lack)
    with mount_namespace() as holder:
        yield MountedSite(tmp_path, holder)


def test_a_config_on_a_full_disk_is_intact_and_the_remedy_is_named(site: MountedSite) -> None:
    text = (site.root / DAEMON_JSON).read_bytes()
    site.mount("etc/docker", "-t", "tmpfs", "-o", "size=64k", "tmpfs")
    (site.root / DAEMON_JSON).write_bytes(text)
    stuffing = fill(site.root / "etc/docker", 0)
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1, done.stderr
    assert sentence(done.stderr) == (
        "cannot write /etc/docker/daemon.json (no space left on device); free some space there"
    )
    assert site.tree() == before
    stuffing.unlink()
    before = site.tree()
    assert site.call("install").returncode == 0
    installed, stuffing = (site.root / DAEMON_JSON).read_bytes(), fill(site.root / "etc/docker", 0)
    full = site.call("uninstall")
    assert (full.returncode, (site.root / DAEMON_JSON).read_bytes()) == (4, installed)
    stuffing.unlink()
    assert site.call("uninstall").returncode == 0
    assert site.tree() == before


def test_a_config_mounted_as_a_single_file_is_refused_and_names_the_directory(site: MountedSite) -> None:
    site.mount(DAEMON_JSON, "--bind", ".")
    before = site.tree(times=True)

    done = site.call("install")

    assert done.returncode == 1
    assert sentence(done.stderr) == (
        "cannot replace /etc/docker/daemon.json (it is mounted as a single file); "
        "mount /etc/docker into the container instead"
    )
    assert site.tree(times=True) == before


@pytest.mark.parametrize(
    ("path", "what"),
    [
        pytest.param(
            "etc/docker",
            "write /etc/docker/daemon.json (read-only file system); "
            "mount its file system writable, or use a path on another one",
            id="configs",
        ),
        pytest.param(
            "usr",
            "install into /usr/local/nvidia (its file system is mounted read-only); "
            "choose another --install-dir, or remount it",
            id="payload",
        ),
    ],
)
def test_a_read_only_mount_is_refused_and_nothing_half_done(site: MountedSite, path: str, what: str) -> None:
    (site.root / "usr").mkdir()
    site.mount(path, "--bind", ".")
    site.mount(path, "-o", "remount,ro,bind")
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert sentence(done.stderr) == f"cannot {what}"
    assert site.tree() == before


def _acl(uid: int) -> bytes:
    """Return the ACL user::rw-,user:UID:r--,group::r--,mask::r--,other::--- (acl(5), linux/posix_acl_xattr.h)."""
    rows = [(1, 6, -1), (2, 4, uid), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *row) for row in rows)


def _what_else(path: Path) -> dict[str, object]:
    status = path.lstat()
    xattrs = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return {"mode": f"{status.st_mode:o}", "owner": (status.st_uid, status.st_gid), **xattrs}


def test_a_file_system_that_became_read_only_is_told_before_a_repair_fails(site: MountedSite) -> None:
    text = (site.root / DAEMON_JSON).read_bytes()
    site.mount("etc/docker", "-t", "tmpfs", "tmpfs")
    (site.root / DAEMON_JSON).write_bytes(text)
    assert site.call("install").returncode == 0
    site.mount("etc/docker", "-o", "remount,ro")

    told = site.status()

    site.mount("etc/docker", "-o", "remount,rw")
    remedy = "read-only: a repair or an uninstall would fail; mount /etc/docker with -o remount,rw"
    assert (told.returncode, remedy in told.stdout) == (1, True), told.stdout
    assert site.status().returncode == 0
    assert site.call("uninstall").returncode == 0


def test_mode_owner_acl_label_and_attributes_stay_and_come_back(site: MountedSite) -> None:
    site.mount("etc/docker", "-t", "tmpfs", "tmpfs")
    config = site.root / DAEMON_JSON
    config.write_text('{"debug": true}\n')
    os.chown(config, 12, 34)
    os.setxattr(config, LABEL, b"system_u:object_r:container_config_t:s0\0")
    os.setxattr(config, ACL, _acl(56))
    os.setxattr(config, "trusted.mine", b"1")
    before = _what_else(config)
    assert before[ACL] == _acl(56)

    assert site.call("install").returncode == 0
    during = _what_else(config)
    assert "nvidia" in config.read_text()
    assert site.call("uninstall").returncode == 0

    assert during == before
    assert _what_else(config) == before
    assert config.read_text() == '{"debug": true}\n'


def test_a_new_file_takes_the_label_of_its_neighbour_and_a_binary_that_of_the_runtime(
    site: MountedSite,
) -> None:
    for path in ("etc/crio", "usr"):
        text = (site.root / "etc/crio/crio.conf").read_text() if path == "etc/crio" else ""
        (site.root / path).mkdir(exist_ok=True)
        site.mount(path, "-t", "tmpfs", "tmpfs")
        if text:
            (site.root / "etc/crio/crio.conf").write_text(text)
    neighbour = site.root / "etc/crio/crio.conf.d/10-theirs.conf"
    neighbour.parent.mkdir()
    neighbour.write_text("")
    os.setxattr(neighbour, LABEL, b"system_u:object_r:container_config_t:s0\0")
    runc = site.root / "usr/bin/runc"
    runc.parent.mkdir()
    runc.touch(0o755)
    os.setxattr(runc, LABEL, b"system_u:object_r:container_runtime_exec_t:s0\0")
    before = site.tree()

    assert site.call("install").returncode == 0

    assert os.getxattr(site.root / DROP_IN, LABEL) == os.getxattr(neighbour, LABEL)
    for name in ("nvidia-container-runtime", "nvidia-container-runtime.real", "nvidia-container-cli.real"):
        assert os.getxattr(site.root / TOOLKIT / name, LABEL) == os.getxattr(runc, LABEL)
    found = (site.root / TOOLKIT).glob("libnvidia-container.so*")
    library = next(path for path in found if not path.is_symlink())
    assert LABEL not in os.listxattr(library)
    assert site.call("uninstall").returncode == 0
    assert site.tree() == before


@pytest.mark.parametrize(("verb", "code"), [("uninstall", 4), ("install", 1)], ids=["an undo", "a repair"])
def test_what_others_have_mounted_into_the_toolkit_is_never_removed_with_it(
    site: MountedSite, verb: str, code: int
) -> None:
    theirs = site.root / "etc/site/secret"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    before = site.tree()
    assert site.call("install").returncode == 0
    version = (site.root / TOOLKIT).readlink()
    place = f"usr/local/nvidia/{version}/.config/nvidia-container-runtime"
    site.mount(place, "--bind", site.path("etc/site"))
    (site.root / TOOLKIT / "nvidia-ctk").unlink()  # which an install repairs

    refused = site.call(verb)

    assert refused.returncode == code, refused.stderr
    assert f"something is mounted at /{place}" in sentence(refused.stderr)
    assert theirs.read_text() == "theirs"
    site.unmount(place)
    assert site.call("uninstall").returncode == 0
    assert site.tree() == before
