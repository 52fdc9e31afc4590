"""A ledger that is lost, or not where one looks: what engines name tells what is ours."""

import json
import shutil
import sys

import pytest

from tests.host.servers import FakeSystemd, FakeUnit
from tests.support import preloaded
from tests.support.live import UNIT_PROPERTIES, on_bus
from tests.support.site import CONTAINERD, CRIO, DAEMON_JSON, HOME, LEDGER, TOOLKIT, Site, ended, sentence

PLACE = "/opt/gpu/nvidia"
ALL = "usr/local/nvidia"
SPECIFICATION = "var/run/cdi/nvidia.com-gpu.json"
HOOK = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


def named(site: Site) -> list[str]:
    """Return the configs that name a runtime of the toolkit."""
    files = [path for path in (site.root / "etc").rglob("*") if path.is_file()]
    return [path.name for path in files if b"nvidia-container-runtime" in path.read_bytes()]


def lose(site: Site, path: str) -> None:
    lost = site.root / path
    lost.unlink() if lost.is_file() else shutil.rmtree(lost)


def _files(site: Site) -> dict[str, str]:
    return {name: found for name, found in site.tree().items() if not found.startswith("4")}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("gone", "more"),
    [
        pytest.param(HOME, (), id="the ledger's directory"),
        pytest.param(ALL, ("--set-as-default",), id="all, and ours is the default"),
        pytest.param(ALL, ("--runtime-name", "gpu"), id="all, and ours has another name"),
    ],
)
def test_uninstall_without_the_ledger_takes_our_keys_out_and_says_so(
    site: Site, gone: str, more: tuple[str, ...]
) -> None:
    before = json.loads(site.read(DAEMON_JSON))
    assert "ledger lost" not in site.install(*more).stderr
    specification = {"hooks": [{"path": "/usr/local/nvidia/toolkit/nvidia-cdi-hook"}]}
    site.write(SPECIFICATION, json.dumps(specification))
    lose(site, gone)

    told, done = site.status(), site.uninstall()

    assert told.returncode == 1
    (line,) = (line for line in told.stdout.splitlines() if "nvidia.com-gpu.json" in line)
    assert "names /usr/local/nvidia/toolkit, but there is no ledger" in line
    assert "ledger lost" in done.stderr
    stays = "/usr/local if it is empty"
    if gone == HOME:
        stays = "/usr/local/nvidia and /usr/local if they are empty"
    assert f", and remove {stays}" in done.stderr
    assert (named(site), json.loads(site.read(DAEMON_JSON))) == ([], before)
    assert [*site.root.glob("usr/**/toolkit"), *site.root.glob("usr/**/nvidia-cdi-hook")] == []
    assert not (site.root / SPECIFICATION).exists()
    assert site.status().returncode == 3
    assert "nothing to undo" in site.uninstall().stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gone", [LEDGER, HOME, ALL])
def test_an_install_after_the_loss_and_an_uninstall_leave_nothing_of_ours(installed: Site, gone: str) -> None:
    lose(installed, gone)

    again, good = installed.install(), installed.status("--deep")
    installed.uninstall()

    assert "ledger lost" in again.stderr
    assert good.returncode == 0
    assert "edited" not in good.stdout
    assert gone != LEDGER or good.stdout.count("not written by the last install, our keys in force") == 3
    assert named(installed) == []


@pytest.mark.parametrize("again", [True, False], ids=["installed again", "uninstalled"])
@pytest.mark.parametrize("gone", [LEDGER, HOME, ALL])
def test_a_hook_that_starts_our_program_goes_with_it_where_the_ledger_is_lost(
    site: Site, gone: str, *, again: bool
) -> None:
    """No container of the node starts with a hook whose program is gone."""
    site.install("--crio-hook")
    lose(site, gone)
    told = site.status()
    if again:
        assert "ledger lost" in site.install("--crio-hook").stderr

    site.uninstall()

    assert f"/{HOOK}  names /usr/local/nvidia/toolkit, but there is no ledger" in " ".join(
        told.stdout.split("   ")
    )
    assert not (site.root / HOOK).exists()
    assert (named(site), site.status().returncode) == ([], 3)


def test_an_owners_hook_that_starts_our_program_keeps_the_toolkit(site: Site) -> None:
    site.install()
    site.write(
        "etc/containers/oci/hooks.d/site.json", json.dumps({"hook": {"path": f"/{TOOLKIT}/nvidia-ctk"}})
    )

    kept = site.uninstall(code=4)

    assert "etc/containers/oci/hooks.d/site.json names /usr/local/nvidia/toolkit/nvidia-ctk" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-ctk").exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gone", [LEDGER, HOME, ALL])
def test_a_run_whose_ledger_is_lost_while_it_waits_undoes_what_can_be_seen(site: Site, gone: str) -> None:
    with site.running() as child:
        lose(site, gone)
        said = ended(child)

    assert "ledger lost" in said
    assert named(site) == []
    assert not (site.root / HOME).exists()


def test_uninstall_with_only_the_ledger_lost_restores_all_that_can_be_known(site: Site) -> None:
    before = _files(site)
    site.install()
    lose(site, LEDGER)

    told, planned = site.status(), site.call("plan")
    done = site.uninstall()

    assert (told.returncode, planned.returncode) == (1, 10), planned.stderr
    assert f"note: /{LEDGER}: it was removed: install and uninstall go on" in planned.stdout
    assert "/ledger  it was removed: install and uninstall go on" in told.stdout
    assert "ledger lost" in done.stderr
    assert _files(site) == before  # nobody knows any more who made the directories
    assert site.status().returncode == 3


@pytest.mark.parametrize("others", [True, False], ids=["with files of others", "all by the install"])
def test_the_warning_of_a_lost_ledger_names_all_directories_that_may_be_left_empty(
    site: Site, *, others: bool
) -> None:
    """Not /opt: a directory right below / belongs to every host."""
    site.install("--install-dir", PLACE)
    if others:
        site.write("opt/gpu/theirs")
    lose(site, f"{PLACE[1:]}/.toolkit-installer/ledger")

    done = site.uninstall("--install-dir", PLACE)

    named = f"{PLACE} if it is empty" if others else f"{PLACE} and /opt/gpu if they are empty"
    assert f", and remove {named}" in done.stderr
    assert [*(site.root / PLACE[1:]).iterdir()] == []


def test_a_saved_copy_that_nobody_can_place_any_more_is_kept_and_named(site: Site) -> None:
    original = site.read(CONTAINERD)
    site.install("--set-as-default")
    lose(site, LEDGER)

    site.install()
    shown = site.status()
    done = [site.uninstall(code=4), site.uninstall(code=4)]
    (kept,) = (site.root / HOME / "unclaimed").iterdir()
    named_then = named(site)
    site.write(CONTAINERD, kept.read_text())
    site.uninstall()

    assert (shown.returncode, named_then) == (0, [])
    assert "2 saved configs whose ledger is lost" in shown.stdout
    assert all(kept.name in sentence(each) and "move them away" in sentence(each) for each in done)
    assert site.read(CONTAINERD) == original
    assert site.status().returncode == 3


def test_a_config_that_its_owner_has_restored_after_the_loss_keeps_its_empty_tables(site: Site) -> None:
    # As Debian's package has it: tables with headers of their own, which an install would have made, too.
    original = 'version = 2\n\n[plugins]\n  [plugins."io.containerd.grpc.v1.cri"]\n'
    original += '    [plugins."io.containerd.grpc.v1.cri".cni]\n      bin_dir = "/usr/lib/cni"\n'
    site.write(CONTAINERD, original)
    site.install()
    lose(site, LEDGER)
    site.uninstall(code=4)
    (kept,) = [file for file in (site.root / HOME / "unclaimed").iterdir() if file.read_text() == original]
    site.write(CONTAINERD, original)
    shutil.rmtree(kept.parent)

    site.uninstall()

    assert site.read(CONTAINERD) == original
    assert site.status().returncode == 3


def test_an_install_that_is_refused_after_the_loss_leaves_the_host_as_it_was(site: Site) -> None:
    site.install()
    good = site.read(DAEMON_JSON)
    lose(site, LEDGER)
    site.write(DAEMON_JSON, good.replace("{", "{,", 1))
    before = site.tree()

    planned, refused = site.call("plan"), site.call("install")

    assert (planned.returncode, refused.returncode) == (1, 1), refused.stderr
    assert sentence(refused).startswith("cannot read /etc/docker/daemon.json as JSON")
    assert site.tree() == before
    # The saved copies are looked at by the undo, once it can read what stands there.
    site.write(DAEMON_JSON, good)
    site.uninstall()
    assert named(site) == []
    assert not (site.root / HOME).exists()


@pytest.mark.parametrize("gone", [LEDGER, HOME, ALL])
def test_a_drop_in_of_ours_that_its_owner_imports_no_more_goes_without_the_ledger(
    site: Site, gone: str
) -> None:
    drop_in = site.root / "etc/containerd/conf.d/99-nvidia.toml"
    theirs = "version = 3\n"
    site.write(CONTAINERD, theirs)
    site.install("--drop-in-config", f"containerd={drop_in}")
    lose(site, gone)
    site.write(CONTAINERD, theirs)

    site.uninstall()

    assert not drop_in.exists()
    assert not (site.root / TOOLKIT).exists()
    assert (site.read(CONTAINERD), site.status().returncode) == (theirs, 3)


@pytest.mark.parametrize("more", ["oom_score = -900\n", "[broken\n"], ids=["more keys", "broken"])
def test_a_drop_in_that_nobody_imports_stays_with_what_its_owner_has_put_there(site: Site, more: str) -> None:
    drop_in = site.root / "etc/containerd/conf.d/99-nvidia.toml"
    site.write(CONTAINERD, "version = 3\n")
    site.install("--drop-in-config", f"containerd={drop_in}")
    lose(site, LEDGER)
    site.write(CONTAINERD, "version = 3\n")
    drop_in.write_text(more + drop_in.read_text())
    text = drop_in.read_text()

    kept = site.uninstall(code=4)

    assert "/etc/containerd/conf.d/99-nvidia.toml names /usr/local/nvidia/toolkit" in sentence(kept)
    assert drop_in.read_text() == text
    assert (site.root / TOOLKIT).exists()


GLOB = 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
NONE = "version = 3\n"
DEFAULT = ("--set-as-default",)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("gone", "theirs", "more", "again"),
    [
        pytest.param(LEDGER, GLOB, (), False, id="the ledger, imported by its owner"),
        pytest.param(LEDGER, NONE, DEFAULT, False, id="the ledger, imported by us, our default"),
        pytest.param(HOME, NONE, (), True, id="its directory, imported by us, installed again"),
        pytest.param(ALL, GLOB, DEFAULT, True, id="all, imported by its owner, our default again"),
        pytest.param(ALL, NONE, DEFAULT, False, id="all, imported by us, our default"),
    ],
)
def test_a_drop_in_goes_without_the_ledger_and_what_its_owner_imports_stays(
    site: Site, gone: str, theirs: str, more: tuple[str, ...], *, again: bool
) -> None:
    drop_in = site.root / "etc/containerd/conf.d/99-nvidia.toml"
    site.write(CONTAINERD, theirs)
    site.write("etc/containerd/conf.d/10.toml", "version = 3\noom_score = -900\n")
    flags = ("--runtime", "containerd", "--drop-in-config", f"containerd={drop_in}", *more)
    site.install(*flags)
    assert drop_in.exists()
    lose(site, gone)

    if again:
        site.install(*flags)
    done = site.uninstall()

    assert ("default not known" in done.stderr) == (bool(more) and not again)
    assert not drop_in.exists()
    assert site.read(CONTAINERD) == theirs
    assert not (site.root / TOOLKIT).is_symlink()


@pytest.mark.parametrize("again", [True, False], ids=["installed again", "uninstalled"])
def test_a_drop_in_that_only_a_flag_of_the_lost_install_named_goes_by_its_import(
    site: Site, *, again: bool
) -> None:
    site.write(CONTAINERD, NONE)
    drop_in = site.root / "opt/c/99-nvidia.toml"
    site.install(*DEFAULT, "--drop-in-config", f"containerd={drop_in}")
    lose(site, ALL)

    told = site.status()
    if again:
        site.install(*DEFAULT)
    site.uninstall()

    assert told.returncode == 1, told.stdout
    assert "/opt/c/99-nvidia.toml  " in told.stdout
    assert not drop_in.exists()
    assert (named(site), site.read(CONTAINERD)) == ([], NONE)


# Of an engine: its usual config, its program, the flag of its config, and an unusual place.
OTHER_PLACES = {
    "docker": (DAEMON_JSON, "/usr/bin/dockerd", "--config-file", "/opt/e/daemon.json"),
    "containerd": (CONTAINERD, "/usr/bin/containerd", "-c", "/opt/e/config.toml"),
}


def _stopped_unit(name: str) -> FakeUnit:
    """Return the unit of a stopped engine whose command line names the unusual place."""
    _, program, flag, path = OTHER_PLACES[name]
    command = (program, [program, flag, path], False, 0, 0, 0, 0, 0, 0, 0)
    properties = {"ExecStart": ("a(sasbttttuii)", [command])}
    return FakeUnit(active="inactive", sub="dead", main_pid=0, properties=UNIT_PROPERTIES | properties)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gone", [LEDGER, HOME, ALL])
@pytest.mark.parametrize("again", [True, False], ids=["installed again", "uninstalled"])
@pytest.mark.parametrize("name", ["docker", "containerd"])
def test_a_config_that_the_unit_of_a_stopped_engine_names_is_found_without_the_ledger(
    site: Site, gone: str, name: str, *, again: bool
) -> None:
    usual, *_, path = OTHER_PLACES[name]
    config = site.write(path[1:], site.read(usual))
    (site.root / usual).unlink()
    before = site.read(path[1:])

    with on_bus(site.root, FakeSystemd({f"{name}.service": _stopped_unit(name)})):
        site.install("--config", f"{name}={config}")
        assert "nvidia-container-runtime" in config.read_text()
        lose(site, gone)
        told = site.status()
        if again:
            second = site.install("--config", f"{name}={config}")
        undone = site.uninstall()
        left = site.status()

    assert told.returncode == 1, told.stdout
    assert f"{path}  " in told.stdout
    assert "ledger lost" in (second if again else undone).stderr
    assert (config.read_text(), left.returncode) == (before, 3)


def test_a_runtime_that_nobody_can_place_keeps_the_toolkit_where_a_stopped_engines_unit_names_the_config(
    site: Site,
) -> None:
    """With the ledger lost, a single runtime in a config may be its owner's."""
    path = OTHER_PLACES["docker"][-1]
    config = site.write(path[1:], site.read(DAEMON_JSON))
    (site.root / DAEMON_JSON).unlink()

    with on_bus(site.root, FakeSystemd({"docker.service": _stopped_unit("docker")})):
        site.install("--config", f"docker={config}", *DEFAULT)
        kept = json.loads(config.read_text())
        kept["runtimes"] = {"nvidia": kept["runtimes"]["nvidia"]}
        config.write_text(json.dumps(kept))
        lose(site, LEDGER)
        told = site.status()
        undone = site.uninstall(code=4)

    assert f"{path}  " in told.stdout
    assert f"cannot remove the toolkit ({path} names {OURS}" in sentence(undone)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()


@pytest.mark.parametrize(
    ("program", "name"),
    [("/bin/sh", "/bin/sh"), ("sh", "sh"), ("/bin/sh", "docker")],
    ids=["by its path", "by its name", "by another name (@)"],
)
def test_a_stopped_engine_that_its_unit_starts_through_a_shell_keeps_the_toolkit_without_the_ledger(
    site: Site, program: str, name: str
) -> None:
    path = OTHER_PLACES["docker"][-1]
    config = site.write(path[1:], site.read(DAEMON_JSON))
    (site.root / DAEMON_JSON).unlink()
    site.write("bin/sh", "")
    script = f"exec dockerd --config-file={path}"
    command = (program, [name, "-c", script], False, 0, 0, 0, 0, 0, 0, 0)
    properties = UNIT_PROPERTIES | {"ExecStart": ("a(sasbttttuii)", [command])}
    unit = FakeUnit(active="inactive", sub="dead", main_pid=0, properties=properties)

    with on_bus(site.root, FakeSystemd({"docker.service": unit})):
        site.install("--config", f"docker={config}")
        lose(site, LEDGER)
        undone = site.uninstall(code=4)

    problem = (
        f"cannot remove the toolkit (docker.service starts Docker through {program}, so its config is unknown"
    )
    assert problem in sentence(undone)
    assert "start docker.service, then" in sentence(undone)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()


@pytest.mark.parametrize("name", ["60-nvidia.conf", "zzz.d/nvidia.toml"])
def test_a_drop_in_of_crio_goes_without_the_ledger_wherever_below_its_directory_it_is(
    site: Site, name: str
) -> None:
    drop_in = site.root / "etc/crio/crio.conf.d" / name
    site.install("--drop-in-config", f"crio={drop_in}")
    assert "nvidia" in drop_in.read_text()
    lose(site, LEDGER)

    site.install()
    site.uninstall()

    assert not drop_in.exists()
    assert not (site.root / TOOLKIT).is_symlink()


def test_the_directory_of_another_installer_comes_back_without_the_ledger(site: Site) -> None:
    theirs = site.write(f"{TOOLKIT}/nvidia-container-runtime", "theirs")
    site.install()
    lose(site, LEDGER)

    site.uninstall()

    assert theirs.read_text() == "theirs"
    assert named(site) == []


def test_an_owners_link_comes_back_without_the_ledger(site: Site) -> None:
    link = site.root / TOOLKIT
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/own")
    site.install()
    link.unlink()
    link.symlink_to("/opt/later")  # somebody else's, which the next install replaces
    site.install()
    lose(site, LEDGER)

    site.uninstall()

    assert str(link.readlink()) == "/opt/own"
    assert named(site) == []
    assert not (site.root / HOME).exists()


def test_a_directory_set_aside_is_nobodys_but_its_owners_where_another_stands_in_its_place(
    site: Site,
) -> None:
    for name in (f"{HOME}/replaced", TOOLKIT):
        site.write(f"{name}/nvidia-container-runtime", "theirs")
    before = site.tree()

    done = site.uninstall(code=4)

    assert "it still holds replaced" in sentence(done)
    assert "ledger lost" not in done.stderr
    assert before.items() <= site.tree().items()


def test_a_spoilt_ledger_is_one_true_sentence_and_a_way_forward(installed: Site) -> None:
    for content, words in (
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (b"\x00" * 512, "it is damaged or cut off: line 1, column 1"),  # as after a power failure
        (b'{"form": \xff}', "it is no text: byte 9 is not UTF-8"),
        (b'{"form": 1, "fini', "it is damaged or cut off: line 1, column 13"),
        (b'{"form": ' + b"1" * 100_000 + b"}", "it holds a number of more than 4300 digits"),
    ):
        (installed.root / LEDGER).write_bytes(content)

        said = installed.refuses("uninstall")

        assert said.startswith(f"cannot understand the ledger /{LEDGER} ({words}")
        assert f"/{HOME}/unclaimed" in said


OTHER_FORMS: dict[str, tuple[dict[str, object], str]] = {
    "no number": ({"version": 1}, "it has no form number: a version before 0.3.0 wrote it"),
    "a later number": (
        {"form": 2, "written_by": "0.9.0"},
        "its form is 2, and only 1 is known here: version 0.9.0 wrote it",
    ),
    "a word": ({"form": "x"}, "its form is 'x', and only 1 is known here: another version wrote it"),
}
LOOKING = ("status", "doctor", "verify")  # the verbs that need no payload


def _call(site: Site, verb: str) -> preloaded.Done:
    if verb in LOOKING:
        return preloaded.run([sys.executable, "-m", "installer", verb, "--host-root", str(site.root)])
    return site.call(verb)


def _give_form(site: Site, form: dict[str, object]) -> None:
    rows = json.loads(site.read(LEDGER))
    del rows["form"]
    del rows["written_by"]
    site.write(LEDGER, json.dumps(form | rows))


@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.parametrize("verb", ["install", "plan", "run", "uninstall", *LOOKING])
def test_a_ledger_of_another_form_is_refused_by_each_verb_and_nothing_changes(
    installed: Site, verb: str, form: str
) -> None:
    content, words = OTHER_FORMS[form]
    _give_form(installed, content)
    before = installed.tree()

    done = _call(installed, verb)

    assert done.returncode != 0
    told = " ".join((done.stdout + done.stderr).split())  # doctor wraps its lines
    assert f"understand the ledger /{LEDGER} ({words})" in told
    assert "uninstall with the version that wrote it, or move it away and run uninstall" in told
    assert installed.tree() == before


def test_the_ledger_names_the_version_that_wrote_it_as_version_prints_it(installed: Site) -> None:
    rows = json.loads(installed.read(LEDGER))

    told = preloaded.run([sys.executable, "-m", "installer", "--version"])
    assert told.stdout == f"toolkit-installer {rows['written_by']}\n"


def test_a_ledger_of_another_form_is_moved_away_and_an_uninstall_removes_the_keys(installed: Site) -> None:
    _give_form(installed, {"version": 1})
    lose(installed, LEDGER)

    installed.uninstall()

    assert named(installed) == []


def test_what_nvidias_installer_left_is_not_taken_for_ours(site: Site) -> None:
    (site.root / TOOLKIT / ".config/nvidia-container-runtime").mkdir(parents=True)
    theirs = {"runtimes": {"nvidia": {"path": f"/{TOOLKIT}/nvidia-container-runtime"}}}
    site.write(DAEMON_JSON, json.dumps(theirs))
    site.write(SPECIFICATION, json.dumps({"hooks": [{"path": "/usr/bin/nvidia-cdi-hook"}]}))
    before = site.tree(times=True)

    done, told = site.uninstall(), site.status()

    assert told.returncode == 3
    assert "nothing to undo" in done.stderr
    assert site.tree(times=True) == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lost", [False, True], ids=["as it was", "its ledger lost"])
def test_another_install_dir_is_found_by_what_engines_name(site: Site, *, lost: bool) -> None:
    before = site.tree()
    site.install("--install-dir", PLACE)
    told = site.status()
    if lost:
        lose(site, f"{PLACE[1:]}/.toolkit-installer/ledger")

    done = site.uninstall()

    assert (told.returncode, f"{PLACE}/toolkit" in told.stdout) == (0, True)
    assert f'"install_dir": "{PLACE}"' in done.stderr
    assert named(site) == []
    assert lost or site.tree() == before


def test_two_installations_are_told_apart_by_their_owner(site: Site) -> None:
    site.install("--install-dir", PLACE, "--runtime", "docker")
    shutil.copytree(site.root / PLACE[1:], site.root / "srv/nvidia", symlinks=True)
    site.write("etc/containerd/conf.d/x.toml", 'x = "/srv/nvidia/toolkit/nvidia-container-runtime"\n')

    said = site.refuses("uninstall")
    assert f"--install-dir {PLACE}" in said
    assert f" and /{DAEMON_JSON} name the one in {PLACE})" in said


def test_an_entry_that_an_admin_wrote_ahead_of_us_is_not_taken_for_a_lost_ledgers(site: Site) -> None:
    gpu = {"gpu": {"path": f"/{TOOLKIT}/nvidia-container-runtime"}}
    site.rewrite(DAEMON_JSON, lambda said: said.update(runtimes=gpu))
    before = site.tree()

    early = site.uninstall()
    assert site.tree() == before
    done = (early, site.install(), site.uninstall())

    assert [each for each in done if "ledger lost" in each.stderr] == []
    assert site.tree() == before


OURS = f"/{TOOLKIT}/nvidia-container-runtime"
OWNERS_DROP_IN = "etc/crio/crio.conf.d/10-owner.conf"
OF_CONTAINERD = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.owner'


def _docker(*runtimes: str, **more: object) -> str:
    """Return a daemon.json with runtimes by name and, after an equals sign, by the end of their program."""
    tables = {}
    for runtime in runtimes:
        name, _, mode = runtime.partition("=")
        tables[name] = {"path": OURS + mode}
    return json.dumps({"runtimes": tables, **more})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(DAEMON_JSON, _docker("owner=.cdi", **{"default-runtime": "owner"}), id="another name"),
        pytest.param(DAEMON_JSON, _docker("owner", labels=[f"x={OURS}.cdi"]), id="a label"),
        pytest.param(DAEMON_JSON, _docker("owner", labels=[f"x={OURS}-hook"]), id="a label with the hook"),
        pytest.param(DAEMON_JSON, _docker("nvidia-cdi=.cdi"), id="alone"),
        pytest.param(
            DAEMON_JSON, _docker("nvidia=.cdi", "nvidia-cdi", "nvidia-legacy=.cdi"), id="other programs"
        ),
        pytest.param(
            CONTAINERD,
            f'version = 2\n[{OF_CONTAINERD}]\nruntime_type = "io.containerd.runc.v2"\n'
            f'[{OF_CONTAINERD}.options]\nBinaryName = "{OURS}.cdi"\n',
            id="containerd",
        ),
        pytest.param(
            OWNERS_DROP_IN,
            '# mine\n[crio.runtime]\ndefault_runtime = "owner"\n'
            f'[crio.runtime.runtimes.owner]\nruntime_path = "{OURS}.cdi"\n',
            id="CRI-O",
        ),
    ],
)
def test_runtimes_that_an_owner_prepared_before_the_first_install_stay(
    site: Site, path: str, text: str
) -> None:
    site.write(path, text)
    before = site.tree()

    told = site.status()
    early = site.uninstall()
    assert site.tree() == before
    installed = site.install()
    undone = site.uninstall()

    assert site.tree() == before
    assert "there is no ledger" not in told.stdout
    for done in (early, undone):
        assert ("missing toolkit named" in done.stderr) == (done is early)
    assert "ledger lost" not in early.stderr + installed.stderr + undone.stderr


def test_status_and_verify_note_a_config_that_names_a_toolkit_which_is_not_there(site: Site) -> None:
    site.write(DAEMON_JSON, _docker("nvidia", **{"default-runtime": "nvidia"}))
    note = (
        f"/{DAEMON_JSON}: names /usr/local/nvidia/toolkit, which is not there: if no install follows, "
        "remove what names it, or run uninstall --adopt\n"
    )

    told = site.status()
    document = json.loads(site.status("--json").stdout)
    verified = _call(site, "verify")
    planned = site.call("plan")

    assert (told.returncode, told.stdout) == (3, f"nothing is installed\n{note}")
    assert not document["installed"]
    assert [(each["what"], each["good"]) for each in document["held"]] == [(f"/{DAEMON_JSON}", True)]
    assert verified.returncode == 3
    assert verified.stderr == f"nothing is installed here: run toolkit-installer install first\n{note}"
    assert "which is not there" not in planned.stdout, "the install brings it"
    site.install()
    assert "which is not there" not in site.status().stdout


def test_runtimes_that_start_what_an_owners_link_leads_to_stay(site: Site) -> None:
    site.write("opt/toolkit/nvidia-container-runtime", "theirs")
    (site.root / TOOLKIT).parent.mkdir(parents=True)
    (site.root / TOOLKIT).symlink_to("/opt/toolkit")
    site.write(DAEMON_JSON, _docker("nvidia", "nvidia-cdi=.cdi", "nvidia-legacy=.legacy"))
    before = site.tree()

    told, done = site.status(), site.uninstall()

    assert site.tree() == before
    assert (told.returncode, "ledger lost" in done.stderr) == (3, False)


@pytest.mark.parametrize("gone", [LEDGER, ALL])
def test_an_owners_runtimes_beside_ours_stay_when_the_ledger_is_lost(site: Site, gone: str) -> None:
    owners = f'[crio.runtime.runtimes.owner]\nruntime_path = "{OURS}.cdi"\n'
    site.install()
    site.write(OWNERS_DROP_IN, owners)
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].update(owner={"path": OURS}))
    site.rewrite(DAEMON_JSON, lambda said: said.update({"default-runtime": "owner"}))
    lose(site, gone)

    done = site.call("uninstall")

    assert "ledger lost" in done.stderr
    assert site.read(OWNERS_DROP_IN) == owners
    daemon = json.loads(site.read(DAEMON_JSON))
    assert (daemon["runtimes"], daemon["default-runtime"]) == ({"owner": {"path": OURS}}, "owner")
    assert site.read(CRIO) == ""
    if gone == LEDGER:
        assert done.returncode == 4
        assert f"/{OWNERS_DROP_IN} names {OURS}.cdi" in done.stderr


def test_a_plan_after_the_loss_is_that_of_the_install(site: Site) -> None:
    site.install()
    lose(site, LEDGER)

    planned = site.call("plan", "--mode", "cdi")
    refused = site.call("install", "--mode", "cdi")

    assert (planned.returncode, refused.returncode) == (1, 1)
    problem = "cannot use CDI alone for Docker (an earlier install gave it our runtimes)"
    assert problem in planned.stdout, planned.stdout
    assert problem in refused.stderr, refused.stderr


@pytest.mark.parametrize("gone", [LEDGER, HOME, ALL])
def test_verify_without_the_ledger_names_the_loss_where_status_does(installed: Site, gone: str) -> None:
    lose(installed, gone)

    told, verified = installed.status(), _call(installed, "verify")

    assert told.returncode == 1, told.stdout
    assert verified.returncode == 3
    assert verified.stderr == (
        f"the ledger /{LEDGER} is lost, so our runtimes are not known: run toolkit-installer install, "
        "which finds our edits again, or toolkit-installer uninstall\n"
    )
    installed.uninstall()
    verified = _call(installed, "verify")
    assert (installed.status().returncode, verified.returncode) == (3, 3)
    assert verified.stderr == "nothing is installed here: run toolkit-installer install first\n"


def test_an_install_after_a_lost_ledger_keeps_the_copies_that_it_saves_itself(site: Site) -> None:
    before = _files(site)
    owners = {path: site.read(path) for path in (DAEMON_JSON, CONTAINERD)}
    site.install()
    # As an install leaves the node that was killed before it wrote more than its copies.
    (site.root / TOOLKIT).unlink()
    lose(site, CRIO)
    for path, text in owners.items():
        site.write(path, text)
    lose(site, LEDGER)

    site.install()

    told = site.status()
    assert "is missing or damaged" not in told.stdout
    assert told.returncode == 0, told.stdout
    site.uninstall()
    assert _files(site) == before


def test_an_unreadable_config_that_names_the_lost_toolkit_is_no_clean_node(site: Site) -> None:
    site.install()
    good = site.read(DAEMON_JSON)
    site.write(DAEMON_JSON, good.replace("{", "{,", 1))
    lose(site, ALL)

    told, refused = site.status(), site.call("uninstall")

    assert told.returncode == 1, told.stdout
    assert refused.returncode in {1, 4}
    assert sentence(refused).startswith("cannot read /etc/docker/daemon.json as JSON")
    site.write(DAEMON_JSON, good)
    site.uninstall()
    assert named(site) == []
