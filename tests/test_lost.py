"""A ledger that is lost, or not where one looks: what engines name tells what is ours."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.site import DAEMON_JSON, LEDGER, PIDFILE, Site, sentence
from tests.support.stand_in import CONFIGS

HOME = "usr/local/nvidia/.toolkit-installer"
PLACE = "/opt/gpu/nvidia"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _named(site: Site) -> list[str]:
    return [
        str(path.relative_to(site.root))
        for path in (site.root / "etc").rglob("*")
        if path.is_file() and b"nvidia-container-runtime" in path.read_bytes()
    ]


def _meaning(site: Site) -> dict[str, object]:
    daemon = json.loads((site.root / DAEMON_JSON).read_text())
    texts = {name: (site.root / name).read_text() for name in CONFIGS if name != DAEMON_JSON}
    return {DAEMON_JSON: daemon} | texts


LOST = [pytest.param(HOME, id="the ledger's directory"), pytest.param("usr/local/nvidia", id="all")]


@pytest.mark.parametrize("gone", LOST)
@pytest.mark.parametrize("more", [(), ("--set-as-default",)], ids=["", "as default"])
def test_uninstall_without_the_ledger_takes_our_keys_out_and_says_so(
    site: Site, gone: str, more: tuple[str, ...]
) -> None:
    before = _meaning(site)
    assert site.call("install", *more).returncode == 0
    shutil.rmtree(site.root / gone)

    told = site.status()
    done = site.call("uninstall")

    assert (told.returncode, done.returncode) == (1, 0), done.stderr
    assert "there is no ledger" in told.stdout
    assert "ledger lost" in done.stderr
    assert _named(site) == []
    assert _meaning(site)[DAEMON_JSON] == before[DAEMON_JSON]
    assert site.status().returncode == 3
    assert "nothing to undo" in site.call("uninstall").stderr
    assert not list((site.root / "usr").rglob("toolkit")) if (site.root / "usr").exists() else True


@pytest.mark.parametrize("gone", LOST)
def test_an_install_after_the_loss_and_an_uninstall_leave_nothing_of_ours(site: Site, gone: str) -> None:
    assert site.call("install").returncode == 0
    shutil.rmtree(site.root / gone)

    installed = site.call("install")
    good = site.status("--deep")
    done = site.call("uninstall")

    assert [installed.returncode, good.returncode, done.returncode] == [0, 0, 0], installed.stderr
    assert "ledger lost" in installed.stderr
    assert _named(site) == []


@pytest.mark.parametrize("gone", LOST)
def test_a_run_whose_ledger_is_lost_while_it_waits_undoes_what_can_be_seen(site: Site, gone: str) -> None:
    with site.running() as child:
        shutil.rmtree(site.root / gone)
        child.send_signal(signal.SIGTERM)
        assert child.stderr is not None
        said = child.stderr.read()
        code = child.wait(30)

    assert code == 0, said
    assert "ledger lost" in said
    assert _named(site) == []


ALONE = pytest.mark.parametrize("spoilt", [False, True], ids=["removed", "spoilt and moved away"])


def _without_its_ledger(site: Site, *, spoilt: bool) -> None:
    ledger = site.root / LEDGER
    if spoilt:
        ledger.write_bytes(ledger.read_bytes()[:200])
        refused = site.call("uninstall")
        assert refused.returncode == 1
        assert "it is damaged or cut off: line" in sentence(refused)
        assert "move it away and run uninstall" in sentence(refused)
    ledger.unlink()


def _files(site: Site) -> dict[str, str]:
    return {name: found for name, found in site.tree().items() if not found.startswith("4")}


@ALONE
def test_uninstall_with_only_the_ledger_lost_restores_all_that_can_be_known(
    site: Site, *, spoilt: bool
) -> None:
    before = _files(site)
    assert site.call("install").returncode == 0
    _without_its_ledger(site, spoilt=spoilt)

    told, planned = site.status(), site.call("plan")
    done = site.call("uninstall")

    assert [told.returncode, planned.returncode, done.returncode] == [1, 10, 0], planned.stderr + done.stderr
    assert f"note: /{LEDGER}: it was removed: install and uninstall go on" in planned.stdout
    assert "/ledger  it was removed: install and uninstall go on" in told.stdout
    assert "ledger lost" in done.stderr
    assert _files(site) == before  # nobody knows any more who made the directories
    assert site.status().returncode == 3


@ALONE
def test_a_saved_copy_that_nobody_can_place_any_more_is_kept_and_named(site: Site, *, spoilt: bool) -> None:
    config = site.root / "etc/containerd/config.toml"
    original = config.read_bytes()
    assert site.call("install", "--set-as-default").returncode == 0
    _without_its_ledger(site, spoilt=spoilt)

    again = site.call("install")
    shown = site.status()
    done = [site.call("uninstall"), site.call("uninstall")]
    (kept,) = (site.root / HOME / "unclaimed").iterdir()
    named = _named(site)
    config.write_bytes(kept.read_bytes())
    last = site.call("uninstall")

    assert [each.returncode for each in (again, shown, *done, last)] == [0, 0, 4, 4, 0], last.stderr
    assert "2 saved configs whose ledger is lost" in shown.stdout
    assert all(kept.name in sentence(each) and "move them away" in sentence(each) for each in done)
    assert named == []
    assert config.read_bytes() == original
    assert site.status().returncode == 3


def test_configs_that_an_install_found_without_a_ledger_are_not_called_edited(site: Site) -> None:
    assert site.call("install").returncode == 0
    (site.root / LEDGER).unlink()
    assert site.call("install").returncode == 0

    shown = site.status()

    assert shown.returncode == 0
    assert shown.stdout.count("not written by the last install, our keys in force") == 3
    assert "edited" not in shown.stdout


GLOB = 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"


@pytest.mark.parametrize("gone", [LEDGER, HOME, "usr/local/nvidia"])
@pytest.mark.parametrize("again", [True, False], ids=["installed again", "undone at once"])
@pytest.mark.parametrize("more", [(), ("--set-as-default",)], ids=["", "as default"])
@pytest.mark.parametrize("theirs", [GLOB, "version = 3\n"], ids=["imported by its owner", "by us"])
def test_a_drop_in_goes_without_the_ledger_and_what_its_owner_imports_stays(
    site: Site, gone: str, theirs: str, more: tuple[str, ...], *, again: bool
) -> None:
    config, drop_in = site.root / "etc/containerd/config.toml", site.root / DROP_IN
    config.write_text(theirs)
    (site.root / "etc/containerd/conf.d").mkdir()
    (site.root / "etc/containerd/conf.d/10.toml").write_text("version = 3\noom_score = -900\n")
    flags = ("--runtime", "containerd", "--drop-in-config", f"containerd={drop_in}")
    assert site.call("install", *flags, *more).returncode == 0
    assert drop_in.exists()
    lost = site.root / gone
    lost.unlink() if lost.is_file() else shutil.rmtree(lost)

    if again:
        assert site.call("install", *flags, *more).returncode == 0
    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert ("default not known" in done.stderr) == (bool(more) and not again)
    assert not drop_in.exists()
    assert config.read_text() == theirs
    assert not (site.root / "usr/local/nvidia/toolkit").is_symlink()


def test_a_run_goes_on_by_what_configs_show_where_the_ledger_alone_is_gone(site: Site) -> None:
    with site.running() as child:
        (site.root / LEDGER).unlink()
        child.send_signal(signal.SIGTERM)
        assert child.stderr is not None
        said = child.stderr.read()
        code = child.wait(30)

    assert code == 0, said
    assert "ledger lost" in said
    assert _named(site) == []
    assert not (site.root / HOME).exists()


def test_the_directory_of_another_installer_comes_back_without_the_ledger(site: Site) -> None:
    theirs = site.root / "usr/local/nvidia/toolkit/nvidia-container-runtime"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    assert site.call("install").returncode == 0
    (site.root / LEDGER).unlink()

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert theirs.read_text() == "theirs"
    assert _named(site) == []


def test_a_first_install_has_lost_nothing_and_says_nothing_of_it(site: Site) -> None:
    done = site.call("install")

    assert done.returncode == 0, done.stderr
    assert "ledger lost" not in done.stderr


def test_a_directory_set_aside_is_nobodys_but_its_owners_where_another_stands_in_its_place(
    site: Site,
) -> None:
    for name in (f"{HOME}/replaced", "usr/local/nvidia/toolkit"):
        (site.root / name).mkdir(parents=True)
        (site.root / name / "nvidia-container-runtime").write_text("theirs")
    before = site.tree()

    done = site.call("uninstall")

    assert done.returncode == 4, done.stderr
    assert "it still holds replaced" in sentence(done)
    assert "ledger lost" not in done.stderr
    assert before.items() <= site.tree().items()


def test_what_another_install_dir_has_lost_its_ledger_is_found_by_what_engines_name(site: Site) -> None:
    assert site.call("install", "--install-dir", PLACE).returncode == 0
    (site.root / PLACE[1:] / ".toolkit-installer/ledger").unlink()

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert f'"install_dir": "{PLACE}"' in done.stderr
    assert _named(site) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "it is empty", id="empty"),
        pytest.param(b"\n \n", "it is empty", id="blank"),
        pytest.param(b"\x00" * 512, "it is damaged or cut off: line 1, column 1", id="zeros of a crash"),
        pytest.param(b'{"version": \xff}', "it is no text: byte 12 is not UTF-8", id="no text"),
        pytest.param(b'{"version": 1, "fini', "it is damaged or cut off: line 1, column 16", id="cut off"),
        pytest.param(
            b'{"version": ' + b"1" * 100_000 + b"}", "it holds a number of more than 4300 digits", id="digits"
        ),
    ],
)
def test_a_spoilt_ledger_is_one_true_sentence_and_a_way_forward(
    site: Site, content: bytes, words: str
) -> None:
    assert site.call("install").returncode == 0
    (site.root / LEDGER).write_bytes(content)
    before = site.tree()

    done = site.call("uninstall")

    assert done.returncode == 1
    assert sentence(done).startswith(f"cannot understand the ledger /{LEDGER} ({words}")
    assert f"that it does not need from /{HOME}/backups to /{HOME}/unclaimed" in sentence(done)
    assert site.tree() == before


def test_what_nvidias_installer_left_is_not_taken_for_ours(site: Site) -> None:
    toolkit = site.root / "usr/local/nvidia/toolkit"
    (toolkit / ".config/nvidia-container-runtime").mkdir(parents=True)
    theirs = {"runtimes": {"nvidia": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}}}
    (site.root / DAEMON_JSON).write_text(json.dumps(theirs))
    before = site.tree(times=True)

    done, told = site.call("uninstall"), site.status()

    assert (done.returncode, told.returncode) == (0, 3)
    assert "nothing to undo" in done.stderr
    assert site.tree(times=True) == before


def test_a_ledger_of_another_install_dir_is_found_by_what_engines_name(site: Site) -> None:
    before = site.tree()
    assert site.call("install", "--install-dir", PLACE).returncode == 0

    told = site.status()
    done = site.call("uninstall")

    assert told.returncode == 0
    assert f"{PLACE}/toolkit" in told.stdout
    assert done.returncode == 0
    assert f'"install_dir": "{PLACE}"' in done.stderr
    assert site.tree() == before


def test_two_installations_are_told_apart_by_their_owner(site: Site) -> None:
    assert site.call("install", "--install-dir", PLACE, "--runtime", "docker").returncode == 0
    named = (site.root / DAEMON_JSON).read_text()
    shutil.copytree(site.root / PLACE[1:], site.root / "srv/nvidia", symlinks=True)
    toml = site.root / "etc/containerd/conf.d/x.toml"
    toml.parent.mkdir()
    toml.write_text('x = "/srv/nvidia/toolkit/nvidia-container-runtime"\n')

    done = site.call("uninstall")

    assert done.returncode == 1
    assert f"--install-dir {PLACE}" in sentence(done)
    assert (site.root / DAEMON_JSON).read_text() == named


def test_a_pidfile_of_a_killed_run_goes_with_an_uninstall_that_was_told_another(site: Site) -> None:
    before = site.tree()
    elsewhere = site.root / "run/elsewhere/my.pid"
    with site.running("--pid-file", str(elsewhere)) as child:
        ready = {"boot_id": "", "pid": child.pid, "plan": "", "engines": [], "time": ""}
        (elsewhere.with_name("ready")).write_text(json.dumps(ready))
        child.kill()
        child.wait()
    assert elsewhere.exists()

    done = site.call("uninstall")

    assert done.returncode == 0
    assert site.tree() == before
    assert not (site.root / PIDFILE).exists()
    assert not (site.root / LEDGER).exists()


def test_an_entry_that_an_admin_wrote_ahead_of_us_is_not_taken_for_a_lost_ledgers(site: Site) -> None:
    path = site.root / DAEMON_JSON
    said = json.loads(path.read_text())
    said["runtimes"] = {"gpu": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}}
    path.write_text(json.dumps(said))
    before = site.tree()

    early = site.call("uninstall")
    nothing = site.tree()
    installed = site.call("install")
    done = site.call("uninstall")

    assert [each.returncode for each in (early, installed, done)] == [0, 0, 0], done.stderr
    assert "ledger lost" not in early.stderr + installed.stderr + done.stderr
    assert nothing == before
    assert site.tree() == before


@pytest.mark.parametrize("verb", ["uninstall", "status"])
def test_another_install_dir_than_the_engines_name_is_refused_and_the_right_one_told(
    site: Site, verb: str
) -> None:
    before = site.tree()
    assert site.call("install", "--install-dir", PLACE).returncode == 0
    during = site.tree()

    wrong = ("--install-dir", "/opt/wrong")
    done = site.call(verb, *wrong) if verb == "uninstall" else site.status(*wrong)
    untouched = site.tree()
    right = site.call("uninstall", "--install-dir", PLACE)

    assert done.returncode == 1
    assert "cannot find an installation in /opt/wrong" in done.stderr
    assert f"names the one in {PLACE}" in done.stderr
    assert f"--install-dir {PLACE}" in done.stderr
    assert untouched == during
    assert right.returncode == 0, right.stderr
    assert site.tree() == before


def test_an_install_dir_without_anything_is_nothing_to_undo(site: Site) -> None:
    before = site.tree()

    done = site.call("uninstall", "--install-dir", "/opt/wrong")

    assert done.returncode == 0
    assert "nothing to undo" in done.stderr
    assert site.tree() == before


@pytest.mark.parametrize("again", [(), ("--runtime-name", "gpu")], ids=["forgotten", "given again"])
def test_uninstall_without_ledger_and_toolkit_takes_a_runtime_of_another_name(
    site: Site, again: tuple[str, ...]
) -> None:
    before = _meaning(site)
    assert site.call("install", "--runtime-name", "gpu").returncode == 0
    shutil.rmtree(site.root / "usr/local/nvidia")

    done = site.call("uninstall", *again)

    assert done.returncode == 0, done.stderr
    assert "ledger lost" in done.stderr
    assert _named(site) == []
    assert _meaning(site)[DAEMON_JSON] == before[DAEMON_JSON]


@pytest.mark.parametrize("gone", LOST)
def test_a_cdi_specification_of_ours_without_its_ledger_goes_before_its_hook_does(
    site: Site, gone: str
) -> None:
    assert site.call("install").returncode == 0
    specification = site.root / "var/run/cdi/nvidia.com-gpu.json"
    specification.parent.mkdir(parents=True)
    specification.write_text(json.dumps({"hooks": [{"path": "/usr/local/nvidia/toolkit/nvidia-cdi-hook"}]}))
    shutil.rmtree(site.root / gone)

    told = site.status()
    done = site.call("uninstall")

    assert (told.returncode, done.returncode) == (1, 0), done.stderr
    (line,) = (line for line in told.stdout.splitlines() if "nvidia.com-gpu.json" in line)
    assert "names /usr/local/nvidia/toolkit, but there is no ledger" in line
    assert not specification.exists()
    assert not [*(site.root / "usr").rglob("nvidia-cdi-hook")]


def test_a_cdi_specification_of_somebody_else_stays_where_no_ledger_is(site: Site) -> None:
    specification = site.root / "var/run/cdi/nvidia.com-gpu.json"
    specification.parent.mkdir(parents=True)
    specification.write_text(json.dumps({"hooks": [{"path": "/usr/bin/nvidia-cdi-hook"}]}))
    before = site.tree()

    assert site.call("uninstall").returncode == 0

    assert site.tree() == before
