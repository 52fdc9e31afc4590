"""NVIDIA's installer puts its toolkit in the place of ours, with the same keys and values: from then on they are its."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.looks import asked, found_problem, look
from tests.support.neighbours import NOBODY, only_as_root
from tests.support.site import CONTAINERD, CRIO, DAEMON_JSON, HOME, LEDGER, TOOLKIT, Site, ended, sentence
from tests.support.stand_in import CONFIGS
from tests.support.waiting import until, until_it_sleeps


def nvidias_toolkit(site: Site, words: str = "theirs") -> None:
    """Make the toolkit's name a directory of NVIDIA's: it removes what has that name, and copies its files.

    Its layout is that of v1.20.0 (engine-facts.md#nvidia-directory). The keys that it then writes are in the
    configs already, with the same values (engine-facts.md#nvidia-runtimes).
    """
    place = site.root / TOOLKIT
    if not place.is_symlink() and place.exists():
        shutil.rmtree(place)
    toolkit = place.with_name("toolkit.made")  # so that no run, however slow we are, finds half of it
    (toolkit / ".config/nvidia-container-runtime").mkdir(parents=True)
    (toolkit / ".config/nvidia-container-runtime/config.toml").write_text('[nvidia-ctk]\npath = "x"\n')
    for mode in ("", ".cdi", ".legacy"):
        for real in ("", ".real"):
            program = toolkit / f"nvidia-container-runtime{mode}{real}"
            program.write_text(f"#! /bin/sh\n# {words}\n")
            program.chmod(0o755)
    while not _has_the_name(place, toolkit):
        pass


def _has_the_name(place: Path, toolkit: Path) -> bool:
    place.unlink(missing_ok=True)
    try:
        toolkit.rename(place)
    except NotADirectoryError:  # a run that waits has put its link there again meanwhile
        return False
    return True


def left(site: Site) -> dict[str, bytes]:
    """Return the configs with the runtimes, and NVIDIA's toolkit; nothing of ours is beside them."""
    toolkit = site.root / TOOLKIT
    assert not toolkit.is_symlink()
    assert not (site.root / HOME / "versions").exists()
    return _all_of_theirs(site)


def _all_of_theirs(site: Site) -> dict[str, bytes]:
    files = [path for path in (site.root / TOOLKIT).rglob("*") if path.is_file()]
    files += [site.root / path for path in (DAEMON_JSON, CONTAINERD, CRIO)]
    return {str(path.relative_to(site.root)): path.read_bytes() for path in files}


@pytest.mark.parametrize("whose", ["another installer's toolkit", "a directory of others"])
def test_an_install_tells_where_a_directory_in_its_place_goes(site: Site, whose: str) -> None:
    if whose == "a directory of others":
        (site.root / TOOLKIT).mkdir(parents=True)
        (site.root / TOOLKIT / "notes.txt").write_text("mine\n")
    else:
        nvidias_toolkit(site)

    planned, done = site.call("plan"), site.install()

    note = f"/{TOOLKIT} moves to /{HOME}/replaced: uninstall puts it back"
    for said in (planned.stdout, done.stderr):
        assert note in said
        assert f"{whose} is there" in said
    site.uninstall()
    assert not (site.root / TOOLKIT).is_symlink()


WRAPPER = f"/{TOOLKIT}/my-wrapper"
MOST_CHECKS = 4  # the first, for each of two changes, and again after a pause
OWNERS_DROP_IN = "etc/crio/crio.conf.d/10-owner.conf"
OF_CONTAINERD = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.owner'


def _write_wrapper(site: Site) -> None:
    site.write(WRAPPER[1:], "#!/bin/sh\n").chmod(0o755)


def _name_wrapper(site: Site) -> None:
    site.rewrite(DAEMON_JSON, lambda said: said.setdefault("runtimes", {}).update(owner={"path": WRAPPER}))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(DAEMON_JSON, json.dumps({"runtimes": {"owner": {"path": WRAPPER}}}), id="Docker"),
        pytest.param(
            CONTAINERD,
            f'version = 2\n[{OF_CONTAINERD}]\nruntime_type = "io.containerd.runc.v2"\n'
            f'[{OF_CONTAINERD}.options]\nBinaryName = "{WRAPPER}"\n',
            id="containerd",
        ),
        pytest.param(
            OWNERS_DROP_IN, f'[crio.runtime.runtimes.owner]\nruntime_path = "{WRAPPER}"\n', id="CRI-O"
        ),
    ],
)
def test_an_install_that_takes_a_named_program_away_names_it(site: Site, path: str, text: str) -> None:
    nvidias_toolkit(site)
    _write_wrapper(site)
    site.write(path, text)
    before = site.tree()

    planned = site.call("plan")
    done = site.install()

    note = f"the runtime owner in /{path} starts {WRAPPER}, which the new toolkit does not have: "
    note += "that file is copied into it"
    assert note in planned.stdout
    assert note in done.stderr
    assert (site.root / WRAPPER[1:]).read_text() == "#!/bin/sh\n"
    site.uninstall()
    assert site.tree() == before


def _change_source(site: Site, words: str) -> None:
    """Make the source another version of the toolkit."""
    for program in site.source.rglob("nvidia-ctk"):
        program.write_bytes(program.read_bytes() + words.encode())


def test_an_owners_program_outlives_all_updates_of_the_toolkit(site: Site) -> None:
    (site.root / TOOLKIT).mkdir(parents=True)
    _write_wrapper(site)
    _name_wrapper(site)
    wrapper = site.root / WRAPPER[1:]
    wrapper.chmod(0o751)
    os.chown(wrapper, 0, 7)
    before = site.tree()
    site.install()
    installed = site.tree(times=True)

    site.install()

    assert site.tree(times=True) == installed
    for words in ("2", "3"):
        _change_source(site, words)
        site.install()
        status = wrapper.stat()
        assert (status.st_mode & 0o7777, status.st_gid) == (0o751, 7)
        told = site.status()
        assert (told.returncode, "BAD" in told.stdout) == (0, False), told.stdout
    site.uninstall()
    assert site.tree() == before


def test_a_program_put_into_our_toolkit_stays_over_installs_and_keeps_the_toolkit(site: Site) -> None:
    site.install()
    _write_wrapper(site)
    _name_wrapper(site)

    done = site.install()

    assert "nothing changed" in done.stderr
    assert (site.root / WRAPPER[1:]).is_file()
    assert site.status().returncode == 0
    site.write(WRAPPER[1:], "#!/bin/sh\n# edited\n")
    assert site.status().returncode == 0
    _change_source(site, "2")
    updated = site.install()
    assert (
        f"starts {WRAPPER}, which the new toolkit does not have: that file is copied into it"
        in updated.stderr
    )
    assert site.read(WRAPPER[1:]) == "#!/bin/sh\n# edited\n"
    assert f"names {WRAPPER}" in sentence(site.uninstall(code=4))
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].clear())
    done = site.uninstall()
    assert f"{WRAPPER} goes with the toolkit: the install did not make it" in done.stderr
    assert not (site.root / HOME).exists()


@pytest.mark.parametrize("target", ["/opt/theirs", "../../../opt/theirs"], ids=["absolute", "relative"])
def test_an_owners_program_comes_back_with_the_owners_link(site: Site, target: str) -> None:
    site.write("opt/theirs/my-wrapper", "#!/bin/sh\n").chmod(0o755)
    (site.root / TOOLKIT).parent.mkdir(parents=True)
    (site.root / TOOLKIT).symlink_to(target)
    _name_wrapper(site)
    before = site.tree()
    site.install()
    _change_source(site, "2")
    site.install()
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].update(second={"path": WRAPPER}))

    done = site.uninstall()

    assert "goes with the toolkit" not in done.stderr
    after = site.tree()
    assert {path for path in {*before, *after} if before.get(path) != after.get(path)} == {DAEMON_JSON}


@pytest.mark.parametrize("target", ["../../../../opt/theirs", "mine", "./deeper/../mine"])
def test_a_link_in_the_owners_directory_comes_back(site: Site, target: str) -> None:
    """The saved directory lies one level deeper, where a relative link leads elsewhere."""
    site.write("opt/theirs", "#!/bin/sh\n").chmod(0o755)
    site.write(f"{TOOLKIT}/mine", "#!/bin/sh\n").chmod(0o755)
    (site.root / TOOLKIT / "deeper").mkdir()
    (site.root / WRAPPER[1:]).symlink_to(target)
    _name_wrapper(site)
    before = site.tree()
    site.install()
    _change_source(site, "2")
    site.install()

    done = site.uninstall()

    assert "goes with the toolkit" not in done.stderr
    assert site.tree() == before


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_file_that_does_not_come_back_with_the_owners_directory_is_named(site: Site, verb: str) -> None:
    site.write(f"{TOOLKIT}/notes.txt")
    site.install()
    _write_wrapper(site)
    _name_wrapper(site)
    _change_source(site, "2")
    site.install()
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].pop("owner"))
    _change_source(site, "3")

    done = site.call(verb)

    assert done.returncode == 0, done.stderr
    words = "goes with the toolkit" if verb == "uninstall" else "is not part of the new toolkit"
    assert f"{WRAPPER} {words}" in done.stderr


def test_a_wrapper_and_the_program_beside_it_are_copied_together(site: Site) -> None:
    site.install()
    _write_wrapper(site)
    site.write(f"{TOOLKIT}/my-wrapper.real", "ELF")
    _name_wrapper(site)
    _change_source(site, "2")

    updated = site.install()

    assert "is not part of the new toolkit" not in updated.stderr
    for words in ("3", "4"):
        assert site.read(f"{TOOLKIT}/my-wrapper.real") == "ELF"
        _change_source(site, words)
        site.install()
    assert site.status().returncode == 0
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].clear())
    assert f"{WRAPPER}.real goes with the toolkit" in site.uninstall().stderr


@only_as_root
def test_a_private_directory_of_an_owner_stays_private(site: Site) -> None:
    site.write(f"{TOOLKIT}/tls/deep/key.pem", "secret\n")
    private = site.root / TOOLKIT / "tls"
    private.chmod(0o700)
    os.chown(private, NOBODY, NOBODY)
    site.rewrite(DAEMON_JSON, lambda said: said.update(tlskey=f"/{TOOLKIT}/tls/deep/key.pem"))
    before = site.tree()

    site.install()

    for words in ("2", "3"):
        status = private.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o700, NOBODY, NOBODY)
        assert (private / "deep").stat().st_mode & 0o7777 == 0o755
        assert site.status("--deep").returncode == 0
        assert "nothing changed" in site.install().stderr
        _change_source(site, words)
        site.install()
    site.uninstall()
    assert site.tree() == before


def test_an_owners_link_keeps_its_own_target(site: Site) -> None:
    site.write("opt/v1/runc", "#!/bin/sh\n").chmod(0o755)
    (site.root / "opt/current").symlink_to("v1")
    (site.root / TOOLKIT).mkdir(parents=True)
    (site.root / WRAPPER[1:]).symlink_to("/opt/current/runc")
    _name_wrapper(site)

    site.install()

    assert str((site.root / WRAPPER[1:]).readlink()) == "/opt/current/runc"


def test_a_path_with_dots_is_noted_and_not_copied(site: Site) -> None:
    (site.root / TOOLKIT / "sub").mkdir(parents=True)
    _write_wrapper(site)
    path = f"/{TOOLKIT}/sub/../my-wrapper"
    site.rewrite(DAEMON_JSON, lambda said: said.update(runtimes={"owner": {"path": path}}))
    before = site.tree()

    done = site.install()

    assert f"starts {path}, which the new toolkit does not have: move that program" in done.stderr
    site.uninstall()
    assert site.tree() == before


@pytest.mark.parametrize("is_link", [True, False], ids=["through a link", "by its path"])
def test_a_file_that_is_named_by_the_directory_of_one_version_is_noted_and_not_copied(
    site: Site, *, is_link: bool
) -> None:
    site.install()
    _write_wrapper(site)
    path = str(Path("/usr/local/nvidia") / (site.root / TOOLKIT).readlink() / "my-wrapper")
    if is_link:
        site.write("opt/link").unlink()
        (site.root / "opt/link").symlink_to(path)
        path = "/opt/link"
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].update(owner={"path": path}))
    _change_source(site, "2")

    done = site.install()

    assert f"starts {path}, which the new toolkit does not have: move that program" in done.stderr
    assert not (site.root / WRAPPER[1:]).exists()


NAMED_ELSEWHERE = [
    pytest.param("etc/systemd/system/x.service", f"[Service]\nExecStart={WRAPPER}\n", id="a unit"),
    pytest.param("etc/cdi/x.json", json.dumps({"hooks": [{"path": WRAPPER}]}), id="a CDI specification"),
    pytest.param("etc/containers/containers.conf", f'[engine.runtimes]\nmine = ["{WRAPPER}"]\n', id="Podman"),
]


@pytest.mark.parametrize("is_first", [True, False], ids=["first install", "update"])
@pytest.mark.parametrize(("path", "text"), NAMED_ELSEWHERE)
def test_a_file_that_is_named_outside_the_engines_configs_is_copied(
    site: Site, path: str, text: str, *, is_first: bool
) -> None:
    if not is_first:
        site.install()
    _write_wrapper(site)
    site.write(path, text)
    _change_source(site, "2")

    planned, done = site.call("plan"), site.install()

    note = f"/{path} names {WRAPPER}, which the new toolkit does not have: that file is copied into it"
    assert note in planned.stdout
    assert note in done.stderr
    assert (site.root / WRAPPER[1:]).is_file()
    _change_source(site, "3")
    site.install()
    assert (site.root / WRAPPER[1:]).is_file()


BUNDLES = {
    "containerd": "run/containerd/io.containerd.runtime.v2.task/k8s.io/" + 64 * "3",
    "crio": "run/containers/storage/overlay-containers/" + 64 * "5" + "/userdata",
}


def _start_container(site: Site, engine: str, program: str) -> Path:
    """Write what an engine records of a container that runs on a program."""
    bundle = BUNDLES[engine]
    if engine == "crio":
        annotations = {"io.kubernetes.cri-o.RuntimeHandler": "owner", "io.kubernetes.pod.name": "bert"}
        site.write(f"{bundle}/config.json", json.dumps({"annotations": annotations}))
        site.write(f"{bundle}/conmon-pidfile", "186")
        site.write("proc/186/comm", "conmon\n")
        site.write("proc/186/stat", f"186 (conmon) S{' 0' * 19}\n")
        site.write("proc/186/cmdline", "\0".join(("conmon", "-c", 64 * "5", "-r", program, "")))
    else:
        annotations = {"io.kubernetes.cri.sandbox-name": "bert"}
        site.write(f"{bundle}/config.json", json.dumps({"annotations": annotations}))
        site.write(f"{bundle}/options.json", json.dumps({"binary_name": program}))
    return site.root / bundle


@pytest.mark.parametrize("engine", BUNDLES)
def test_a_container_on_an_owners_program_keeps_that_program_and_the_toolkit(site: Site, engine: str) -> None:
    site.write("usr/bin/runc", "#!/bin/sh\n").chmod(0o755)
    site.install()
    _write_wrapper(site)
    bundle = _start_container(site, engine, WRAPPER)
    _change_source(site, "2")

    updated = site.install()

    assert (
        f"bert ({engine}) runs on {WRAPPER}, which the new toolkit does not have: that file is copied"
        in updated.stderr
    )
    kept = site.uninstall("--in-use", "keep", code=4)
    assert f"cannot undo everything ({WRAPPER} runs -/bert ({engine}))" in sentence(kept)
    assert (site.root / WRAPPER[1:]).is_file()
    site.uninstall("--in-use", "force", code=4)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").is_symlink()
    assert (site.root / WRAPPER[1:]).read_text() == "#!/bin/sh\n"
    assert "BAD /usr/local/nvidia/toolkit/" not in site.status().stdout
    shutil.rmtree(bundle)
    notes = [line for line in site.uninstall().stderr.splitlines() if "goes with the toolkit" in line]
    assert len(notes) == 1
    assert WRAPPER in notes[0]
    assert not (site.root / HOME).exists()


@pytest.mark.parametrize("engine", BUNDLES)
def test_force_puts_no_link_in_the_place_of_an_owners_program_with_a_name_like_ours(
    site: Site, engine: str
) -> None:
    path = f"{TOOLKIT}/nvidia-mine"
    site.write("usr/bin/runc", "#!/bin/sh\n").chmod(0o755)
    site.install()
    site.write(path, "#!/bin/sh\n").chmod(0o755)
    bundle = _start_container(site, engine, f"/{path}")

    site.uninstall("--in-use", "force", code=4)

    assert not (site.root / path).is_symlink()
    assert site.read(path) == "#!/bin/sh\n"
    assert (site.root / TOOLKIT / "nvidia-container-runtime").is_symlink()
    shutil.rmtree(bundle)
    assert f"/{path} goes with the toolkit" in site.uninstall().stderr
    assert not (site.root / HOME).exists()


def test_a_container_on_a_program_that_comes_back_delays_no_undo(site: Site) -> None:
    (site.root / TOOLKIT).mkdir(parents=True)
    _write_wrapper(site)
    _start_container(site, "containerd", WRAPPER)
    before = site.tree()

    site.install()

    assert (site.root / WRAPPER[1:]).is_file()
    site.uninstall("--in-use", "keep")
    assert site.tree() == before


@pytest.mark.parametrize("target", ["/usr/sbin/runc", "../../../sbin/runc", "mine-1.2"])
def test_an_owners_link_in_the_toolkit_goes_on(site: Site, target: str) -> None:
    (site.root / TOOLKIT).mkdir(parents=True)
    site.write("usr/sbin/runc", "#!/bin/sh\n").chmod(0o755)
    site.write(f"{TOOLKIT}/mine-1.2", "#!/bin/sh\n").chmod(0o755)
    link = site.root / WRAPPER[1:]
    link.symlink_to(target)
    _name_wrapper(site)
    before = site.tree()

    site.install()

    if target == "mine-1.2":
        assert (link.is_symlink(), link.read_text()) == (False, "#!/bin/sh\n")
    else:
        assert str(link.readlink()) == "/usr/sbin/runc"
    assert site.status().returncode == 0
    _change_source(site, "2")
    site.install()
    assert link.is_symlink() is (target != "mine-1.2")
    site.uninstall()
    assert site.tree() == before


def test_a_directory_of_an_owner_in_the_toolkit_is_noted_and_not_copied(site: Site) -> None:
    site.write(f"{TOOLKIT}/mine/notes.txt")
    site.rewrite(DAEMON_JSON, lambda said: said.update({"data-root": f"/{TOOLKIT}/mine"}))
    before = site.tree()

    done = site.install()

    note = f"/{DAEMON_JSON} names /{TOOLKIT}/mine, which the new toolkit does not have: move that program"
    assert note in done.stderr
    site.uninstall()
    assert site.tree() == before


def test_an_install_that_replaces_no_toolkit_names_no_program(site: Site) -> None:
    site.install()
    _name_wrapper(site)

    assert "does not have" not in site.call("plan").stdout


@pytest.mark.parametrize(
    "program", [WRAPPER, f"/{TOOLKIT}/nvidia-container-runtime.cdi"], ids=["gone", "ours"]
)
def test_an_undo_that_was_kept_by_a_config_is_kept_by_it_after_another_install_too(
    site: Site, program: str
) -> None:
    site.install()
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].update(owner={"path": program}))
    site.uninstall(code=4)
    site.install()

    kept = site.uninstall(code=4)

    assert f"/{DAEMON_JSON} names {program}" in sentence(kept)
    assert (site.root / TOOLKIT).is_symlink()
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].clear())
    site.uninstall()
    assert not (site.root / HOME).exists()


@pytest.mark.parametrize("more", [(), ("--set-as-default",)], ids=["not the default", "the default"])
def test_an_uninstall_leaves_runtimes_that_start_nvidias_toolkit_by_now(
    site: Site, more: tuple[str, ...]
) -> None:
    site.install(*more)
    nvidias_toolkit(site)
    before = _all_of_theirs(site)

    told, done = site.status(), site.uninstall()

    assert left(site) == before
    assert not (site.root / HOME).exists()
    notes = [line["note"] for line in map(json.loads, done.stderr.splitlines()) if "note" in line]
    assert notes == [
        f"left nvidia, nvidia-cdi, nvidia-legacy in /{path}: another installer has put its toolkit in the place of "
        "ours, and they start that; toolkit-installer uninstall --adopt removes both"
        for path in sorted((DAEMON_JSON, CONTAINERD, CRIO))
    ]
    assert told.returncode == 1
    assert f"BAD /{TOOLKIT}  not ours: another installer has put its toolkit there" in told.stdout
    assert "as we wrote it" not in told.stdout


def test_an_uninstall_that_is_to_adopt_takes_both_away(installed: Site) -> None:
    nvidias_toolkit(installed)

    installed.uninstall("--adopt")

    assert not (installed.root / TOOLKIT).exists()
    assert installed.read(CONTAINERD) == CONFIGS[CONTAINERD]
    assert "nvidia" not in installed.read(DAEMON_JSON) + installed.read(CRIO)


@pytest.mark.parametrize("before_us", [True, False], ids=["NVIDIA's before us", "nothing before us"])
@pytest.mark.parametrize("again", [True, False], ids=["installed again", "undone at once"])
def test_what_nvidia_put_there_last_comes_back(site: Site, *, again: bool, before_us: bool) -> None:
    if before_us:
        nvidias_toolkit(site, "the first")
    site.install()
    assert (site.root / HOME / "replaced").is_dir() is before_us
    nvidias_toolkit(site, "the second")
    theirs = _all_of_theirs(site)
    if again:
        site.install()
        assert (site.root / TOOLKIT).is_symlink()
        assert site.status().returncode == 0

    site.uninstall()

    assert left(site) == theirs
    assert not (site.root / HOME).exists()


def test_an_uninstall_after_the_ledger_is_lost_leaves_them_too(installed: Site) -> None:
    (installed.root / LEDGER).unlink()
    nvidias_toolkit(installed)
    theirs = _all_of_theirs(installed)

    installed.call("uninstall")

    assert left(installed) == theirs


def test_uninstall_ignores_our_path_in_files_of_nvidias_toolkit(installed: Site) -> None:
    """NVIDIA's specification, and what else names its toolkit, are no reason to stay."""
    nvidias_toolkit(installed)
    kind = "cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\n# hook\n"
    specification = installed.write("etc/cdi/gpu.yaml", f"{kind}x: /{TOOLKIT}/nvidia-cdi-hook\n")
    packaged = installed.write("usr/bin/nvidia-container-runtime", "")
    packaged.unlink()
    packaged.symlink_to(f"/{TOOLKIT}/nvidia-container-runtime")

    installed.uninstall()

    assert (specification.exists(), packaged.is_symlink()) == (True, True)


def test_a_waiting_run_does_not_fight_for_the_place_and_goes_without_a_trace(site: Site) -> None:
    with site.running("--drift", "repair") as child:
        until_it_sleeps(child.pid)
        nvidias_toolkit(site)
        until(lambda: found_problem(site, "drifted"), lambda: look(site))
        theirs = _all_of_theirs(site)
        probe = site.status("--ready")
        until_it_sleeps(child.pid)
        number = look(site)["number"]
        os.utime(site.root / TOOLKIT)
        until(lambda: look(site)["number"] > number, lambda: look(site))
        until_it_sleeps(child.pid)
        ended(child)

    assert probe.returncode == 1
    assert "another installer's toolkit is there" in probe.stdout
    assert left(site) == theirs
    assert not (site.root / HOME).exists()


def test_a_waiting_run_leaves_an_installer_alone_that_has_only_begun_and_takes_the_node_back_when_asked(
    site: Site,
) -> None:
    with site.running("--drift", "repair") as child:
        until_it_sleeps(child.pid)
        (site.root / f"{TOOLKIT}.made").mkdir()
        while not _has_the_name(site.root / TOOLKIT, site.root / f"{TOOLKIT}.made"):
            pass
        until(lambda: found_problem(site, "drifted"), lambda: look(site))
        assert not (site.root / TOOLKIT).is_symlink()
        nvidias_toolkit(site)
        until_it_sleeps(child.pid)

        done = asked(site)

        assert done.returncode == 0, done.stdout
        assert (site.root / TOOLKIT).is_symlink()
    assert "nvidia-legacy" in site.read(CONTAINERD)
