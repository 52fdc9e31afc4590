"""Big nodes: a config of a megabyte and ten thousand containers cost what they weigh, not the square of it."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.edits import Syntax, Want, apply, undo
from installer.host.containers import TASKS, of_shims
from installer.host.files import Host
from tests.test_verbs import PROJECT, Site

OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
RUNTIMES = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes")
WANTS = [
    Want((*RUNTIMES, name, *key), value)
    for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")
    for key, value in (
        (("runtime_type",), "io.containerd.runc.v2"),
        (("options", "BinaryName"), str(OURS)),
        (("options", "SystemdCgroup"), True),
    )
]


def config(size_bytes: int) -> str:
    """Return a config.toml of that size: the mirrors of many registries, as a large platform's has them."""
    head = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
    mirror = (
        '\n[plugins."io.containerd.grpc.v1.cri".registry.mirrors."registry-{0}.example.com"]\n'
        '  # the one of building {0}\n  endpoint = ["https://mirror-{0}.example.com", "https://other-{0}.example.com"]\n'
    )
    return head + "".join(mirror.format(number) for number in range(size_bytes // 210))


def shims(root: Path, count: int) -> None:
    """Make the bundles of ``count`` containers, the last of which runs on ours."""
    for number in range(count):
        bundle = root / "run/containerd" / TASKS / "k8s.io" / f"{number:064x}"
        bundle.mkdir(parents=True)
        binary = str(OURS) if number == count - 1 else "/usr/bin/runc"
        (bundle / "options.json").write_text(json.dumps({"binary_name": binary, "systemd_cgroup": True}))


def test_a_config_of_a_megabyte_is_edited_and_undone_within_a_second() -> None:
    text = config(1_000_000)
    began = time.process_time()

    new, edits = apply(text, WANTS, Syntax.TOML, name="config")
    back, left = undo(new, edits, Syntax.TOML, name="config")

    assert (back, left) == (text, ())
    assert time.process_time() - began < 2.0, "an install and an undo"


def test_a_json_of_a_megabyte_is_edited_within_a_second() -> None:
    text = json.dumps(
        {"labels": {f"label-{number}": ["x" * 20, {"a": 1}] for number in range(20_000)}}, indent=2
    )
    wants = [
        Want(("runtimes", name, "path"), str(OURS)) for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")
    ]
    began = time.process_time()

    new, edits = apply(text, wants, Syntax.JSON, name="config")
    back, left = undo(new, edits, Syntax.JSON, name="config")

    assert (back, left) == (text, ())
    assert time.process_time() - began < 2.0, "an install and an undo"


def test_a_config_of_a_megabyte_is_installed_within_64_mebibytes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (site.root / "etc/containerd/config.toml").write_text(config(1_000_000))
    code = (
        "import sys; from pathlib import Path; from installer.cli import main; main(sys.argv[1:])\n"
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    where = ["--host-root", str(site.root), "--toolkit-source", str(site.source), "--runtime", "containerd"]
    command = [sys.executable, "-c", code, "install", *where, "--restart-mode", "none"]

    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)

    assert "nvidia" in (site.root / "etc/containerd/config.toml").read_text()
    assert int(done.stdout.split()[-1]) < 64 * 1024


def test_ten_thousand_shims_are_looked_at_in_half_a_second(tmp_path: Path) -> None:
    shims(tmp_path, 10_000)
    host = Host.under(PurePosixPath(tmp_path))
    began = resource.getrusage(resource.RUSAGE_SELF)

    found = list(of_shims(host, {PurePosixPath("/run/containerd"): "containerd"}, frozenset({OURS})))

    ended = resource.getrusage(resource.RUSAGE_SELF)
    assert [container.id for container in found] == [f"{9_999:064x}"]
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 0.5


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "{}", "[]", "\udcff"], ids=["deep", "empty", "a list", "bytes"]
)
def test_what_a_shim_left_may_be_anything(tmp_path: Path, content: str) -> None:
    shims(tmp_path, 1)
    (options,) = tmp_path.rglob("options.json")
    options.write_text(content, errors="surrogateescape")

    found = list(
        of_shims(
            Host.under(PurePosixPath(tmp_path)), {PurePosixPath("/run/containerd"): "x"}, frozenset({OURS})
        )
    )

    assert found == []
