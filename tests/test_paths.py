"""Paths at which nothing can be: one sentence with a remedy, and the host as it was."""

import shutil

import pytest

from installer.cli.flags import FLAGS, Flag
from tests.support.site import CONTAINERD, DAEMON_JSON, Site

LONG = "x" * 300
ALMOST = "x" * 250  # a name that is fine, but not with what we put around it while we write


SHORTER = "choose a shorter path"
NO_DIRECTORY = "remove it, or put a regular file in its place"
NO_FILE = "make every part of the path above it a directory"


@pytest.mark.parametrize(
    ("flag", "path", "words"),
    [
        pytest.param("--install-dir", f"/opt/{LONG}", SHORTER, id="install-dir: a long name"),
        pytest.param("--install-dir", f"/{DAEMON_JSON}/x", NO_FILE, id="install-dir: below a file"),
        pytest.param("--config", f"docker={{}}/etc/{LONG}/x", SHORTER, id="config: a long directory"),
        pytest.param("--config", f"docker={{}}/etc/{ALMOST}", SHORTER, id="config: too long to stage"),
        pytest.param("--config", f"docker={{}}/{DAEMON_JSON}/x", NO_FILE, id="config: below a file"),
        pytest.param("--config", "docker={}/etc", NO_DIRECTORY, id="config: a directory"),
        pytest.param("--pid-file", f"{{}}/run/{LONG}", SHORTER, id="pidfile: a long name"),
        pytest.param("--pid-file", f"{{}}/{DAEMON_JSON}/x", NO_FILE, id="pidfile: below a file"),
    ],
)
def test_a_path_at_which_nothing_can_be_is_refused(site: Site, flag: str, path: str, words: str) -> None:
    if ALMOST in path:
        site.write(f"etc/{ALMOST}", "{}\n")

    assert site.refuses("run", flag, path.format(site.root)).endswith(words)


PATHS = [flag for flag in FLAGS if flag.metavar.endswith("PATH")]


@pytest.mark.parametrize("flag", PATHS, ids=[flag.field for flag in PATHS])
def test_a_relative_path_is_refused_whichever_flag_has_it(site: Site, flag: Flag) -> None:
    word = "containerd=rel" if "ENGINE=" in flag.metavar else "rel"
    said = site.refuses("install", flag.name, word, code=2)
    assert "rel; give an absolute path" in said


@pytest.mark.parametrize("flag", ["--driver-root", "--toolkit-source", "--mode"])
def test_a_wrong_word_about_an_install_refuses_no_uninstall(site: Site, flag: str) -> None:
    assert "nothing to undo" in site.uninstall(flag, "nri" if flag == "--mode" else "rel").stderr


@pytest.mark.parametrize("verb", ["install", "run"])
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("etc/dokcer/daemon.json", "there is no directory /etc/dokcer"),
        ("srv/link/daemon.json", "there is no directory /srv/link"),
        ("etc/docker/deamon.json", "there is no such file"),
    ],
)
def test_a_config_that_is_missing_is_refused_unless_it_is_the_usual_one(
    site: Site, verb: str, config: str, reason: str
) -> None:
    (site.root / "srv").mkdir()
    (site.root / "srv/link").symlink_to("/data")

    said = site.refuses(verb, "--config", f"docker={site.root}/{config}")

    assert said == (
        f"cannot configure Docker in /{config} ({reason}); "
        "correct --config, or make that file if Docker reads its config there"
    )


def test_the_usual_config_may_be_named_and_missing_with_its_directory(site: Site) -> None:
    shutil.rmtree(site.root / "etc/docker")
    before = site.tree()

    site.install("--config", f"docker={site.root}/{DAEMON_JSON}")
    assert (site.root / DAEMON_JSON).is_file()
    site.uninstall()

    assert site.tree() == before


@pytest.mark.parametrize("used", [False, True], ids=["ours alone", "that somebody came to use"])
def test_the_directories_above_a_config_are_made_and_go_again(site: Site, *, used: bool) -> None:
    shutil.rmtree(site.root / "etc")
    (site.root / "usr").mkdir()
    before = site.tree()
    site.install()
    assert (site.root / DAEMON_JSON).exists()
    if used:
        site.write("etc/docker/theirs", "1\n")

    site.uninstall()

    new = {"etc", "etc/docker", "etc/docker/theirs"} if used else set()
    assert site.tree().keys() == before.keys() | new


@pytest.mark.parametrize(
    ("config", "place"), [(DAEMON_JSON, "daemon.json"), (CONTAINERD, "deeper/still/config.toml")]
)
def test_a_link_that_led_nowhere_stays_and_what_we_put_there_goes(
    site: Site, config: str, place: str
) -> None:
    (site.root / "srv").mkdir()
    (site.root / config).parent.mkdir(parents=True, exist_ok=True)
    (site.root / config).unlink(missing_ok=True)
    (site.root / config).symlink_to(f"/srv/{place}")
    before = site.tree()

    site.install()
    assert (site.root / "srv" / place).is_file()
    site.uninstall()

    assert site.tree() == before


@pytest.mark.parametrize("link", ["etc", "etc/docker", "run/nvidia/toolkit"])
def test_a_link_to_a_directory_that_was_not_there_stays_and_the_directory_goes(site: Site, link: str) -> None:
    shutil.rmtree(site.root / "etc")
    (site.root / "usr").mkdir()
    where = site.root / link
    where.parent.mkdir(parents=True, exist_ok=True)
    where.symlink_to("/data/deep/er")
    (site.root / "data").mkdir()
    before = site.tree()

    site.install()
    site.uninstall()

    assert site.tree() == before


def test_a_driver_root_that_is_missing_is_noted_by_plan_and_install(site: Site) -> None:
    (site.root / "driver").mkdir()
    (site.root / "file").touch()
    noted = "note: there is no directory /nowhere: correct --driver-root, unless the driver comes there later"

    planned = site.call("plan", "--driver-root", "/nowhere")
    installed = site.install("--driver-root", "/nowhere", "--log-format", "text")

    assert planned.stdout.count(noted) == 1
    assert installed.stderr.count(noted.removeprefix("note: ")) == 1
    assert "no directory /file:" in site.call("plan", "--driver-root", "/file").stdout
    for there in (("--driver-root", "/driver"), ("--driver-root", "/"), ()):
        assert "correct --driver-root" not in site.call("plan", *there).stdout


def test_the_driver_root_of_the_gpu_operator_may_be_missing_without_a_note(site: Site) -> None:
    assert "--driver-root" not in site.call("plan", "--driver-root", "/run/nvidia/driver").stdout
