"""File systems as nodes have them: full, read-only, mounted file by file, with labels and ACLs. Root, but no engine."""

import os
import signal
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import missing, must_run
from tests.engines.told import sentence
from tests.support.cdi_site import OWN, CdiSite
from tests.support.site import DAEMON_JSON, TOOLKIT, Site

DROP_IN = "etc/crio/crio.conf.d/99-nvidia.toml"
LABEL = "security.selinux"
ACL = "system.posix_acl_access"
PAGE = os.sysconf("SC_PAGE_SIZE")


class MountedSite(Site):
    """A host in a mount namespace of its own: what is mounted there goes with it."""

    def __init__(self, directory: Path, holder: int) -> None:
        super().__init__(directory)
        self._real = self.root
        self._inside = ["nsenter", "--target", str(holder), "--mount"]
        self.root = Path(f"/proc/{holder}/root{self._real}")

    def command(self, verb: str, *more: str) -> list[str]:
        words = super().command(verb, *more)
        return [*self._inside, *(str(self._real) if word == str(self.root) else word for word in words)]

    def mount(self, path: str, *how: str) -> None:
        """Mount something over a path of the host; "." is that path itself."""
        target = self.path(path)
        command = [*self._inside, "mount", *(target if word == "." else word for word in how), target]
        subprocess.run(command, check=True, capture_output=True)

    def unmount(self, path: str) -> None:
        subprocess.run([*self._inside, "umount", self.path(path)], check=True, capture_output=True)

    def path(self, path: str) -> str:
        """Return where a path of the host is for a program in its mount namespace."""
        return str(self._real / path)

    def over_docker(self, *how: str) -> Path:
        """Mount a file system at the directory of Docker's config, with what stood there; return that config."""
        config = self.root / DAEMON_JSON
        text = config.read_bytes()
        self.mount("etc/docker", "-t", "tmpfs", *how, "tmpfs")
        config.write_bytes(text)
        return config


@pytest.fixture
def holder() -> Iterator[int]:
    """Yield the pid of a process that holds a mount namespace."""
    if (lack := missing()) and not must_run():
        pytest.skip(lack)
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path, holder: int) -> MountedSite:
    return MountedSite(tmp_path, holder)


@pytest.fixture
def by_cdi(tmp_path: Path) -> Iterator[CdiSite]:
    site = CdiSite(tmp_path)
    with site.docker():
        yield site


def fill(directory: Path) -> Path:
    """Leave no page of a small file system free; return the file that takes the rest."""
    stuffing = directory / "stuffing"
    with stuffing.open("ab") as file:
        file.write(b"\0" * PAGE * os.statvfs(directory).f_bavail)
    assert os.statvfs(directory).f_bavail == 0
    return stuffing


def test_a_config_on_a_full_disk_is_intact_and_the_remedy_is_named(site: MountedSite) -> None:
    config = site.over_docker("-o", "size=64k")
    stuffing = fill(config.parent)
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1, done.stderr
    assert sentence(done.stderr) == (
        "cannot write /etc/docker/daemon.json (no space left on device); free some space there"
    )
    assert site.tree() == before
    stuffing.unlink()
    before = site.tree()
    site.install()
    installed, stuffing = config.read_bytes(), fill(config.parent)
    site.uninstall(code=4)
    assert config.read_bytes() == installed
    stuffing.unlink()
    site.uninstall()
    assert site.tree() == before


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("path", "mounts", "what"),
    [
        pytest.param(
            DAEMON_JSON,
            (),
            "replace /etc/docker/daemon.json (it is mounted as a single file); "
            "mount its directory /etc/docker instead",
            id="a single file",
        ),
        pytest.param(
            "etc/docker",
            ("remount,ro,bind",),
            "write /etc/docker/daemon.json (read-only file system); "
            "mount its file system writable, or use a path on another one",
            id="configs that are read-only",
        ),
        pytest.param(
            "usr",
            ("remount,ro,bind",),
            "install into /usr/local/nvidia (its file system is mounted read-only); "
            "choose another --install-dir, or remount it",
            id="a payload that is read-only",
        ),
    ],
)
def test_a_mount_that_cannot_be_written_is_refused_and_nothing_half_done(
    site: MountedSite, path: str, mounts: tuple[str, ...], what: str
) -> None:
    if path == "usr":
        (site.root / path).mkdir()
    site.mount(path, "--bind", ".")
    for options in mounts:
        site.mount(path, "-o", options)
    before = site.tree(times=True)

    assert site.refuses("install") == f"cannot {what}"
    assert site.tree(times=True) == before


def test_an_uninstall_of_a_config_that_was_mounted_as_a_single_file_names_the_directory(
    site: MountedSite,
) -> None:
    before = site.tree()
    site.install()
    site.mount(DAEMON_JSON, "--bind", ".")
    installed = (site.root / DAEMON_JSON).read_bytes()
    said = (
        "cannot replace /etc/docker/daemon.json (it is mounted as a single file); "
        "mount its directory /etc/docker instead"
    )

    assert site.call("install").returncode == 0, "nothing is to be written"
    assert site.refuses("install", "--runtime-name", "gpu") == said
    left = site.uninstall(code=4)

    assert sentence(left.stderr) == said
    assert (site.root / DAEMON_JSON).read_bytes() == installed
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    site.unmount(DAEMON_JSON)
    site.uninstall()
    assert site.tree() == before


def test_a_file_system_that_became_read_only_is_told_before_a_repair_fails(site: MountedSite) -> None:
    site.over_docker()
    site.install()
    site.mount("etc/docker", "-o", "remount,ro")

    told = site.status()

    site.mount("etc/docker", "-o", "remount,rw")
    remedy = "read-only: a repair or an uninstall would fail; mount /etc/docker with -o remount,rw"
    assert (told.returncode, remedy in told.stdout) == (1, True), told.stdout
    assert site.status().returncode == 0
    site.uninstall()


def _acl(uid: int) -> bytes:
    """Return the ACL user::rw-,user:UID:r--,group::r--,mask::r--,other::--- (acl(5), linux/posix_acl_xattr.h)."""
    rows = [(1, 6, -1), (2, 4, uid), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *row) for row in rows)


def _what_else(path: Path) -> dict[str, object]:
    status = path.lstat()
    xattrs = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return {"mode": f"{status.st_mode:o}", "owner": (status.st_uid, status.st_gid), **xattrs}


def test_mode_owner_acl_label_and_attributes_stay_and_come_back(site: MountedSite) -> None:
    config = site.over_docker()
    text = config.read_text()
    os.chown(config, 12, 34)
    os.setxattr(config, LABEL, b"system_u:object_r:container_config_t:s0\0")
    os.setxattr(config, ACL, _acl(56))
    os.setxattr(config, "trusted.mine", b"1")
    before = _what_else(config)
    assert before[ACL] == _acl(56)

    site.install()
    during = _what_else(config)
    assert "nvidia" in config.read_text()
    site.uninstall()

    assert during == before
    assert _what_else(config) == before
    assert config.read_text() == text


def test_a_new_file_takes_the_label_of_its_neighbour_and_a_binary_that_of_the_runtime(
    site: MountedSite,
) -> None:
    text = (site.root / "etc/crio/crio.conf").read_text()
    (site.root / "usr").mkdir()
    for top in ("etc/crio", "usr"):
        site.mount(top, "-t", "tmpfs", "tmpfs")
    (site.root / "etc/crio/crio.conf").write_text(text)
    neighbour, runc = site.root / "etc/crio/crio.conf.d/10-theirs.conf", site.root / "usr/bin/runc"
    for path, mode, kind in (
        (neighbour, 0o644, "container_config_t"),
        (runc, 0o755, "container_runtime_exec_t"),
    ):
        path.parent.mkdir()
        path.touch(mode)
        os.setxattr(path, LABEL, f"system_u:object_r:{kind}:s0\0".encode())
    before = site.tree()

    site.install()

    assert os.getxattr(site.root / DROP_IN, LABEL) == os.getxattr(neighbour, LABEL)
    for name in ("nvidia-container-runtime", "nvidia-container-runtime.real", "nvidia-container-cli.real"):
        assert os.getxattr(site.root / TOOLKIT / name, LABEL) == os.getxattr(runc, LABEL)
    found = (site.root / TOOLKIT).glob("libnvidia-container.so*")
    library = next(path for path in found if not path.is_symlink())
    assert LABEL not in os.listxattr(library)
    site.uninstall()
    assert site.tree() == before


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("verb", "code"), [("uninstall", 4), ("install", 1)], ids=["an undo", "a repair"])
def test_what_others_have_mounted_into_the_toolkit_is_never_removed_with_it(
    site: MountedSite, verb: str, code: int
) -> None:
    theirs = site.root / "etc/site/secret"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    before = site.tree()
    site.install()
    version = (site.root / TOOLKIT).readlink()
    place = f"usr/local/nvidia/{version}/.config/nvidia-container-runtime"
    site.mount(place, "--bind", site.path("etc/site"))
    (site.root / TOOLKIT / "nvidia-ctk").unlink()  # which an install repairs

    refused = site.call(verb)

    assert refused.returncode == code, refused.stderr
    assert f"something is mounted at /{place}" in sentence(refused.stderr)
    assert theirs.read_text() == "theirs"
    site.unmount(place)
    site.uninstall()
    assert site.tree() == before


def _modes(site: CdiSite) -> tuple[str, ...]:
    found = ((site.root / path).stat() for path in ("run/cdi", OWN))
    return tuple(f"{stat.S_IMODE(each.st_mode):o} {each.st_uid}:{each.st_gid}" for each in found)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_whatever_the_umask_is_engines_and_people_can_read_a_specification(
    by_cdi: CdiSite, umask: int
) -> None:
    before = os.umask(umask)
    try:
        by_cdi.install()
    finally:
        os.umask(before)

    assert _modes(by_cdi) == ("755 0:0", "644 0:0")


def test_a_directory_that_was_there_keeps_its_modes_and_owner_and_stays_at_the_end(by_cdi: CdiSite) -> None:
    directory = by_cdi.root / "run/cdi"
    directory.mkdir()
    directory.chmod(0o2710)
    os.chown(directory, 12, 34)
    before = _what_else(directory)

    by_cdi.install()

    assert _modes(by_cdi) == ("2710 12:34", "644 0:34")
    by_cdi.uninstall()
    assert _what_else(directory) == before
