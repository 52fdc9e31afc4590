"""Directories of the host by --mount: a wrong one is refused, and no later verb loses what it cannot see."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.site import CONTAINERD, DAEMON_JSON, LEDGER, TOOLKIT, Site, ended, sentence

DOCKER = "etc/docker"


@pytest.fixture
def elsewhere(site: Site) -> Path:
    """Return a directory that is not the host's /etc/docker, with a config of Docker."""
    made = site.root.parent / "elsewhere"
    made.mkdir()
    (made / "daemon.json").write_text("{}\n")
    return made


def mount(place: Path) -> tuple[str, str]:
    return "--mount", f"/{DOCKER}={place}"


def names_ours(text: str) -> bool:
    return "nvidia-container-runtime" in text


@pytest.mark.parametrize("verb", ["plan", "install", "run", "uninstall"])
def test_a_mount_without_its_directory_is_refused_before_the_first_step(site: Site, verb: str) -> None:
    missing = site.root.parent / "missing"

    refused = site.refuses(verb, *mount(missing), code=2)

    assert refused == f"cannot use --mount /{DOCKER}={missing} (there is no directory {missing}); correct it"
    assert not missing.exists()


@pytest.mark.parametrize("verb", ["uninstall", "install", "run", "plan"])
def test_a_verb_without_the_mount_of_the_install_is_refused_and_loses_nothing(
    site: Site, elsewhere: Path, verb: str
) -> None:
    site.install(*mount(elsewhere))
    before = (elsewhere / "daemon.json").read_text()
    host = site.read(DAEMON_JSON)

    refused = site.call(verb)

    assert refused.returncode == (4 if verb == "uninstall" else 1)
    used = f"install used --mount /{DOCKER}={elsewhere}"
    assert sentence(refused) == f"cannot find our edits of /{DAEMON_JSON} ({used}); give it again"
    assert names_ours(before)
    assert (elsewhere / "daemon.json").read_text() == before
    assert site.read(DAEMON_JSON) == host
    assert (site.root / LEDGER).exists()
    assert (site.root / TOOLKIT).exists()

    site.uninstall(*mount(elsewhere))

    assert (elsewhere / "daemon.json").read_text() == "{}\n"
    assert not (site.root / LEDGER).exists()


def test_status_without_the_mount_of_the_install_says_so(site: Site, elsewhere: Path) -> None:
    site.install(*mount(elsewhere))

    told = site.status()

    assert told.returncode == 1
    assert f"(install used --mount /{DOCKER}={elsewhere}); give it again" in told.stdout
    assert "install used" not in site.status(*mount(elsewhere)).stdout


def test_an_uninstall_with_a_mount_that_the_install_did_not_use_is_refused(
    site: Site, elsewhere: Path
) -> None:
    before = site.read(DAEMON_JSON)
    site.install()

    refused = site.uninstall(*mount(elsewhere), code=4)

    unused = f"install did not use --mount /{DOCKER}={elsewhere}"
    assert sentence(refused) == f"cannot find our edits of /{DAEMON_JSON} ({unused}); leave it out"
    assert names_ours(site.read(DAEMON_JSON))
    site.uninstall()
    assert json.loads(site.read(DAEMON_JSON)) == json.loads(before)


def test_hard_links_of_the_config_in_another_directory_are_not_undone_in_its_place(site: Site) -> None:
    """Both names are of one file until a rename gives one of them another file."""
    before = site.read(DAEMON_JSON)
    site.install()
    linked = site.root.parent / "linked"
    shutil.copytree(site.root / DOCKER, linked, copy_function=os.link)

    refused = site.uninstall(*mount(linked), code=4)

    unused = f"install did not use --mount /{DOCKER}={linked}"
    assert sentence(refused) == f"cannot find our edits of /{DAEMON_JSON} ({unused}); leave it out"
    assert names_ours(site.read(DAEMON_JSON))
    shutil.rmtree(linked)
    site.uninstall()
    assert json.loads(site.read(DAEMON_JSON)) == json.loads(before)


@pytest.mark.parametrize("again", ["--mount to another place", "the whole host"])
def test_mounts_may_change_while_they_lead_to_the_same_directory(site: Site, again: str) -> None:
    """An old pod has /etc/docker at one place, a new pod at another, or the whole host below one directory."""
    before = site.tree()
    host = site.root / DOCKER
    first = host.rename(site.root.parent / "first")
    site.install(*mount(first))
    more: tuple[str, ...] = ()
    second = host
    if again.startswith("--mount"):
        second = site.root.parent / "second"
        more = mount(second)
    first.rename(second)

    installed = site.install(*more)
    site.uninstall(*more)
    second.rename(host)

    assert "nothing changed" in installed.stderr
    assert site.tree() == before


def _remove(config: Path) -> None:
    config.unlink()


def _replace(config: Path) -> None:
    config.write_text('{"debug": true}\n')


@pytest.mark.parametrize("change", [_remove, _replace])
def test_edits_that_are_gone_are_given_up_only_after_an_install_in_the_same_place(
    site: Site, elsewhere: Path, change: Callable[[Path], None]
) -> None:
    """A file without our edits may be the owner's work or the file of another directory."""
    site.install(*mount(elsewhere))
    change(elsewhere / "daemon.json")
    text = (elsewhere / "daemon.json").read_text() if (elsewhere / "daemon.json").exists() else None

    refused = site.uninstall(*mount(elsewhere), code=4)

    reason = f"({elsewhere} has none of them, so it may be another directory)"
    remedy = (
        f"mount the host's /{DOCKER} there; if our edits are gone for good, run install with this --mount "
        "and then uninstall"
    )
    assert sentence(refused) == f"cannot find our edits of /{DAEMON_JSON} {reason}; {remedy}"
    assert (site.root / LEDGER).exists()
    assert (site.root / TOOLKIT).exists()
    site.install(*mount(elsewhere))
    site.uninstall(*mount(elsewhere))
    assert not (site.root / LEDGER).exists()
    if text is not None:
        assert (elsewhere / "daemon.json").read_text() == text


def test_the_remedy_for_a_mount_that_is_gone_for_good_works(site: Site) -> None:
    host = site.root / DOCKER
    before = site.read(DAEMON_JSON)
    first = host.rename(site.root.parent / "first")
    site.install(*mount(first))
    (first / "daemon.json").write_text(before)
    first.rename(host)

    refused = site.uninstall(code=4)

    anew = f"install --mount /{DOCKER}=HERE, and then uninstall with it"
    assert sentence(refused).endswith(f"if our edits are gone for good, run {anew}")
    site.install(*mount(host))
    site.uninstall(*mount(host))
    assert site.read(DAEMON_JSON) == before
    assert not (site.root / LEDGER).exists()


def test_edits_in_a_directory_that_this_process_does_not_have_are_not_given_up(
    site: Site, elsewhere: Path
) -> None:
    """A pod had a wrong directory at its --mount, and the uninstall on the node has no such path."""
    site.install(*mount(elsewhere))
    moved = elsewhere.rename(site.root.parent / "moved")

    refused = site.uninstall(code=4)

    used = f"install used --mount /{DOCKER}={elsewhere}"
    remedy = f"give it again, or name the present place with --mount /{DOCKER}=HERE; "
    assert sentence(refused).startswith(f"cannot find our edits of /{DAEMON_JSON} ({used}); {remedy}")
    site.uninstall(*mount(moved))
    assert (moved / "daemon.json").read_text() == "{}\n"
    assert not (site.root / LEDGER).exists()


OWN_RUNTIME = (
    '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}\n'
)
RUNC = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'


@pytest.mark.parametrize(
    ("config", "text", "more"),
    [
        pytest.param(DAEMON_JSON, OWN_RUNTIME, ("--set-as-default",), id="the name of a default runtime"),
        pytest.param(CONTAINERD, RUNC, (), id="the type of runc"),
    ],
)
def test_what_an_owner_writes_as_well_is_not_taken_for_our_edits(
    site: Site, elsewhere: Path, config: str, text: str, more: tuple[str, ...]
) -> None:
    site.write(config, text)
    name = Path(config).name
    (elsewhere / name).write_text("{}\n" if name == "daemon.json" else "version = 2\n")
    there = ("--mount", f"/{Path(config).parent}={elsewhere}")
    site.install(*there, *more)

    refused = site.uninstall(code=4)

    assert sentence(refused).endswith(f"(install used --mount {there[1]}); give it again")
    assert site.read(config) == text
    assert names_ours((elsewhere / name).read_text())
    site.uninstall(*there)
    assert not names_ours((elsewhere / name).read_text())


def _move(place: Path) -> Path:
    """Give a directory another name and leave an empty one in its place, as an unmount does."""
    moved = place.rename(place.with_name("moved"))
    place.mkdir()
    return moved


def _empty(directory: Path) -> None:
    """Leave a directory as an unmount shows it."""


def _new_file_system(directory: Path) -> None:
    (directory / "lost+found").mkdir()


def _another_config(directory: Path) -> None:
    (directory / "daemon.json").write_text('{"debug": true}\n')


@pytest.mark.parametrize("fill", [_empty, _new_file_system, _another_config])
@pytest.mark.parametrize("place", ["the same path", "another path"])
def test_an_undo_that_finds_another_directory_than_the_install_gives_up_no_edits(
    site: Site, elsewhere: Path, place: str, fill: Callable[[Path], None]
) -> None:
    site.install(*mount(elsewhere))
    moved = _move(elsewhere)
    other = elsewhere
    if place == "another path":
        other = elsewhere.with_name("other")
        other.mkdir()
    fill(other)

    refused = site.uninstall(*mount(other), code=4)

    assert f"({other} has none of them, so it may be another directory)" in sentence(refused)
    assert names_ours((moved / "daemon.json").read_text())
    assert (site.root / LEDGER).exists()
    site.uninstall(*mount(moved))
    assert (moved / "daemon.json").read_text() == "{}\n"


@pytest.mark.parametrize("fill", [_empty, _another_config])
def test_an_owners_edit_of_ours_lets_no_undo_with_another_mount_pass(
    site: Site, elsewhere: Path, fill: Callable[[Path], None]
) -> None:
    (elsewhere / "daemon.json").unlink()
    site.install()
    site.rewrite(DAEMON_JSON, lambda config: config["runtimes"].pop("nvidia-legacy"))
    fill(elsewhere)

    refused = site.uninstall(*mount(elsewhere), code=4)

    unused = f"install did not use --mount /{DOCKER}={elsewhere}"
    assert sentence(refused) == f"cannot find our edits of /{DAEMON_JSON} ({unused}); leave it out"
    assert names_ours(site.read(DAEMON_JSON))
    site.uninstall()


def test_a_waiting_run_does_not_undo_a_directory_that_was_moved_away_under_it(site: Site) -> None:
    """A tool of the owner's has put a new /etc/docker in place; the mount still leads to the old one."""
    host = site.root / DOCKER
    old = site.root.parent / "old"
    shutil.copytree(host, old)
    with site.running(*mount(old), "--drift", "ignore") as run:
        shutil.rmtree(host)
        shutil.copytree(old, host)

        said = ended(run, code=4)

    assert f"({old} is not the host's /{DOCKER})" in said
    assert names_ours(site.read(DAEMON_JSON))
    assert (site.root / LEDGER).exists()


def test_a_directory_that_was_replaced_for_good_is_installed_again_and_undone(
    site: Site, elsewhere: Path
) -> None:
    site.install(*mount(elsewhere))
    _move(elsewhere)
    (elsewhere / "daemon.json").write_text('{"debug": true}\n')

    site.install(*mount(elsewhere))

    assert names_ours((elsewhere / "daemon.json").read_text())
    site.uninstall(*mount(elsewhere))
    assert (elsewhere / "daemon.json").read_text() == '{"debug": true}\n'
    assert not (site.root / LEDGER).exists()


def test_a_run_whose_mount_has_gone_does_not_say_that_its_undo_is_complete(
    site: Site, elsewhere: Path
) -> None:
    with site.running(*mount(elsewhere), "--drift", "ignore") as run:
        moved = elsewhere.rename(elsewhere.with_name("moved"))

        said = ended(run, code=4)

    assert "undo complete" not in said
    assert names_ours((moved / "daemon.json").read_text())
    assert (site.root / LEDGER).exists()


def test_a_path_that_the_node_has_too_is_not_the_pods_directory(site: Site, elsewhere: Path) -> None:
    site.install(*mount(elsewhere))
    moved = _move(elsewhere)

    refused = site.uninstall(code=4)

    assert "or name the present place with --mount" in sentence(refused)
    assert names_ours((moved / "daemon.json").read_text())


def test_of_two_directories_with_our_edits_the_one_of_the_install_is_asked_for(
    site: Site, elsewhere: Path
) -> None:
    site.install(*mount(elsewhere))
    site.write(DAEMON_JSON, (elsewhere / "daemon.json").read_text())

    refused = site.uninstall(code=4)

    assert sentence(refused).endswith("give it again")
    assert names_ours((elsewhere / "daemon.json").read_text())


@pytest.mark.parametrize(
    ("places", "said"),
    [
        pytest.param(("{}/elsewhere", "{}/node"), "is mounted from", id="two for one path"),
        pytest.param(("{0}/elsewhere/../elsewhere",), "its second path has ..", id="a path with dots"),
    ],
)
def test_a_mount_that_two_verbs_could_read_in_two_ways_is_refused(
    site: Site, elsewhere: Path, places: tuple[str, ...], said: str
) -> None:
    words: list[str] = []
    for place in places:
        words += ["--mount", f"/{DOCKER}={place.format(elsewhere.parent)}"]

    assert said in site.refuses("install", *words, code=2)


@pytest.mark.parametrize("verb", ["install", "run", "plan"])
def test_a_mount_on_the_toolkit_is_refused_for_its_name_becomes_a_link(
    site: Site, elsewhere: Path, verb: str
) -> None:
    refused = site.refuses(verb, "--mount", f"/{TOOLKIT}={elsewhere}", code=2)

    assert refused.endswith("mount /usr/local/nvidia or a directory above it")
    assert (elsewhere / "daemon.json").exists()


def test_a_ledger_of_an_install_without_mounts_has_no_word_of_them(installed: Site) -> None:
    assert "mounts" not in json.loads(installed.read(LEDGER))


def test_a_ledger_names_only_the_mounts_with_a_config(site: Site, elsewhere: Path) -> None:
    sockets = site.root.parent / "sockets"
    sockets.mkdir()

    site.install("--mount", f"/run/docker={sockets}", *mount(elsewhere))

    (row,) = json.loads(site.read(LEDGER))["mounts"]
    assert (row["path"], row["here"]) == (f"/{DOCKER}", str(elsewhere))


def test_an_install_dir_below_a_mount_makes_no_second_ledger_on_the_root(site: Site) -> None:
    local = site.root.parent / "local"
    local.mkdir()
    before = site.tree()

    site.install("--mount", f"/usr/local={local}")

    assert (local / "nvidia/.toolkit-installer/ledger").exists()
    assert not (site.root / "usr").exists()
    site.uninstall("--mount", f"/usr/local={local}")
    assert site.tree() == before
    assert [*local.iterdir()] == []


def test_a_mount_may_be_a_link_to_the_hosts_directory(site: Site) -> None:
    before = site.tree()
    link = site.root.parent / "link"
    link.symlink_to(site.root / DOCKER)

    site.install(*mount(link))
    site.uninstall(*mount(link))

    assert site.tree() == before


def test_a_copy_of_the_directory_to_which_a_config_is_linked_is_not_undone_in_its_place(
    site: Site, elsewhere: Path
) -> None:
    target = site.write("srv/conf/daemon.json", "{}\n")
    config = site.root / DAEMON_JSON
    config.unlink()
    config.symlink_to("/srv/conf/daemon.json")
    site.install()
    shutil.copytree(target.parent, elsewhere, dirs_exist_ok=True)

    refused = site.uninstall("--mount", f"/srv/conf={elsewhere}", code=4)

    assert sentence(refused).endswith(f"(install did not use --mount /srv/conf={elsewhere}); leave it out")
    assert names_ours(target.read_text())
    site.uninstall()
    assert target.read_text() == "{}\n"


def test_a_copy_is_not_undone_in_the_place_of_the_host_after_a_loss(site: Site, elsewhere: Path) -> None:
    site.install()
    shutil.copytree(site.root / DOCKER, elsewhere, dirs_exist_ok=True)
    (site.root / LEDGER).unlink()

    refused = site.uninstall(*mount(elsewhere), code=4)

    assert sentence(refused).endswith("leave it out")
    assert names_ours(site.read(DAEMON_JSON))
    assert (site.root / TOOLKIT).exists()
    site.uninstall()
    assert not names_ours(site.read(DAEMON_JSON))
