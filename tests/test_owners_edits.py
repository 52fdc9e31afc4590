"""What an owner has made of our runtimes, default, hook and drop-ins stays his at an undo."""

import json
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from installer.config_text import ABSENT, Key, Syntax, Tree, Value, Want, value_at
from installer.config_text.change import apply, parse
from tests.support.site import DAEMON_JSON, Site

OURS = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
CONTAINERD = "etc/containerd/config.toml"
CONTAINERD_RUNTIMES = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes")
CRIO = "etc/crio/crio.conf.d/99-nvidia.toml"
CRIO_RUNTIMES = ("crio", "runtime", "runtimes")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _tree(site: Site, path: str) -> Tree:
    return parse((site.root / path).read_text(), _syntax(path), name=path)


def _syntax(path: str) -> Syntax:
    return Syntax.JSON if path.endswith(".json") else Syntax.TOML


def _edit(site: Site, path: str, *wants: Want) -> None:
    text, _ = apply((site.root / path).read_text(), wants, _syntax(path), name=path)
    (site.root / path).write_text(text)


@pytest.mark.parametrize(
    ("path", "runtimes", "program"),
    [
        pytest.param(CONTAINERD, CONTAINERD_RUNTIMES, ("options", "BinaryName"), id="containerd"),
        pytest.param(CRIO, CRIO_RUNTIMES, ("runtime_path",), id="CRI-O"),
        pytest.param(DAEMON_JSON, ("runtimes",), ("path",), id="Docker"),
    ],
)
@pytest.mark.parametrize(
    "between",
    [
        pytest.param(None, id="by an undo"),
        pytest.param(("--runtime-name", "gpu"), id="when ours gets another name"),
        pytest.param((), id="when it was ours again in between"),
    ],
)
def test_all_of_a_runtime_that_leads_elsewhere_stays_and_the_others_go(
    site: Site, path: str, runtimes: Key, program: Key, between: tuple[str, ...] | None
) -> None:
    assert site.call("install", "--set-as-default").returncode == 0
    _edit(site, path, Want((*runtimes, "nvidia", *program), "/usr/sbin/runc"))
    taken = value_at(_tree(site, path), (*runtimes, "nvidia"))
    if between is not None:
        assert site.call("install", *between).returncode == 0
        now = value_at(_tree(site, path), (*runtimes, "nvidia"))
        assert (
            now == taken if between else value_at(_tree(site, path), (*runtimes, "nvidia", *program)) == OURS
        )

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    left = value_at(_tree(site, path), runtimes)
    assert isinstance(left, dict)
    assert left["nvidia"] == taken
    assert left.keys().isdisjoint({"nvidia-cdi", "gpu"})
    note = f"left the runtime nvidia in /{path} as it is: it was edited to start /usr/sbin/runc"
    if between is None:
        assert [line["note"] for line in map(json.loads, done.stderr.splitlines()) if "note" in line] == [
            note
        ]
        assert not (site.root / "usr/local/nvidia").exists()


def test_a_runtime_that_has_another_shim_stays_and_so_does_the_program_that_it_names(site: Site) -> None:
    assert site.call("install").returncode == 0
    key = (*CONTAINERD_RUNTIMES, "nvidia", "runtime_type")
    _edit(site, CONTAINERD, Want(key, "io.containerd.runsc.v1"))
    taken = value_at(_tree(site, CONTAINERD), key[:-1])

    done = site.call("uninstall")

    assert done.returncode == 4, done.stderr
    assert f"remove the toolkit (/{CONTAINERD} names {OURS}" in done.stderr
    assert value_at(_tree(site, CONTAINERD), key[:-1]) == taken
    _edit(site, CONTAINERD, Want((*key[:-1], "options", "BinaryName"), "/usr/bin/runsc"))
    assert site.call("uninstall").returncode == 0
    assert not (site.root / "usr/local/nvidia").exists()


def test_another_entry_in_the_place_of_ours_stays(site: Site) -> None:
    assert site.call("install").returncode == 0
    key, entry = ("runtimes", "nvidia"), {"runtimeType": "io.containerd.kata.v2", "args": []}
    _edit(site, DAEMON_JSON, Want(key, entry))

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert value_at(_tree(site, DAEMON_JSON), key) == entry
    assert f"left the runtime nvidia in /{DAEMON_JSON} as it is: it was edited to start" in done.stderr


def test_what_docker_may_not_have_beside_a_path_does_not_come_back_beside_somebody_elses(site: Site) -> None:
    (site.root / DAEMON_JSON).write_text(
        '{"runtimes": {"nvidia": {"runtimeType": "io.containerd.runc.v2",'
        ' "options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}}}}'
    )
    assert site.call("install").returncode == 0
    _edit(site, DAEMON_JSON, Want(("runtimes", "nvidia", "path"), "/usr/sbin/runc"))

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    left = _tree(site, DAEMON_JSON)["runtimes"]
    assert left == {"nvidia": {"runtimeType": "", "options": {}, "path": "/usr/sbin/runc"}}


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        pytest.param(
            CONTAINERD, (*CONTAINERD_RUNTIMES, "nvidia", "options", "SystemdCgroup"), False, id="containerd"
        ),
        pytest.param(DAEMON_JSON, ("runtimes", "nvidia", "args"), ["--debug"], id="Docker"),
    ],
)
def test_a_setting_that_was_changed_goes_with_our_runtime_and_is_told_of_once(
    site: Site, path: str, key: Key, value: Value
) -> None:
    before = _tree(site, path)
    assert site.call("install").returncode == 0
    _edit(site, path, Want(key, value))

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    notes = [line["note"] for line in map(json.loads, done.stderr.splitlines()) if "note" in line]
    assert notes == [f"removed {'.'.join(key)} from /{path}: it was a setting of our runtime"]
    assert _tree(site, path) == before


def test_a_default_that_was_taken_over_stays_where_nobody_defines_the_one_before_it(site: Site) -> None:
    v2 = Want(("runtimes", "v2", "path"), "/usr/sbin/runc")
    _edit(site, DAEMON_JSON, v2, Want(("default-runtime",), "v2"))
    assert site.call("install", "--set-as-default").returncode == 0
    _edit(site, DAEMON_JSON, replace(v2, key=v2.key[:2], value=ABSENT))
    _edit(site, DAEMON_JSON, Want(("runtimes", "nvidia", "path"), "/usr/sbin/runc"))

    kept = _tree(site, DAEMON_JSON)

    done = site.call("uninstall")

    assert done.returncode == 4, done.stderr
    assert _tree(site, DAEMON_JSON) == kept
    assert "is not defined)" in done.stderr


PLUGIN = "io.containerd.grpc.v1.cri"
DEFAULT_RUNC = f"""\
version = 2
[plugins."{PLUGIN}".containerd]
default_runtime_name = "runc"
[plugins."{PLUGIN}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def test_a_second_undo_after_an_install_keeps_it_as_the_first_did(site: Site) -> None:
    path = site.root / CONTAINERD
    path.write_text(DEFAULT_RUNC)
    assert site.call("install").returncode == 0
    path.write_text(
        path.read_text().replace('default_runtime_name = "runc"', 'default_runtime_name = "nvidia"')
    )
    assert site.call("uninstall").returncode == 4
    assert site.call("install").returncode == 0

    assert site.call("uninstall").returncode == 4

    containerd = tomllib.loads(path.read_text())["plugins"][PLUGIN]["containerd"]
    assert containerd["default_runtime_name"] in containerd["runtimes"]


def test_an_install_that_changes_nothing_proves_no_config_that_the_next_start_refuses(site: Site) -> None:
    path = site.root / CONTAINERD
    path.write_text(DEFAULT_RUNC)
    assert site.call("install").returncode == 0
    path.write_text(path.read_text().replace('"runc"', '"gone"', 1))
    before = site.status()
    assert (before.returncode, "its default runtime gone is not defined" in before.stdout) == (1, True)

    assert site.call("install").returncode == 0

    assert site.status().stdout == before.stdout


def test_a_comment_keeps_no_built_in_runtime_that_was_not_named_before_the_install(site: Site) -> None:
    path = site.root / CONTAINERD
    runtime = f'[plugins."{PLUGIN}".containerd.runtimes.nvidia'
    options = f'{runtime}.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
    text = f'version = 2\n{runtime}]\nruntime_type = "io.containerd.runc.v2"\n{options}'
    path.write_text(text)
    assert site.call("install").returncode == 0
    path.write_text(path.read_text() + "# mine\n")

    assert site.call("uninstall").returncode == 0

    assert path.read_text() == f"{text}# mine\n"


HOOK = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
OTHER = ("--drop-in-config", "crio={root}/etc/crio/crio.conf.d/98-gpu.toml")
THEIRS = '{"version": "1.0.0", "hook": {"path": "/usr/bin/site-hook"}, "when": {"always": true}, "stages": ["poststop"]}\n'


@pytest.mark.parametrize("before", [None, THEIRS], ids=["of ours", "of an owner"])
@pytest.mark.parametrize("between", [(), ("install", "--crio-hook")], ids=["once", "with a repair"])
def test_an_edited_hook_goes_whole_or_comes_back_whole(
    site: Site, before: str | None, between: tuple[str, ...]
) -> None:
    hook = site.root / HOOK
    if before:
        hook.parent.mkdir(parents=True)
        hook.write_text(before)
    assert site.call("install", "--crio-hook").returncode == 0
    hook.write_text(hook.read_text().replace("prestart", "createRuntime"))
    if between:
        assert site.call(*between).returncode == 0
        assert json.loads(hook.read_text())["stages"] == ["prestart"]

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert (hook.read_text() if hook.exists() else None) == before


@pytest.mark.parametrize("between", [(), ("install", "--crio-hook")], ids=["once", "with a repair"])
def test_a_hook_of_an_owner_in_the_place_of_ours_stays(site: Site, between: tuple[str, ...]) -> None:
    assert site.call("install", "--crio-hook").returncode == 0
    (site.root / HOOK).write_text(THEIRS)
    assert not between or site.call(*between).returncode == 0

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert (site.root / HOOK).read_text() == THEIRS


@pytest.mark.parametrize(
    ("first", "then"),
    [(("--crio-hook",), ()), ((), ("--crio-hook",)), ((), OTHER), (OTHER, ())],
    ids=["hook to runtimes", "runtimes to hook", "another drop-in", "the usual drop-in"],
)
def test_what_an_install_takes_away_is_not_missed(
    site: Site, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    files = site.tree()
    assert site.call("install", *(each.format(root=site.root) for each in first)).returncode == 0
    assert site.call("install", *(each.format(root=site.root) for each in then)).returncode == 0

    told = site.status()

    assert (told.returncode, "somebody" in told.stdout) == (0, False), told.stdout
    assert site.call("uninstall").returncode == 0
    assert site.tree() == files


def test_plan_tells_what_status_tells_of_an_owner_who_broke_his_config(site: Site) -> None:
    assert site.call("install").returncode == 0
    (site.root / CRIO).with_name("50-mine.conf").symlink_to("/etc/nowhere")
    with (site.root / "etc/crio/crio.conf").open("a") as conf:
        conf.write("# Mine.\n")

    told, plan = site.status(), site.call("plan")

    said = [line.split(maxsplit=2)[1:] for line in told.stdout.splitlines() if "would not start" in line]
    assert [f"! note: {': '.join(each)}" for each in said] == plan.stdout.splitlines()[:1], told.stdout


def test_status_and_plan_tell_of_a_hook_in_a_directory_that_crio_will_not_read(site: Site) -> None:
    assert site.call("install", "--crio-hook").returncode == 0
    well = site.status()
    mine = (site.root / CRIO).with_name("50-mine.conf")
    mine.parent.mkdir()
    mine.write_text('[crio.runtime]\nhooks_dir = ["/opt/hooks"]\n')

    told, plan = site.status(), site.call("plan", "--crio-hook")

    why = "(it looks for hooks in /opt/hooks)"
    assert (well.returncode, told.returncode, plan.returncode) == (0, 1, 0), told.stdout
    assert (why in told.stdout, why in plan.stdout) == (True, True), plan.stdout
