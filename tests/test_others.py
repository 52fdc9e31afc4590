"""Others write too: what somebody does between install and undo is there afterwards as if we had never been."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.site import CONTAINERD, DAEMON_JSON, Site
from tests.support.tree import USUAL, Aspect, tree

DROP_INS = "etc/crio/crio.conf.d"
OWNER = (12, 34) if os.geteuid() == 0 else (os.getuid(), os.getgid())
Act = Callable[[Path], object]


def _append(path: str, text: str) -> Act:
    return lambda root: (root / path).write_text((root / path).read_text() + text)


def _retarget(root: Path) -> None:
    """Let a link lead to another file, the former one stays."""
    (root / "etc/docker/other.json").write_text('{"debug": true}\n')
    (root / DAEMON_JSON).unlink()
    (root / DAEMON_JSON).symlink_to("other.json")


def _link_away(root: Path) -> None:
    """Move the file and leave a link in its place."""
    (root / "srv").mkdir()
    (root / DAEMON_JSON).rename(root / "srv/daemon.json")
    (root / DAEMON_JSON).symlink_to("/srv/daemon.json")


def _add_drop_in(root: Path) -> None:
    (root / DROP_INS).mkdir(exist_ok=True)
    (root / DROP_INS / "50-mine.conf").write_text("[crio]\n")


# Done to a node without us or to one with us: the node has to be the same in the end.
ACTS: dict[str, Act] = {
    "appends a comment": _append(CONTAINERD, "# mine\n"),
    "appends a table": _append(CONTAINERD, "\n[proxy_plugins.mine]\ntype = 'snapshot'\n"),
    "replaces a config": lambda root: (root / DAEMON_JSON).write_text('{"debug": true}\n'),
    "deletes a config": lambda root: (root / DAEMON_JSON).unlink(),
    "deletes a directory with its configs": lambda root: shutil.rmtree(root / "etc/docker"),
    "makes a config private": lambda root: (root / DAEMON_JSON).chmod(0o600),
    "gives a config away": lambda root: os.chown(root / CONTAINERD, *OWNER),
    "labels a config": lambda root: os.setxattr(root / CONTAINERD, "user.mine", b"1"),
    "moves a config and links to it": _link_away,
    "links to another file": _retarget,
    "adds a drop-in": _add_drop_in,
    "adds a file to a directory of the engine's": lambda root: (root / "etc/containerd/mine").touch(),
}


def _state(root: Path) -> dict[str, str]:
    return tree(root, USUAL | Aspect.OWNER | Aspect.XATTRS)


@pytest.mark.parametrize("act", ACTS)
def test_an_uninstall_leaves_exactly_the_edits_of_others(site: Site, act: str) -> None:
    untouched = site.root.with_name("untouched")
    shutil.copytree(site.root, untouched, symlinks=True)
    site.install("--set-as-default")

    ACTS[act](site.root)
    site.uninstall()

    ACTS[act](untouched)
    assert _state(site.root) == _state(untouched)


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after another install"])
def test_a_link_that_leads_elsewhere_leaves_no_trace_of_us_where_it_led(site: Site, *, again: bool) -> None:
    config = site.root / DAEMON_JSON
    original = config.read_bytes()
    first, second = config.with_name("first.json"), config.with_name("second.json")
    config.rename(first)
    config.symlink_to("first.json")
    site.install()
    config.unlink()
    second.write_text('{"debug": true}\n')
    config.symlink_to("second.json")
    if again:
        site.install()
        assert first.read_bytes() == original

    site.uninstall()

    assert (first.read_bytes(), second.read_text()) == (original, '{"debug": true}\n')


@pytest.mark.parametrize(
    ("moved", "there"),
    [("usr/local/nvidia", False), ("usr/local", True), (DROP_INS, False), (DROP_INS, True)],
    ids=["ours", "above ours, there before us", "the drop-ins", "the drop-ins, there before us"],
)
def test_a_directory_that_was_moved_and_linked_to_keeps_nothing_of_ours(
    site: Site, moved: str, *, there: bool
) -> None:
    (site.root / "srv").mkdir()
    if there:
        (site.root / moved).mkdir(parents=True)
    before = _state(site.root)
    site.install()
    (site.root / moved).rename(site.root / "srv/moved")
    (site.root / moved).symlink_to("/srv/moved")

    site.uninstall()

    left = _state(site.root)
    if there:  # what somebody has made of his own directory stays
        assert list((site.root / "srv/moved").iterdir()) == []
        left[moved] = before[moved]
        del left["srv/moved"]
    assert left == before


MINE, MY_DEFAULT = {"path": "/mine"}, {"default-runtime": "mine"}
OUR_NAMES = {"labels": ["nvidia=runtimes"], "nvidia": {"path": "/x"}}


@pytest.mark.parametrize(
    ("change", "left", "told"),
    [
        (lambda tree: tree.update(MY_DEFAULT), MY_DEFAULT, f"left default-runtime in /{DAEMON_JSON}"),
        (lambda tree: tree["runtimes"].pop("nvidia-cdi"), {}, ""),
        (lambda tree: tree["runtimes"].update(mine=MINE), {"runtimes": {"mine": MINE}}, ""),
        (
            lambda tree: tree["runtimes"]["nvidia"].update(MINE),
            {"runtimes": {"nvidia": {**MINE, "args": []}}},
            f"left the runtime nvidia in /{DAEMON_JSON} as it is: it was edited to start /mine",
        ),
        (lambda tree: tree.update(OUR_NAMES), OUR_NAMES, ""),
    ],
    ids=["another default", "one of ours less", "one beside ours", "another binary", "our names elsewhere"],
)
def test_of_a_rewritten_config_only_what_is_still_ours_goes(
    site: Site, change: Callable[[dict[str, object]], object], left: dict[str, object], told: str
) -> None:
    before = json.loads((site.root / DAEMON_JSON).read_text())
    site.install("--set-as-default")

    site.rewrite(DAEMON_JSON, change)
    done = site.uninstall()

    assert json.loads((site.root / DAEMON_JSON).read_text()) == before | left
    assert told in done.stderr
