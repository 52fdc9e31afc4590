"""What a neighbour without root leaves in our way, as the real program meets it."""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.neighbours import NOBODY, locking, only_as_root
from tests.support.site import DAEMON_JSON, PIDFILE, Site, sentence

HOME = "usr/local/nvidia/.toolkit-installer"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _directories(root: Path) -> Iterator[Path]:
    yield from (path for path in (root, *root.rglob("*")) if path.is_dir() and not path.is_symlink())


@only_as_root
def test_locks_that_a_neighbour_holds_on_every_directory_change_nothing(site: Site) -> None:
    (site.root / "usr/local").mkdir(parents=True)
    before = site.tree()

    for verb in ("install", "uninstall"):
        with ExitStack() as stack:
            for directory in _directories(site.root):
                stack.enter_context(locking(directory, NOBODY))
            done = site.call(verb)
        assert done.returncode == 0, done.stderr

    assert site.tree() == before


@pytest.mark.parametrize("verb", ["install", "uninstall", "run"])
@pytest.mark.parametrize("target", ["nowhere", "/etc"])
def test_a_link_in_the_place_of_our_directory_is_refused_at_once(site: Site, verb: str, target: str) -> None:
    (site.root / HOME).parent.mkdir(parents=True)
    (site.root / HOME).symlink_to(target)
    before = site.tree()

    done = site.call(verb)

    assert done.returncode == 1
    assert sentence(done).startswith(f"cannot use /{HOME} (it is not a directory but a link or a file)")
    assert site.tree() == before


def test_a_pidfile_that_is_not_ours_is_refused_and_left(site: Site) -> None:
    (site.root / "etc/hostname").write_text("node1\n")
    before = site.tree()

    run = site.call("run", "--pid-file", str(site.root / "etc/hostname"))
    uninstall = site.call("uninstall", "--pid-file", str(site.root / "etc/hostname"))

    assert run.returncode == 1
    assert sentence(run).startswith("cannot use /etc/hostname as the pidfile (what is there is not a pidfile")
    assert uninstall.returncode == 0
    assert site.tree() == before


def test_a_neighbour_that_is_called_ready_is_left(site: Site) -> None:
    (site.root / PIDFILE).parent.mkdir(parents=True)
    (site.root / PIDFILE).with_name("ready").write_text("yes\n")
    before = site.tree()

    run = site.call("run")
    uninstall = site.call("uninstall")

    assert run.returncode == 1
    assert sentence(run).startswith("cannot publish readiness in /run/nvidia/toolkit/ready")
    assert uninstall.returncode == 0
    assert site.tree() == before


@only_as_root
def test_a_link_of_a_neighbours_on_the_way_to_the_pidfile_is_not_followed(site: Site) -> None:
    (site.root / "tmp").mkdir()
    (site.root / "tmp").chmod(0o1777)
    (site.root / "tmp/run").symlink_to("/etc")
    os.chown(site.root / "tmp/run", NOBODY, NOBODY, follow_symlinks=False)
    before = site.tree()

    done = site.call("run", "--pid-file", str(site.root / "tmp/run/toolkit.pid"))

    assert done.returncode == 1
    assert "cannot follow the link /tmp/run" in sentence(done)
    assert site.tree() == before


STRANGERS = [
    pytest.param("usr/local/nvidia", 0o777, 0, "others than root may write /usr/local/nvidia", id="for all"),
    pytest.param("usr/local/nvidia", 0o1777, 0, "others than root may write /usr/local/nvidia", id="sticky"),
    pytest.param(
        "usr/local/nvidia", 0o755, NOBODY, "/usr/local/nvidia belongs to another user", id="another's"
    ),
    pytest.param("usr/local", 0o777, 0, "others than root may write /usr/local)", id="for all, above"),
    pytest.param("usr", 0o755, NOBODY, "/usr belongs to another user", id="another's, above"),
    pytest.param("", 0o777, 0, "others than root may write /)", id="the root"),
]


@only_as_root
@pytest.mark.parametrize(("name", "mode", "owner", "words"), STRANGERS)
def test_nothing_is_installed_where_a_stranger_could_exchange_it(
    site: Site, name: str, mode: int, owner: int, words: str
) -> None:
    (site.root / "usr/local/nvidia").mkdir(parents=True)
    (site.root / name).chmod(mode)
    os.chown(site.root / name, owner, owner)
    before = site.tree(times=True)

    done = [site.call(verb) for verb in ("install", "run")]
    planned = site.call("plan")

    assert [each.returncode for each in done] == [1, 1]
    for each in done:
        assert sentence(each).startswith(f"cannot install into /usr/local/nvidia ({words}")
        assert f"; {'chown root' if owner else 'chmod o-w'} /{name}; " in sentence(each)
        assert "choose another --install-dir" in sentence(each)
    assert f"install would stop: cannot install into /usr/local/nvidia ({words}" in planned.stdout
    assert site.tree(times=True) == before


@only_as_root
def test_a_link_of_roots_leads_nowhere_that_a_stranger_could_exchange(site: Site) -> None:
    (site.root / "home/somebody/local").mkdir(parents=True)
    os.chown(site.root / "home/somebody", NOBODY, NOBODY)
    (site.root / "usr").mkdir()
    (site.root / "usr/local").symlink_to("../home/somebody/local")
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert "/home/somebody belongs to another user" in sentence(done)
    assert site.tree() == before


@only_as_root
@pytest.mark.parametrize(
    ("mode", "owner", "remedy"),
    [
        pytest.param(0o777, 0, "chmod o-w /shared; ", id="for all"),
        pytest.param(0o755, NOBODY, "chown root /shared; ", id="another's"),
    ],
)
def test_a_pidfile_that_a_stranger_could_exchange_is_refused(
    site: Site, mode: int, owner: int, remedy: str
) -> None:
    (site.root / "shared").mkdir()
    (site.root / "shared").chmod(mode)
    os.chown(site.root / "shared", owner, owner)
    before = site.tree(times=True)

    done = site.call("run", "--pid-file", str(site.root / "shared/toolkit.pid"))

    assert done.returncode == 1
    assert sentence(done).startswith("cannot use /shared/toolkit.pid as the pidfile (")
    assert remedy in sentence(done)
    assert "choose another --pid-file" in sentence(done)
    assert site.tree(times=True) == before


@only_as_root
@pytest.mark.parametrize("made", [True, False], ids=["made by root", "to be made"])
def test_an_install_below_a_sticky_directory_or_one_of_a_groups_works(site: Site, *, made: bool) -> None:
    (site.root / "tmp/group/nvd" if made else site.root / "tmp/group").mkdir(parents=True)
    (site.root / "tmp").chmod(0o1777)
    os.chown(site.root / "tmp/group", 0, 50)
    (site.root / "tmp/group").chmod(0o2775)

    assert site.call("install", "--install-dir", "/tmp/group/nvd").returncode == 0  # noqa: S108 - of the site
    assert site.call("uninstall", "--install-dir", "/tmp/group/nvd").returncode == 0  # noqa: S108 - of the site


@only_as_root
def test_what_stands_in_a_directory_that_was_opened_to_all_is_given_back(site: Site) -> None:
    assert site.call("install").returncode == 0
    (site.root / "usr/local/nvidia").chmod(0o777)

    again = site.call("install")
    (site.root / "usr/local/nvidia").chmod(0o755)

    assert again.returncode == 1
    assert "chmod o-w /usr/local/nvidia" in sentence(again)
    assert site.call("install").returncode == 0
    assert site.call("uninstall").returncode == 0


def test_the_lock_of_another_program_is_not_our_life(site: Site) -> None:
    pidfile = site.root / PIDFILE
    pidfile.parent.mkdir(parents=True)
    pidfile.write_text("1\n")
    with pidfile.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = site.status("--alive").returncode
        pidfile.write_text(f"{os.getpid()}\n")
        when_it_is_its_own = site.status("--alive").returncode

    assert (before, when_it_is_its_own) == (1, 0)


def _default_acl(user: int, permissions: int) -> bytes:
    """Return a default ACL as the kernel stores it (acl(5), linux/posix_acl_xattr.h)."""
    nobody = 0xFFFFFFFF
    entries = (
        (0x01, 7, nobody),
        (0x02, permissions, user),
        (0x04, 5, nobody),
        (0x10, 7, nobody),
        (0x20, 5, nobody),
    )
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@only_as_root
@pytest.mark.parametrize("mode", [0o640, 0o660, 0o600])
def test_what_a_directory_grants_to_new_files_is_not_granted_to_a_config(site: Site, mode: int) -> None:
    config = site.root / DAEMON_JSON
    config.chmod(mode)
    os.setxattr(config.parent, "system.posix_acl_default", _default_acl(NOBODY, 7))

    assert site.call("install").returncode == 0
    installed = os.listxattr(config)
    assert site.call("uninstall").returncode == 0

    assert "system.posix_acl_access" not in (*installed, *os.listxattr(config))
    assert stat.S_IMODE(config.stat().st_mode) == mode


@pytest.mark.parametrize("place", ["/run/nvidia-toolkit", "/var/run/x", "/dev/shm/x"])  # noqa: S108 - of the site
def test_nothing_is_installed_where_a_restart_of_the_node_would_remove_it(site: Site, place: str) -> None:
    (site.root / "run").mkdir(exist_ok=True)
    (site.root / "var").mkdir(exist_ok=True)
    (site.root / "var/run").symlink_to("../run")
    before = site.tree()

    done = site.call("install", "--install-dir", place)

    assert done.returncode == 1
    assert f"cannot install into {place} (a restart of the node empties" in sentence(done)
    assert site.tree() == before
