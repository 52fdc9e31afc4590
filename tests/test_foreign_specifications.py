"""A CDI specification of somebody else that is out of bounds holds no verb up, by the real program."""

import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.bounded import bounded
from tests.support.cdi_site import OWN, CdiSite
from tests.support.site import PROJECT
from tests.support.waiting import until_it_sleeps

ETC = "etc/cdi/bomb.yaml"
BOMB = "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}' if level else 'x'] * 10)}]\n" for level in range(11)
)
TEXT = f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n{BOMB}? *a10\n: x\n"
REASON = "cannot read a CDI specification (it has an alias or a tag)"


@pytest.fixture
def site(tmp_path: Path) -> CdiSite:
    site = CdiSite(tmp_path)
    (site.root / ETC).parent.mkdir(parents=True)
    return site


def test_plan_and_install_pass_it_over_and_say_so(site: CdiSite) -> None:
    (site.root / ETC).write_text(TEXT)
    with site.docker():
        plan, done = bounded(site, "plan"), bounded(site, "install")

    assert (plan.returncode, done.returncode) == (10, 0), (plan.stderr, done.stderr)
    for said in (plan.stderr, done.stderr):
        assert "specification not read" in said
        assert f"/{ETC}" in said
        assert REASON in said
    assert (site.root / OWN).exists()


def test_doctor_names_it(site: CdiSite) -> None:
    (site.root / ETC).write_text(TEXT)

    done = subprocess.run(
        [*site.command("status")[:3], "doctor", "--json", "--host-root", str(site.root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PROJECT,
    )

    assert f"/{ETC}: {REASON}" in done.stdout


def test_a_run_that_waits_says_so_and_hears_a_stop(site: CdiSite) -> None:
    with site.docker(), site.running() as child:
        until_it_sleeps(child.pid)
        assert child.stderr is not None
        patience = threading.Timer(60, child.kill)
        patience.start()
        (site.root / ETC).write_text(TEXT)
        assert any("specification not read" in line for line in child.stderr)
        patience.cancel()
        until_it_sleeps(child.pid)
        child.terminate()
        assert child.wait(60) == 0
    assert not (site.root / OWN).exists()


def test_a_run_that_waits_says_so_once_for_each_change(site: CdiSite) -> None:
    (site.root / ETC).write_text(TEXT)
    with site.docker(), site.running() as child:  # which has read what its install has said
        for text in (TEXT, TEXT, f"{TEXT}# edited\n", f"{TEXT}# edited\n"):
            until_it_sleeps(child.pid)
            if (site.root / ETC).read_text() != text:
                (site.root / ETC).write_text(text)
            child.send_signal(signal.SIGHUP)
        until_it_sleeps(child.pid)
        child.terminate()
        assert child.stderr is not None
        events = [json.loads(line)["event"] for line in child.stderr]
    assert events.count("specification not read") == 1, events
