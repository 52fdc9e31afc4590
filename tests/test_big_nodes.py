"""Big nodes: a config of a megabyte and ten thousand containers cost what they weigh, not the square of it."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from installer.config_text import Syntax, Want
from installer.config_text.change import apply, parse, undo
from installer.config_text.toml import DEEP
from installer.engines.containers import list_shim_containers
from installer.host.files import Host
from tests.support.big import OURS, config, shims
from tests.support.site import CONTAINERD, PROJECT, Site, sentence

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


LONG = "x" * 20
DOTTED = [f"k{number}.{'.'.join(f'p{part}' for part in range(14))}" for number in range(190)]


@pytest.mark.parametrize(
    ("text", "wants", "syntax"),
    [
        pytest.param(config(1_000_000), WANTS, Syntax.TOML, id="a megabyte of TOML"),
        pytest.param(
            json.dumps(
                {"labels": {f"label-{number}": [LONG, {"a": 1}] for number in range(20_000)}}, indent=2
            ),
            [
                Want(("runtimes", name, "path"), str(OURS))
                for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")
            ],
            Syntax.JSON,
            id="a megabyte of JSON",
        ),
        pytest.param(
            config(200) + "".join(f"  {key} = 1\n" for key in DOTTED),
            [Want((*RUNTIMES, "nvidia", *key.split(".")), 1) for key in DOTTED],
            Syntax.TOML,
            id="many dotted options of the default runtime",
        ),
    ],
)
def test_a_big_config_is_edited_and_undone_in_seconds(text: str, wants: list[Want], syntax: Syntax) -> None:
    began = time.process_time()

    new, edits = apply(text, wants, syntax, name="config")
    back, left = undo(new, edits, syntax, name="config")

    assert (back, left) == (text, ())
    assert time.process_time() - began < 20, "an install and an undo"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("".join(f"k{number}=1\n" for number in range(4_000)), id="keys before any table"),
        pytest.param(f"x = [{'1,' * 20_000}]\n", id="one array"),
        pytest.param(f"x = {{ {', '.join(f'k{number}=1' for number in range(4_000))} }}\n", id="inline"),
    ],
)
def test_what_is_not_on_the_way_to_our_keys_is_not_taken_apart(text: str) -> None:
    def install_and_undo() -> None:
        new, edits = apply(text, WANTS, Syntax.TOML, name="config")
        assert undo(new, edits, Syntax.TOML, name="config") == (text, ())

    parsing = calls(lambda: parse(text, Syntax.TOML, name="config"))

    # Each text, before and after, is parsed once more.
    assert calls(install_and_undo) < 6 * parsing


def calls(act: Callable[[], object]) -> int:
    """Count the calls of functions in an act: on a machine that is busy, seconds tell nothing."""
    count = 0

    def see(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(see)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_a_config_of_a_megabyte_is_installed_within_64_mebibytes(site: Site) -> None:
    site.write(CONTAINERD, config(1_000_000))
    code = (
        "import sys; from pathlib import Path; from installer.cli.app import main; main(sys.argv[1:])\n"
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    where = ["--host-root", str(site.root), "--toolkit-source", str(site.source), "--runtime", "containerd"]
    command = [sys.executable, "-c", code, "install", *where, "--restart-mode", "none"]

    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)

    assert "nvidia" in site.read(CONTAINERD)
    assert int(done.stdout.split()[-1]) < 64 * 1024


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

    done = _within(1024, installed.command(verb))

    assert done.returncode == code
    assert sentence(done).startswith("cannot read /etc/containerd/config.toml as TOML (nested too deeply)")


def _within(mebibytes: int, command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command that may have no more address space than that."""
    limit = mebibytes << 20
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=PROJECT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        pytest.param("[" + " . ".join(['"a.b"'] * 33) + "]", True, id="a header of quoted parts"),
        pytest.param("x = {" + ".".join(["'a'"] * 33) + " = 1}", True, id="in an inline table"),
        pytest.param(".".join(["a"] * 30) + " = 1", False, id="thirty parts"),
        pytest.param('x = ["' + "registry.example.com/" * 40 + '"]', False, id="a long string"),
    ],
)
def test_a_key_is_deep_by_its_parts(text: str, *, deep: bool) -> None:
    assert bool(DEEP.search(text)) is deep


def test_an_address_space_without_room_for_threads_is_enough(site: Site) -> None:
    before = site.tree()

    installed = _within(100, site.command("install", "--restart-mode", "none"))
    undone = _within(100, site.command("uninstall", "--restart-mode", "none"))

    assert (installed.returncode, undone.returncode) == (0, 0), installed.stderr + undone.stderr
    assert site.tree() == before
