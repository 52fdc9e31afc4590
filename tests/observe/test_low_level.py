"""What our runtimes wrap: the engine's own default first, and never themselves or a machine."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.low_level import find_low_level_runtime, find_substitute_runtime
from installer.host.files import Host
from installer.model.effective import is_oci, is_ours
from installer.model.facts import CdiRow, Record, ToolkitRow
from installer.model.files import Layout
from tests.observe.texts import CRI2, NVIDIA, decided
from tests.support.files import put

KATA = "io.containerd.kata.v2"


def docker(default: str, **paths: str) -> str:
    runtimes = ", ".join(f'"{name}": {{"path": "{path}"}}' for name, path in paths.items())
    return f'{{"default-runtime": "{default}", "runtimes": {{{runtimes}}}}}'


def containerd(default: str, kind: str = "io.containerd.runc.v2", **paths: str) -> str:
    tables = "".join(
        f'[{CRI2}.runtimes.{name}]\nruntime_type = "{kind}"\noptions.BinaryName = "{path}"\n'
        for name, path in paths.items()
    )
    return f'version = 2\n[{CRI2}]\ndefault_runtime_name = "{default}"\n{tables}'


def crio(default: str, kind: str = "oci", **paths: str) -> str:
    tables = "".join(
        f'[crio.runtime.runtimes.{name}]\nruntime_path = "{path}"\nruntime_type = "{kind}"\n'
        for name, path in paths.items()
    )
    return f'[crio.runtime]\ndefault_runtime = "{default}"\n{tables}'


@pytest.mark.parametrize("write", [docker, containerd, crio])
@pytest.mark.parametrize(
    ("default", "paths", "first"),
    [
        ("own", {"crun": "/b/crun", "own": "/b/youki"}, ["/b/youki", "/b/crun"]),
        ("own", {"own": "youki", "crun": "/b/crun"}, ["/b/crun", "youki"]),  # a path ahead of a word
        ("gpu", {"gpu": NVIDIA, "crun": "/b/crun"}, ["/b/crun"]),  # ours by another name
        ("gpu", {"gpu": "/opt/old/nvidia-container-runtime.cdi.real"}, []),
        ("kata-qemu", {"kata-qemu": "/opt/kata/bin/qemu"}, []),  # a machine by its name
        ("crun", {"crun": "/usr/bin/krun"}, []),  # crun with a machine
    ],
)
def test_the_runtimes_to_wrap_are(
    write: Callable[..., str], default: str, paths: dict[str, str], first: list[str]
) -> None:
    assert decided(write.__name__, write(default, **paths)).low_level == (*first, "runc", "crun")


def test_a_machine_is_known_by_its_type_whatever_it_is_called() -> None:
    entry = f'{{"default-runtime": "x", "runtimes": {{"x": {{"runtimeType": "{KATA}"}}}}}}'
    texts = [containerd("x", KATA, x="/b/y"), crio("x", "vm", x="/b/y"), entry, docker(KATA)]

    found = [
        decided(engine, text).low_level
        for engine, text in zip(("containerd", "crio", "docker", "docker"), texts, strict=True)
    ]
    assert found == [("runc", "crun")] * 4


def test_crio_without_a_default_wraps_its_built_in_one_which_is_crun_since_1_31() -> None:
    assert [decided("crio", "", version=each).low_level[0] for each in ("1.30.4", "")] == ["runc", "crun"]


def test_a_runtime_of_ours_is_known_by_its_binary_and_nothing_else_is_ours() -> None:
    ours = [
        f"nvidia-container-runtime{mode}{real}" for mode in ("", ".cdi", ".legacy") for real in ("", ".real")
    ]
    others = ["runc", "/usr/bin/crun", "/usr/bin/nvidia-container-cli", "", None, 3]

    assert all(is_ours(f"/anywhere/{name}") for name in ours)
    assert not any(map(is_ours, others))
    assert all(is_oci(name, f"/usr/bin/{name}") for name in ("youki", "catatonit", ""))


@pytest.mark.parametrize(("version", "new"), [(None, True), ((1, 7, 29), False), ((2, 0), True)])
def test_which_engines_cannot_use_a_container_whose_runtime_is_gone(
    version: tuple[int, ...] | None, *, new: bool
) -> None:
    need = {name for name, kind in ENGINES.items() if kind.needs_handler(version)}

    assert need == (ENGINES.keys() - {"docker"} if new else {"crio", "k3s", "rke2"})


# What our runtimes hand over to on a node, by what the ledger says of config.toml.

LAYOUT = Layout()
NAMES = '[nvidia-container-runtime]\nruntimes = ["crun", "/opt/runc"]\n'
HELD = Record(toolkit=ToolkitRow("1", None, NAMES))


@pytest.mark.parametrize(
    ("files", "config", "held", "found"),
    [
        pytest.param(["/usr/bin/crun", "/opt/runc"], None, HELD, "/usr/bin/crun", id="by a word"),
        pytest.param(["/usr/bin/runc"], "", HELD, "/usr/bin/runc", id="where it names none, the usual"),
        pytest.param(["/opt/runc"], "= no TOML", HELD, "/opt/runc", id="as it was written, of no TOML"),
        pytest.param(["/opt/runc"], None, replace(HELD, cdi=CdiRow(())), None, id="of CDI alone"),
        pytest.param(["/opt/runc"], None, Record(), None, id="without a toolkit"),
    ],
)
def test_what_our_runtimes_hand_over_to(
    tmp_path: Path, files: list[str], config: str | None, held: Record, found: str | None
) -> None:
    host = put(tmp_path, dict.fromkeys(files, "x"), 0o755)
    if config is not None:
        put(tmp_path, {LAYOUT.config: config})

    assert find_low_level_runtime(host, LAYOUT, held) == (PurePosixPath(found) if found else None)


def test_a_low_level_runtime_is_the_one_that_was_told_then_a_usual_one(tmp_path: Path) -> None:
    usual = PurePosixPath("/usr/sbin/runc")
    host = Host.under(PurePosixPath(tmp_path))
    assert find_substitute_runtime(host, HELD) is None
    put(tmp_path, {usual: "x"}, 0o755)
    assert find_substitute_runtime(host, HELD) == usual
    put(tmp_path, {"/opt/runc": "x"}, 0o755)
    assert find_substitute_runtime(host, HELD) == PurePosixPath("/opt/runc")
    assert find_substitute_runtime(host, Record()) == usual
