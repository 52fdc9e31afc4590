"""What ``status`` says of configs that others have edited: it is the effect that counts."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger, hold
from installer.host.files import Host
from installer.model.facts import Failure, ToolkitRow
from installer.model.options import Options
from tests.support import preloaded
from tests.support.site import CONTAINERD, CRIO, DAEMON_JSON, PIDFILE, TOOLKIT, Site

OLD, NEW = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
Act = Callable[[Site], object]


@pytest.fixture(scope="module")
def _default(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("default"))
    site.install("--set-as-default")
    return site


@pytest.fixture
def default(site: Site, _default: Site) -> Site:
    """Return a node on which our runtime is the default of all engines."""
    return site.copy_of(_default)


def in_docker(edit: Callable[[Any], object]) -> Act:
    return lambda site: site.rewrite(DAEMON_JSON, edit)


def replaced(path: str, *changes: tuple[str, str]) -> Act:
    def act(site: Site) -> None:
        text = site.read(path)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        site.write(path, text)

    return act


def beside_crio(text: str) -> Act:
    return lambda site: site.write(str(Path(CRIO).with_name("99-site.conf")), text)


def imported_by_containerd(site: Site) -> None:
    site.write(
        "etc/containerd/conf.d/site.toml",
        f'version = 2\n[plugins."{OLD}".containerd]\ndefault_runtime_name = "runc"\n'
        f'[plugins."{OLD}".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n',
    )
    site.write(CONTAINERD, 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + site.read(CONTAINERD))


OURS, RUNC = 'default_runtime_name = "nvidia"', 'default_runtime_name = "runc"'
CRIO_OURS, CRIO_RUNC = 'default_runtime = "nvidia"', 'default_runtime = "runc"'
ANOTHER = '[crio.runtime.runtimes.nvidia-cdi]\nruntime_path = "/usr/bin/crun"\n'
DEFAULT = "the default runtime is runc, not nvidia"
GONE = "the runtime nvidia-cdi is not defined"
LATER = "the runtime nvidia-cdi starts /usr/bin/crun in its configs: "
DRIFTED: dict[str, tuple[str, Act, str]] = {
    "another default": ("docker", in_docker(lambda said: said.update({"default-runtime": "runc"})), DEFAULT),
    "no default": ("docker", in_docker(lambda said: said.pop("default-runtime")), DEFAULT),
    "a runtime less": ("docker", in_docker(lambda said: said["runtimes"].pop("nvidia-cdi")), GONE),
    "containerd, the default of before": ("containerd", replaced(CONTAINERD, (OURS, RUNC)), DEFAULT),
    "containerd, no default": ("containerd", replaced(CONTAINERD, (OURS, "")), DEFAULT),
    "containerd, a file that is imported": ("containerd", imported_by_containerd, DEFAULT),
    "CRI-O, the default of before": ("crio", replaced(CRIO, (CRIO_OURS, CRIO_RUNC)), DEFAULT),
    # No install writes over what is read later: the end of the sentence is what it would stop for.
    "CRI-O, a later file": (
        "crio",
        beside_crio(f"[crio.runtime]\n{CRIO_RUNC}\n"),
        f"{DEFAULT} in its configs: ",
    ),
    "CRI-O, a later file with a runtime": ("crio", beside_crio(ANOTHER), LATER),
}
REPAIRED = "in its configs: install puts it right"


@pytest.mark.parametrize(("engine", "act", "said"), DRIFTED.values(), ids=DRIFTED)
def test_a_config_that_does_not_come_to_what_was_asked_for_is_drifted(
    default: Site, engine: str, act: Act, said: str
) -> None:
    act(default)

    told = default.status()

    assert told.returncode == 1, told.stdout
    assert f"{engine} " in told.stdout
    assert f"drifted: {said if said.endswith(': ') else f'{said} {REPAIRED}'}" in told.stdout
    assert "our keys in force" not in told.stdout


HARMLESS = {
    "docker": in_docker(lambda said: said.update({"debug": True})),
    "containerd": replaced(CONTAINERD, ("version = 2", "version = 2\noom_score = -1")),
    "containerd config migrate": replaced(CONTAINERD, (OLD, NEW), ("version = 2", "version = 3")),
    "CRI-O": replaced(
        CRIO, ("[crio.runtime.runtimes.nvidia]", "[crio.metrics]\n[crio.runtime.runtimes.nvidia]")
    ),
}


@pytest.mark.parametrize("act", HARMLESS.values(), ids=HARMLESS)
def test_an_edit_that_leaves_ours_in_force_is_no_drift(default: Site, act: Act) -> None:
    act(default)

    told = default.status()

    assert told.returncode == 0, told.stdout
    assert "edited after the install, our keys in force" in told.stdout


def test_a_single_key_of_ours_that_is_gone_is_drift(installed: Site) -> None:
    in_docker(lambda said: said["runtimes"]["nvidia"].pop("args"))(installed)

    assert "drifted: runtimes.nvidia.args changed after the install" in installed.status().stdout


def test_a_verb_beside_a_run_looks_at_the_node_of_that_run(site: Site) -> None:
    command = [sys.executable, "-m", "installer", "status", "--pid-file", str(site.root / PIDFILE)]
    with site.running():
        beside = preloaded.run(command, preloaded.WITHOUT_ROOT)
        named = site.status()

    assert (beside.stdout, beside.returncode) == (named.stdout, named.returncode)
    assert "/etc/docker/daemon.json" in beside.stdout


@pytest.mark.parametrize("named", [False, True], ids=["no host root", "its host root named"])
def test_a_verb_beside_a_run_takes_its_mounts(site: Site, *, named: bool) -> None:
    elsewhere = site.root.parent / "configs"
    (site.root / "etc/docker").rename(elsewhere)
    words = ["--pid-file", str(site.root / PIDFILE)]
    if named:
        words += ["--host-root", f"{site.root}/"]
    with site.running("--mount", f"/etc/docker={elsewhere}"):
        command = [sys.executable, "-m", "installer", "status", *words]
        beside = preloaded.run(command, preloaded.WITHOUT_ROOT)

    assert "ok  /etc/docker/daemon.json" in beside.stdout


def test_a_mount_of_a_run_beside_that_has_gone_is_no_mistake_of_the_one_who_asks(site: Site) -> None:
    elsewhere = site.root.parent / "configs"
    gone = site.root.parent / "gone"
    (site.root / "etc/docker").rename(elsewhere)
    command = [sys.executable, "-m", "installer", "status", "--pid-file", str(site.root / PIDFILE)]
    with site.running("--mount", f"/etc/docker={elsewhere}"):
        elsewhere.rename(gone)
        beside = preloaded.run(command, preloaded.WITHOUT_ROOT)
        gone.rename(elsewhere)

    assert beside.returncode == 1, beside.stderr
    assert "use --mount" not in beside.stderr
    assert "/etc/docker/daemon.json" in beside.stdout


def test_while_an_install_is_at_work_status_says_to_wait(site: Site) -> None:
    layout = Options().layout
    with hold(lambda: Ledger.open(Host.under(PurePosixPath(site.root)), layout)) as ledger:
        ledger.make_directories(PurePosixPath("/run/made/first"))
        working = site.status()
        ready = site.status("--ready")
        ledger.write(replace(ledger.record, toolkit=ToolkitRow("55ae926f5985a427", None, "")))
    cut_short = site.status()

    for each in (working, ready):
        assert (each.returncode, each.stderr) == (1, "")
        assert "unfinished" in each.stdout
        assert "an install or an undo is at work: wait, or see its log" in each.stdout
    assert "the last install or undo failed or was cut short" in cut_short.stdout


def test_a_ledger_that_only_remembers_a_failed_plan_is_no_install_and_uninstall_removes_it(
    site: Site,
) -> None:
    before = site.tree()
    layout = Options().layout
    with hold(lambda: Ledger.open(Host.under(PurePosixPath(site.root)), layout)) as ledger:
        failed = Failure("5f", "restart containerd (the disk is on strike)")
        ledger.write(replace(ledger.record, failed=failed))

    told = site.status()
    document = json.loads(site.status("--json").stdout)

    assert (told.returncode, told.stdout.splitlines()[0]) == (3, "nothing is installed")
    assert "last plan: failed" in told.stdout, "the plan is not tried again: the owner learns of it"
    assert (document["installed"], document["ready"]) == (False, False)
    assert [each["what"] for each in document["held"]] == ["last plan"]
    assert site.status("--ready").returncode == 1
    site.uninstall()
    assert site.tree() == before
    assert (site.status().returncode, site.status().stdout) == (3, "nothing is installed\n")


def test_status_tells_when_each_file_was_changed_last(installed: Site) -> None:
    file = installed.root / DAEMON_JSON
    in_docker(lambda said: said.update({"debug": True}))(installed)
    os.utime(file, (0, 1795904000))

    told = installed.status().stdout
    document = json.loads(installed.status("--json").stdout)

    held = {each["what"]: each for each in document["held"]}
    moment = "2026-11-28T22:13:20Z"
    assert held["/etc/docker/daemon.json"]["changed"] == moment
    assert f"edited after the install, our keys in force; last changed {moment}\n" in told
    link = (installed.root / TOOLKIT).lstat().st_mtime
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(link))
    assert held[f"/{TOOLKIT}"]["changed"] == written
