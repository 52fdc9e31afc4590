"""A pod that is deleted by force: the next one is there while it stops, and takes over what it was about to undo."""

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import preloaded
from tests.support.site import LEDGER, PIDFILE, Site, ended, waits
from tests.support.waiting import until

OWN, NEXT, ANOTHERS = "toolkit-aaaaa", "toolkit-bbbbb", "toolkit-other-ccccc"
LOCK = "usr/local/nvidia/.toolkit-installer/lock"


def kubelet_makes(site: Site, pod: str, namespace: str = "gpu") -> None:
    """Make the directory for a pod's logs, as the kubelet does right before the sandbox of the pod."""
    (site.root / f"var/log/pods/{namespace}_{pod}_0c5d-{pod}").mkdir(parents=True)


@contextmanager
def started(site: Site, pod: str) -> Iterator["subprocess.Popen[str]"]:
    environment = preloaded.ENVIRONMENT | {"HOSTNAME": pod}
    with subprocess.Popen(site.command("run"), stderr=subprocess.PIPE, text=True, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def is_claimed(fd: int) -> bool:
    """Tell whether somebody waits for the lock that ``fd`` has: he holds one of another kind on the same file."""
    flock = struct.Struct("hhqqi0q")
    told = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, flock.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    return bool(flock.unpack(told)[0] != fcntl.F_UNLCK)


def says(child: "subprocess.Popen[str]", words: str) -> None:
    assert child.stderr is not None
    assert any(words in line for line in child.stderr), child.wait(10)


def installed(site: Site) -> dict[str, str]:
    """Return what an install leaves on the disk, inodes and times included, but for what each run makes anew."""
    anew = ("run", "var", LEDGER.rpartition("/")[0])
    return {path: what for path, what in site.tree(times=True).items() if not path.startswith(anew)}


def test_the_next_pod_takes_over_and_nothing_is_undone(site: Site) -> None:
    before = site.tree()
    kubelet_makes(site, OWN)
    with started(site, OWN) as own:
        waits(own)
        serving = installed(site)

        kubelet_makes(site, NEXT)
        own.terminate()
        says(own, "waiting for the next pod")
        with started(site, NEXT) as following:
            assert own.stderr is not None
            assert "the next run takes over" in own.stderr.read()
            assert own.wait(60) == 0
            waits(following)

            assert installed(site) == serving
            assert (site.root / PIDFILE).read_text() == f"{following.pid}\n"
            ended(following)
    left = {path: what for path, what in site.tree().items() if not path.startswith("var")}
    assert left == {path: what for path, what in before.items() if not path.startswith("var")}


@pytest.mark.parametrize(
    ("other", "awaited"),
    [((ANOTHERS, "gpu"), False), ((NEXT, "elsewhere"), False), ((NEXT, "gpu"), True)],
    ids=["another DaemonSet's", "another namespace's", "the next, which does not come"],
)
def test_only_the_next_pod_is_waited_for_and_where_it_does_not_come_all_is_undone(
    site: Site, other: tuple[str, str], *, awaited: bool
) -> None:
    kubelet_makes(site, OWN)
    with started(site, OWN) as own:
        waits(own)
        kubelet_makes(site, *other)

        said = ended(own)
        assert ("waiting for the next pod" in said, "undo complete" in said) == (awaited, True)
        assert not (site.root / LEDGER).exists()


def test_a_run_that_waits_for_an_undo_tells_that_and_undoes_what_was_left_to_it_when_it_is_stopped(
    clean: Site,
) -> None:
    clean.install()
    holder = os.open(clean.root / LOCK, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert not is_claimed(holder)

    with started(clean, NEXT) as following:
        says(following, "waiting for another instance")
        until(lambda: is_claimed(holder))
        following.terminate()
        time.sleep(0.5)
        assert following.poll() is None, "whoever saw that it waits may have left everything to it"
        os.close(holder)

        assert following.wait(60) == 0
