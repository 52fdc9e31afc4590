"""What a neighbour without root leaves in our way, as the real program meets it."""

import fcntl
import os
import stat
import struct
from contextlib import ExitStack

import pytest

from tests.support.neighbours import NOBODY, locking, only_as_root
from tests.support.site import DAEMON_JSON, HOME, PIDFILE, Site


@only_as_root
def test_locks_that_a_neighbour_holds_on_every_directory_change_nothing(site: Site) -> None:
    (site.root / "usr/local").mkdir(parents=True)
    before = site.tree()

    for verb in ("install", "uninstall"):
        with ExitStack() as stack:
            for path in (site.root, *site.root.rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    stack.enter_context(locking(path, NOBODY))
            done = site.call(verb)
        assert done.returncode == 0, done.stderr

    assert site.tree() == before


@pytest.mark.parametrize(("verb", "target"), [("install", "nowhere"), ("uninstall", "/etc"), ("run", "/etc")])
def test_a_link_in_the_place_of_our_directory_is_refused_at_once(site: Site, verb: str, target: str) -> None:
    (site.root / HOME).parent.mkdir(parents=True)
    (site.root / HOME).symlink_to(target)

    assert site.refuses(verb).startswith(f"cannot use /{HOME} (it is not a directory but a link or a file)")


def test_a_pidfile_that_is_not_ours_is_refused_and_left(site: Site) -> None:
    more = ("--pid-file", str(site.write("etc/hostname", "node1\n")))
    before = site.tree()

    assert site.refuses("run", *more).startswith(
        "cannot use /etc/hostname as the pidfile (what is there is not a pidfile"
    )
    site.uninstall(*more)
    assert site.tree() == before


@only_as_root
def test_a_link_of_a_neighbours_on_the_way_to_the_pidfile_is_not_followed(site: Site) -> None:
    (site.root / "tmp").mkdir()
    (site.root / "tmp").chmod(0o1777)
    (site.root / "tmp/run").symlink_to("/etc")
    os.chown(site.root / "tmp/run", NOBODY, NOBODY, follow_symlinks=False)

    said = site.refuses("run", "--pid-file", str(site.root / "tmp/run/toolkit.pid"))

    assert "cannot follow the link /tmp/run" in said


STRANGERS = [
    pytest.param("usr/local/nvidia", 0o777, 0, "others than root may write /usr/local/nvidia", id="for all"),
    pytest.param("usr/local/nvidia", 0o1777, 0, "others than root may write /usr/local/nvidia", id="sticky"),
    pytest.param("usr/local/nvidia", 0o755, NOBODY, "/usr/local/nvidia belongs to another", id="another's"),
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

    planned = site.call("plan")

    assert f"install would stop: cannot install into /usr/local/nvidia ({words}" in planned.stdout
    for said in (site.refuses("install"), site.refuses("run")):
        assert said.startswith(f"cannot install into /usr/local/nvidia ({words}")
        assert f"; {'chown root' if owner else 'chmod o-w'} /{name}; " in said
        assert "choose another --install-dir" in said


@only_as_root
def test_a_link_of_roots_leads_nowhere_that_a_stranger_could_exchange(site: Site) -> None:
    (site.root / "home/somebody/local").mkdir(parents=True)
    os.chown(site.root / "home/somebody", NOBODY, NOBODY)
    (site.root / "usr").mkdir()
    (site.root / "usr/local").symlink_to("../home/somebody/local")

    assert "/home/somebody belongs to another user" in site.refuses("install")


@only_as_root
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o755, NOBODY)], ids=["all", "another"])
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--pid-file", "{}/shared/toolkit.pid"), "use /shared/toolkit.pid as the pidfile"),
        (("--metrics-listen", "unix:/shared/x.sock"), "listen on /shared/x.sock"),
    ],
    ids=["a pidfile", "a socket"],
)
def test_a_pidfile_or_socket_that_a_stranger_could_exchange_is_refused(
    site: Site, words: tuple[str, str], problem: str, mode: int, owner: int
) -> None:
    (site.root / "shared").mkdir()
    (site.root / "shared").chmod(mode)
    os.chown(site.root / "shared", owner, owner)

    said = site.refuses("run", *(word.format(site.root) for word in words))

    assert said.startswith(f"cannot {problem} (")
    assert f"{'chown root' if owner else 'chmod o-w'} /shared; " in said
    assert f"choose another {words[0]}" in said


@only_as_root
@pytest.mark.parametrize("made", [True, False], ids=["made by root", "to be made"])
def test_an_install_below_a_sticky_directory_or_one_of_a_groups_works(site: Site, *, made: bool) -> None:
    (site.root / "tmp/group/nvd" if made else site.root / "tmp/group").mkdir(parents=True)
    (site.root / "tmp").chmod(0o1777)
    os.chown(site.root / "tmp/group", 0, 50)
    (site.root / "tmp/group").chmod(0o2775)

    site.install("--install-dir", "/tmp/group/nvd")  # noqa: S108 - of the site
    site.uninstall("--install-dir", "/tmp/group/nvd")  # noqa: S108 - of the site


def test_the_lock_of_another_program_is_not_our_life(site: Site) -> None:
    with site.write(PIDFILE, "1\n").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = site.status("--alive").returncode
        site.write(PIDFILE, f"{os.getpid()}\n")
        when_it_is_its_own = site.status("--alive").returncode

    assert (before, when_it_is_its_own) == (1, 0)


# A default ACL that gives NOBODY everything, as the kernel stores it (acl(5), linux/posix_acl_xattr.h).
ENTRIES = ((0x01, 7, -1), (0x02, 7, NOBODY), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1))
ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in ENTRIES)


@only_as_root
@pytest.mark.parametrize("mode", [0o640, 0o600])
def test_what_a_directory_grants_to_new_files_is_not_granted_to_a_config(site: Site, mode: int) -> None:
    config = site.root / DAEMON_JSON
    config.chmod(mode)
    os.setxattr(config.parent, "system.posix_acl_default", ACL)

    site.install()
    attributes = os.listxattr(config)
    site.uninstall()

    assert "system.posix_acl_access" not in (*attributes, *os.listxattr(config))
    assert stat.S_IMODE(config.stat().st_mode) == mode


@pytest.mark.parametrize("place", ["/run/nvidia-toolkit", "/var/run/x", "/dev/shm/x"])  # noqa: S108 - of the site
def test_nothing_is_installed_where_a_restart_of_the_node_would_remove_it(site: Site, place: str) -> None:
    (site.root / "run").mkdir()
    (site.root / "var").mkdir()
    (site.root / "var/run").symlink_to("../run")

    said = site.refuses("install", "--install-dir", place)

    assert f"cannot install into {place} (a restart of the node empties" in said
