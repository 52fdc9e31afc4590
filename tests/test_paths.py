"""Paths at which nothing can be: one sentence with a remedy, and the host as it was."""

from pathlib import Path

import pytest

from tests.support.site import DAEMON_JSON, Site, sentence

LONG = "x" * 300
ALMOST = "x" * 250  # a name that is fine, but not with what we put around it while we write


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("flag", "path", "words"),
    [
        pytest.param("--install-dir", f"/opt/{LONG}", "choose a shorter path", id="install-dir: a long name"),
        pytest.param(
            "--install-dir",
            f"/{DAEMON_JSON}/x",
            "make every part of the path above it a directory",
            id="install-dir: below a file",
        ),
        pytest.param(
            "--config",
            f"docker={{root}}/etc/{LONG}/x",
            "choose a shorter path",
            id="config: a long directory",
        ),
        pytest.param(
            "--config", f"docker={{root}}/etc/{LONG}", "choose a shorter path", id="config: a long name"
        ),
        pytest.param(
            "--config",
            f"docker={{root}}/etc/{ALMOST}",
            "choose a shorter path",
            id="config: a name too long to stage",
        ),
        pytest.param(
            "--config",
            f"docker={{root}}/{DAEMON_JSON}/x",
            "make every part of the path above it a directory",
            id="config: below a file",
        ),
        pytest.param(
            "--config",
            "docker={root}/etc",
            "put a file in its place, or move it away",
            id="config: a directory",
        ),
        pytest.param(
            "--pid-file", f"{{root}}/run/{LONG}", "choose a shorter path", id="pidfile: a long name"
        ),
        pytest.param(
            "--pid-file",
            f"{{root}}/{DAEMON_JSON}/x",
            "make every part of the path above it a directory",
            id="pidfile: below a file",
        ),
    ],
)
def test_a_path_at_which_nothing_can_be_is_refused(site: Site, flag: str, path: str, words: str) -> None:
    before = site.tree()

    done = site.call("run", flag, path.format(root=site.root))

    assert done.returncode == 1, done.stderr
    assert sentence(done).endswith(words)
    assert site.tree() == before


def test_the_directories_above_a_config_are_made_and_go_again(site: Site) -> None:
    before = site.tree()
    place = ("--config", f"docker={site.root}/srv/docker/conf/daemon.json")

    assert site.call("install", *place).returncode == 0
    assert (site.root / "srv/docker/conf/daemon.json").exists()
    assert site.call("uninstall").returncode == 0

    assert site.tree() == before


def test_a_directory_that_somebody_came_to_use_stays(site: Site) -> None:
    place = ("--config", f"docker={site.root}/srv/docker/conf/daemon.json")
    assert site.call("install", *place).returncode == 0
    (site.root / "srv/docker/theirs").write_text("1\n")

    assert site.call("uninstall").returncode == 0

    left = sorted(str(path.relative_to(site.root)) for path in (site.root / "srv").rglob("*"))
    assert left == ["srv/docker", "srv/docker/theirs"]


@pytest.mark.parametrize("place", ["daemon.json", "deeper/still/daemon.json"], ids=["a file", "a directory"])
@pytest.mark.parametrize("config", [DAEMON_JSON, "etc/containerd/config.toml"])
def test_a_link_that_led_nowhere_stays_and_what_we_put_there_goes(
    site: Site, config: str, place: str
) -> None:
    (site.root / "srv").mkdir()
    (site.root / config).parent.mkdir(parents=True, exist_ok=True)
    (site.root / config).unlink(missing_ok=True)
    (site.root / config).symlink_to(f"/srv/{place}")
    before = site.tree()

    assert site.call("install").returncode == 0
    assert (site.root / "srv" / place).is_file()
    assert site.call("uninstall").returncode == 0

    assert site.tree() == before


def test_a_drop_in_of_crios_that_leads_nowhere_is_told_and_left(site: Site) -> None:
    drop_in = site.root / "etc/crio/crio.conf.d/99-nvidia.toml"
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    drop_in.symlink_to("/srv/gone.toml")
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert "configure CRI-O in /etc/crio/crio.conf (it refuses the config it has: " in sentence(done)
    assert site.tree() == before


@pytest.mark.parametrize(
    "link",
    ["srv/conf", "srv/conf/docker", "run/nvidia", "run/nvidia/toolkit"],
)
def test_a_link_to_a_directory_that_was_not_there_stays_and_the_directory_goes(site: Site, link: str) -> None:
    where = site.root / link
    where.parent.mkdir(parents=True, exist_ok=True)
    where.symlink_to("/data/deep/er")
    (site.root / "data").mkdir()
    before = site.tree()

    installed = site.call("install", "--config", f"docker={site.root}/srv/conf/docker/daemon.json")
    removed = site.call("uninstall")

    assert installed.returncode == removed.returncode == 0, installed.stderr + removed.stderr
    assert site.tree() == before
