"""CRI-O's files of ours: a hook is one thing, other options take away what they no longer need."""

import json
from pathlib import Path

import pytest

from tests.support.site import Site

HOOK = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
DROP_IN = "etc/crio/crio.conf.d/99-nvidia.toml"
OTHER = ("--drop-in-config", "crio={root}/etc/crio/crio.conf.d/98-gpu.toml")
THEIRS = '{"version": "1.0.0", "hook": {"path": "/usr/bin/site-hook"}, "when": {"always": true}, "stages": ["poststop"]}\n'


def create_runtime(hook: Path) -> None:
    hook.write_text(hook.read_text().replace("prestart", "createRuntime"))


@pytest.mark.parametrize("before", [None, THEIRS], ids=["of ours", "of an owner"])
@pytest.mark.parametrize("between", [(), ("install", "--crio-hook")], ids=["once", "with a repair"])
def test_an_edited_hook_goes_whole_or_comes_back_whole(
    tmp_path: Path, before: str | None, between: tuple[str, ...]
) -> None:
    site = Site(tmp_path)
    hook = site.root / HOOK
    if before:
        hook.parent.mkdir(parents=True)
        hook.write_text(before)
    assert site.call("install", "--crio-hook").returncode == 0
    create_runtime(hook)
    if between:
        assert site.call(*between).returncode == 0
        assert json.loads(hook.read_text())["stages"] == ["prestart"]

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert (hook.read_text() if hook.exists() else None) == before


@pytest.mark.parametrize("between", [(), ("install", "--crio-hook")], ids=["once", "with a repair"])
def test_a_hook_of_an_owner_in_the_place_of_ours_stays(tmp_path: Path, between: tuple[str, ...]) -> None:
    site = Site(tmp_path)
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
    tmp_path: Path, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    site = Site(tmp_path)
    files = site.tree()
    assert site.call("install", *(each.format(root=site.root) for each in first)).returncode == 0
    assert site.call("install", *(each.format(root=site.root) for each in then)).returncode == 0

    told = site.status()

    assert (told.returncode, "somebody" in told.stdout) == (0, False), told.stdout
    assert site.call("uninstall").returncode == 0
    assert site.tree() == files


def test_plan_tells_what_status_tells_of_an_owner_who_broke_his_config(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.call("install").returncode == 0
    (site.root / DROP_IN).with_name("50-mine.conf").symlink_to("/etc/nowhere")
    with (site.root / "etc/crio/crio.conf").open("a") as conf:
        conf.write("# Mine.\n")

    told, plan = site.status(), site.call("plan")

    said = [line.split(maxsplit=2)[1:] for line in told.stdout.splitlines() if "would not start" in line]
    assert [f"! note: {': '.join(each)}" for each in said] == plan.stdout.splitlines()[:1], told.stdout


def test_status_and_plan_tell_of_a_hook_in_a_directory_that_crio_will_not_read(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.call("install", "--crio-hook").returncode == 0
    well = site.status()
    mine = (site.root / DROP_IN).with_name("50-mine.conf")
    mine.parent.mkdir()
    mine.write_text('[crio.runtime]\nhooks_dir = ["/opt/hooks"]\n')

    told, plan = site.status(), site.call("plan", "--crio-hook")

    why = "(it looks for hooks in /opt/hooks)"
    assert (well.returncode, told.returncode, plan.returncode) == (0, 1, 0), told.stdout
    assert (why in told.stdout, why in plan.stdout) == (True, True), plan.stdout
