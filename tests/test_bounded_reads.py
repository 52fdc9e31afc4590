"""A file that is far too large, whoever's it is, holds no verb up and takes no memory, by the real program."""

import json
import os
import resource
import signal
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from installer.errors import InstallerError
from installer.host.files import MOST_BYTES, Host
from tests.support import preloaded
from tests.support.cdi_site import OWN, CdiSite
from tests.support.site import PROJECT, Site, ended, sentence
from tests.support.waiting import until_it_sleeps

STRANGER = 65534
SPECIFICATION = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n"
KEYS = f'x: {{? &a "{"ẞ" * 500_000}" : 1}}\ndevices:\n' + "- {? *a : 1}\n" * 30_000
TABLES = f"x:\n  <<: [{'{}, ' * 100_000}]\n" + "".join(f"  k{number}:\n" for number in range(50_000))
METRICS = "var/lib/node-exporter/toolkit-installer.prom"
FEATURES = "etc/kubernetes/node-feature-discovery/features.d/toolkit-installer"
ASKED = ("--metrics-textfile", f"/{METRICS}", "--nfd-features", f"/{FEATURES}")


def limit() -> None:
    """Let what has no bound of its own end: a verb takes some hundred milliseconds, what multiplies minutes."""
    memory, cpu_s = 256 << 20, 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))


def bounded(site: Site, verb: str, *more: str) -> "subprocess.CompletedProcess[str]":
    command = site.command(verb, *more)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=PROJECT, preexec_fn=limit
    )


def hole(path: Path, size: int = 1 << 30, owner: int = 0) -> None:
    """Make a file that is large and takes no disk."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    if os.geteuid() == 0:
        os.chown(path, owner, owner)


@pytest.mark.skipif(os.geteuid() != 0, reason="a stranger's file is made by root")
@pytest.mark.parametrize("name", [METRICS, FEATURES])
def test_a_strangers_file_in_the_place_of_ours_is_not_read(site: Site, name: str) -> None:
    for each in (METRICS, FEATURES):
        (site.root / each).parent.mkdir(parents=True)
    site.install(*ASKED)
    hole(site.root / name, owner=STRANGER)

    done = [bounded(site, "install", *ASKED), bounded(site, "uninstall")]

    assert [each.returncode for each in done] == [0, 0], done
    assert (site.root / name).stat().st_size == 1 << 30


def test_a_config_without_end_is_refused_in_a_sentence(site: Site) -> None:
    hole(site.root / "etc/docker/daemon.json")

    done = bounded(site, "install")

    assert done.returncode == 1
    assert sentence(done) == (
        "cannot read /etc/docker/daemon.json (it has more than 16 MiB); make it smaller, or move it away"
    )


ETC = "etc/cdi/bomb.yaml"
BOMB = "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}' if level else 'x'] * 10)}]\n" for level in range(11)
)
TEXT = f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n{BOMB}? *a10\n: x\n"
REASON = "cannot read a CDI specification (it has an alias or a tag)"


@pytest.fixture
def node(tmp_path: Path) -> CdiSite:
    """Return a node with a directory for specifications of others."""
    node = CdiSite(tmp_path)
    (node.root / ETC).parent.mkdir(parents=True)
    return node


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param(KEYS, "an alias or a tag", id="a long key, by aliases"),
        pytest.param(TABLES, "tables that are merged", id="tables that are merged"),
        pytest.param(KEYS * 2, "more than 1 MiB", id="long"),
    ],
)
def test_a_specification_of_others_does_not_multiply(node: CdiSite, more: str, reason: str) -> None:
    (node.root / ETC).write_text(SPECIFICATION + more)

    with node.docker():
        done = bounded(node, "plan")

    assert done.returncode == 10, done.stderr
    assert f"read a CDI specification (it has {reason}" in done.stderr


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/file")
    hole(tmp_path / "file", MOST_BYTES)
    found = host.read(path)
    hole(tmp_path / "file", MOST_BYTES + 1)

    assert found is not None
    assert len(found.content) == MOST_BYTES
    with pytest.raises(InstallerError, match="it has more than 16 MiB"):
        host.read(path)


def test_install_and_doctor_pass_a_specification_over_and_say_so(node: CdiSite) -> None:
    (node.root / ETC).write_text(TEXT)
    with node.docker():
        done = bounded(node, "install")
    doctor = [*node.command("status")[:3], "doctor", "--json", "--host-root", str(node.root)]

    assert done.returncode == 0, done.stderr
    assert "specification not read" in done.stderr
    assert f"/{ETC}" in done.stderr
    assert REASON in done.stderr
    assert (node.root / OWN).exists()
    assert f"/{ETC}: {REASON}" in preloaded.run(doctor).stdout


def test_a_run_that_waits_says_once_for_each_change_that_it_passes_one_over_and_hears_a_stop(
    node: CdiSite,
) -> None:
    with node.docker(), node.running() as child:
        for text in (TEXT, TEXT, f"{TEXT}# edited\n", f"{TEXT}# edited\n"):
            until_it_sleeps(child.pid)
            if node.read(ETC) != text:
                node.write(ETC, text)
            child.send_signal(signal.SIGHUP)
        until_it_sleeps(child.pid)
        events = [json.loads(line)["event"] for line in ended(child).splitlines()]
    assert events.count("CDI specification not read") == 2, events
    assert not (node.root / OWN).exists()
