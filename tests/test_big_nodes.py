"""Big nodes cost what they weigh, not the square of it; a file that is far too large holds no verb up."""

import json
import os
import resource
import subprocess
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.config_text import Syntax, WantedKey
from installer.config_text.change import apply, undo
from installer.engines.container_records import list_shim_containers
from installer.host.files import Host
from tests.support import preloaded
from tests.support.big import OURS, config, shims
from tests.support.cdi_site import OWN, CdiSite
from tests.support.site import CONTAINERD, PROJECT, Site, sentence

NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
RUNTIMES = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes")
WANTS = [WantedKey((*RUNTIMES, name, "options", "BinaryName"), str(OURS)) for name in NAMES]
MEMORY_KIB = 256 << 10  # of address space
CPU_S = 20  # of some hundred milliseconds; what multiplies takes minutes


def bounded(
    command: list[str], kib: int = MEMORY_KIB, files: tuple[int, int] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command that may have no more memory, open files (now, at most) and processor time than that."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (kib << 10, kib << 10))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, files)

    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=PROJECT,
        env=os.environ | {"TOOLKIT_INSTALLER_LOG_FORMAT": "json"},
        preexec_fn=limit,
    )


LONG = "x" * 20
DOTTED = [f"k{number}.{'.'.join(f'p{part}' for part in range(14))}" for number in range(190)]


@pytest.mark.parametrize(
    ("text", "wants", "syntax"),
    [
        pytest.param(config(1_000_000), WANTS, Syntax.TOML, id="a megabyte of TOML"),
        pytest.param(f"x = [{'1,' * 20_000}]\n", WANTS, Syntax.TOML, id="one array"),
        pytest.param(
            json.dumps(
                {"labels": {f"label-{number}": [LONG, {"a": 1}] for number in range(20_000)}}, indent=2
            ),
            [WantedKey(("runtimes", name, "path"), str(OURS)) for name in NAMES],
            Syntax.JSON,
            id="a megabyte of JSON",
        ),
        pytest.param(
            config(200) + "".join(f"  {key} = 1\n" for key in DOTTED),
            [WantedKey((*RUNTIMES, "nvidia", *key.split(".")), 1) for key in DOTTED],
            Syntax.TOML,
            id="many dotted options of the default runtime",
        ),
    ],
)
def test_a_big_config_is_edited_and_undone_in_seconds(
    text: str, wants: list[WantedKey], syntax: Syntax
) -> None:
    began = time.process_time()

    new, edits = apply(text, wants, syntax, name="config")
    back, left = undo(new, edits, syntax, name="config")

    assert (back, left) == (text, ())
    assert time.process_time() - began < 20, "an install and an undo"


def test_ten_thousand_shims_are_looked_at_in_seconds(tmp_path: Path) -> None:
    shims(tmp_path, 10_000)
    host = Host.under(PurePosixPath(tmp_path))
    began = resource.getrusage(resource.RUSAGE_SELF)

    found = list(
        list_shim_containers(host, {PurePosixPath("/run/containerd"): "containerd"}, frozenset({OURS}))
    )

    ended = resource.getrusage(resource.RUSAGE_SELF)
    assert [container.id for container in found] == [f"{9_999:064x}"]
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 5


def test_what_a_shim_left_may_be_nested_without_an_end(tmp_path: Path) -> None:
    shims(tmp_path, 1)
    (options,) = tmp_path.rglob("options.json")
    options.write_text('{"a":' * 100_000)
    states = {PurePosixPath("/run/containerd"): "containerd"}

    assert list(list_shim_containers(Host.under(PurePosixPath(tmp_path)), states, frozenset({OURS}))) == []


@pytest.mark.parametrize(("verb", "code"), [("install", 1), ("uninstall", 4)])
def test_a_key_of_twenty_thousand_parts_is_refused_in_a_sentence(
    installed: Site, verb: str, code: int
) -> None:
    installed.write(CONTAINERD, installed.read(CONTAINERD) + "a." * 20_000 + "b = 1\n")

    done = bounded(installed.command(verb), kib=1024 << 10)

    assert done.returncode == code
    assert sentence(done).startswith("cannot read /etc/containerd/config.toml as TOML (nested too deeply)")


@pytest.mark.parametrize(
    "little", [{"kib": 100 << 10}, {"files": (8, 1024)}], ids=["no room for threads", "few open files"]
)
def test_install_and_uninstall_work_with_little_memory_and_few_open_files(
    clean: Site, little: dict[str, Any]
) -> None:
    done = [bounded(clean.command(verb), **little) for verb in ("install", "uninstall")]

    assert [each.returncode for each in done] == [0, 0], done


SPECIFICATION = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n"
KEYS = f'x: {{? &a "{"ẞ" * 500_000}" : 1}}\ndevices:\n' + "- {? *a : 1}\n" * 30_000
TABLES = f"x:\n  <<: [{'{}, ' * 100_000}]\n" + "".join(f"  k{number}:\n" for number in range(50_000))


def test_a_config_without_end_is_refused_in_a_sentence(site: Site) -> None:
    with (site.root / "etc/docker/daemon.json").open("wb") as file:
        file.truncate(1 << 30)  # a hole, which takes no disk

    done = bounded(site.command("install"))

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
        done = bounded(node.command("plan"))

    assert done.returncode == 10, done.stderr
    assert f"read a CDI specification (it has {reason}" in done.stderr


def test_install_and_doctor_pass_a_specification_over_and_say_so(node: CdiSite) -> None:
    (node.root / ETC).write_text(TEXT)
    with node.docker():
        done = bounded(node.command("install"))
    doctor = [*node.command("status")[:3], "doctor", "--json", "--host-root", str(node.root)]

    assert done.returncode == 0, done.stderr
    assert "specification not read" in done.stderr
    assert f"/{ETC}" in done.stderr
    assert REASON in done.stderr
    assert (node.root / OWN).exists()
    assert f"/{ETC}: {REASON}" in preloaded.run(doctor).stdout
