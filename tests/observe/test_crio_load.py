"""What a real CRI-O refused at a start, and what it took: the load check says the same of each."""

import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES, config_files
from installer.engines.crio.printed import read_changed
from installer.engines.dry_run import DryRuns
from installer.host.files import Host
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState, Started
from tests.support.files import put

RECORDED = json.loads((Path(__file__).parents[1] / "engines/crio/starts.json").read_text())["cases"]
CRIO = replace(EngineState.usual(ENGINES["crio"]), version=(1, 37, 0))
DROP_IN = "/etc/crio/crio.conf.d/30-x.conf"
PACKAGED = """\
[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
monitor_path = "/usr/libexec/crio/conmon"

[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
monitor_path = "/usr/libexec/crio/conmon"
"""
PROGRAMS = (
    *("usr/libexec/crio/crun", "usr/libexec/crio/runc", "usr/libexec/crio/conmon"),
    *("usr/bin/pinns", "usr/bin/crio", "usr/bin/true"),
)
# What the load check does not know of, and why.
UNSEEN = {
    "default annotation bogus": "the annotations that a release knows",
    "env RUNTIMES two": "CRI-O itself refuses it when it is asked",
    "flag bogus": "CRI-O itself refuses it when it is asked",
    "seccomp under file": "a path below a file counts as absent",
    "conmon true": "it starts, and does not answer as conmon",
    "default type pod no conmonrs": "it starts, and does not answer as conmon-rs",
    "hostport": "whether the kernel has iptables or nftables",
    "storage_driver btrfs": "what this CRI-O was built with",
    "storage_option": "the options of each storage driver",
    "storage_option3": "the options of each storage driver",
    "stream_port used": "who listens on a port at that moment",
    "stream_address": "the addresses of the node",
    "stream tls none": "certificates",
    "stream tls bad": "certificates",
    "metrics port used": "who listens on a port at that moment",
    "metrics socket": "the server of metrics",
    "metrics cert": "the server of metrics",
    "metrics host": "the server of metrics",
}
# CRI-O takes a runtime below a file, for the error is not "no such file"; no container starts with it.
BEYOND = {"default path under file"}


def find_broken(root: Path, case: dict[str, Any]) -> str:
    """Return why CRI-O would not start on a node that has what was recorded."""
    put(root, dict.fromkeys(PROGRAMS, "#!/bin/sh\n"), 0o755)
    put(root, {"etc/passwd": "root:*:0:0::/root:/bin/sh\n", "etc/services": "http 80/tcp\n"})
    put(root, {"etc/crio/crio.conf.d/10-crio.conf": PACKAGED})
    words: tuple[str, ...] = ()
    environment = {}
    if case["kind"] == "unit":
        name, _, value = case["text"].removeprefix("Environment=").strip('"').partition("=")
        if name == "CRIO_RUNTIME_OPTIONS":
            words = tuple(value.split())
        else:
            environment[name] = value
    else:
        put(root, {DROP_IN if case["kind"] == "drop-in" else case["kind"]: case["text"]})
    host = Host.under(PurePosixPath(root))
    engine = replace(CRIO, next_start=Started(words, environment, "/usr/bin/crio"))
    engine = config_files.with_configs(host, engine)
    contents = config_files.contents_of(host, engine.files)
    # The program is not asked: that it says no itself is another test's subject.
    return DryRuns(host, contents)(replace(engine, exe=PurePosixPath("/usr/bin/none")), {}).broken


def test_crio_is_asked_with_all_its_drop_ins_where_ours_is_in_a_subdirectory(tmp_path: Path) -> None:
    script = '#!/bin/sh\nwhile [ "$1" != --config-dir ]; do shift; done\ncd "$2" && find . -type f | sort >&2\nexit 1\n'
    put(tmp_path, {"bin/crio": script}, 0o755)
    put(tmp_path, {"d/10-crio.conf": PACKAGED, "d/zzz.d/nv.toml": "[crio]\n"})
    directory = PurePosixPath(tmp_path, "d")
    start = Started(("--config-dir", str(directory)), {}, "/usr/bin/crio")
    engine = replace(
        CRIO, exe=PurePosixPath(tmp_path, "bin/crio"), started=start, drop_in=directory / "zzz.d/nv.toml"
    )
    host = Host.under(PurePosixPath("/"))
    engine = config_files.with_configs(host, engine)

    broken = DryRuns(host, config_files.contents_of(host, engine.files))(engine, {}).broken

    assert [path.relative_to(directory) for path in map(PurePosixPath, engine.files[1:])] == [
        PurePosixPath("10-crio.conf"),
        PurePosixPath("zzz.d/nv.toml"),
    ]
    assert broken.endswith("./zzz.d/nv.toml")


@pytest.mark.parametrize("name", [name for name in RECORDED if RECORDED[name]["crio config"] == 0])
def test_the_load_check_refuses_what_a_real_crio_did_not_start_with(tmp_path: Path, name: str) -> None:
    case = RECORDED[name]

    broken = find_broken(tmp_path, case)

    expected = not case["starts"] and name not in UNSEEN
    assert bool(broken) == (expected or name in BEYOND), (broken, case["fatal"])


PROFILES = "nvidia-gpu (enforce)\ncri-containerd.apparmor.d (enforce)\n"
WITH_APPARMOR = {
    "sys/module/apparmor/parameters/enabled": "Y\n",
    "sys/kernel/security/apparmor/profiles": PROFILES,
    "sbin/apparmor_parser": "",
}
WITH_RESCTRL = {"sys/fs/resctrl/info/L3/num_closids": "16\n"}


@pytest.mark.parametrize(
    ("files", "setting", "reason"),
    [
        pytest.param(WITH_APPARMOR, 'apparmor_profile = "gpu"', "gpu is not loaded", id="not loaded"),
        pytest.param(
            WITH_APPARMOR, 'apparmor_profile = "nvidia"', "nvidia is not loaded", id="a part of a name"
        ),
        pytest.param(WITH_APPARMOR, 'apparmor_profile = "nvidia-gpu"', "", id="loaded"),
        pytest.param(WITH_APPARMOR, 'apparmor_profile = "unconfined"', "", id="unconfined"),
        pytest.param(WITH_APPARMOR, 'apparmor_profile = "crio-default"', "", id="crio's own"),
        pytest.param(
            {**WITH_APPARMOR, "sys/module/apparmor/parameters/enabled": "N\n"},
            'apparmor_profile = "gpu"',
            "",
            id="switched off",
        ),
        pytest.param(
            {"sys/module/apparmor/parameters/enabled": "Y\n", "sys/kernel/security/apparmor/profiles": ""},
            'apparmor_profile = "gpu"',
            "",
            id="no parser",
        ),
        pytest.param(WITH_RESCTRL, 'rdt_config_file = "/etc/none"', "/etc/none cannot be read", id="no file"),
        pytest.param(
            {**WITH_RESCTRL, "etc/rdt": "partitions:\n- foo\n"},
            'rdt_config_file = "/etc/rdt"',
            "has partitions that is no mapping",
            id="a list of partitions",
        ),
        pytest.param(
            {**WITH_RESCTRL, "etc/rdt": "a: [\n"},
            'rdt_config_file = "/etc/rdt"',
            "not valid YAML",
            id="no YAML",
        ),
        pytest.param(
            {**WITH_RESCTRL, "etc/rdt": "partitions: {}\n"},
            'rdt_config_file = "/etc/rdt"',
            "",
            id="partitions",
        ),
        pytest.param({**WITH_RESCTRL, "etc/rdt": ""}, 'rdt_config_file = "/etc/rdt"', "", id="an empty file"),
        pytest.param({}, 'rdt_config_file = "/etc/none"', "", id="no resctrl"),
        pytest.param(
            {"etc/io": "Classes: 1\n"},
            'blockio_config_file = "/etc/io"',
            "has Classes that is no",
            id="blockio",
        ),
    ],
)
def test_the_load_check_knows_profiles_and_classes_of_the_kernel(
    tmp_path: Path, files: dict[str, str], setting: str, reason: str
) -> None:
    put(tmp_path, files)

    broken = find_broken(tmp_path, {"kind": "drop-in", "text": f"[crio.runtime]\n{setting}\n"})

    assert bool(broken) == bool(reason), broken
    assert reason in broken


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("cgroup_manager", f"(in {DROP_IN})", id="a file"),
        pytest.param("env CONMON", "(its unit sets CONTAINER_CONMON)", id="a variable"),
        pytest.param("flag cgroup", "(its unit sets --cgroup-manager)", id="a flag"),
        pytest.param("env RUNTIMES", "(its unit sets CONTAINER_RUNTIMES)", id="a runtime of a variable"),
        pytest.param(
            "registries.d bad", "/etc/containers/registries.conf.d/x.conf is not", id="another file"
        ),
    ],
)
def test_the_load_check_names_where_the_mistake_is(tmp_path: Path, name: str, reason: str) -> None:
    assert reason in find_broken(tmp_path, RECORDED[name])


@pytest.mark.parametrize(("text", "refused"), [("", True), ("[crio.runtime]\ncdi_spec_dirs = []\n", False)])
def test_a_fifo_among_the_specifications_of_cdi_is_told(tmp_path: Path, text: str, *, refused: bool) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    os.mkfifo(tmp_path / "etc/cdi/x.json")

    broken = find_broken(tmp_path, {"kind": "drop-in", "text": text})

    assert ("/etc/cdi/x.json is a FIFO" in broken) == refused


def test_what_is_printed_as_a_comment_is_a_default() -> None:
    printed = '[crio.runtime]\n# conmon = ""\n\ncgroup_manager = "cgroupfs"\n'

    assert read_changed(printed) == {"crio": {"runtime": {"cgroup_manager": "cgroupfs"}}}


# As `crio config` of 1.37.0 prints what no file sets.
PRINTED = """\
# cgroup_manager = "systemd"
# default_runtime = "crun"
# [crio.runtime.runtimes.runtime-handler]
# [crio.runtime.runtimes.crun]
"""


@pytest.mark.parametrize(
    ("printed", "default", "driver"),
    [
        pytest.param(PRINTED, "crun", "systemd", id="defaults"),
        pytest.param(
            'cgroup_manager = "cgroupfs"\ndefault_runtime = "runc"\n[crio.runtime.runtimes.crun]\n',
            *("runc", "cgroupfs"),
            id="settings",
        ),
    ],
)
def test_default_driver_and_built_in_runtime_of_the_next_start_are_those_that_crio_prints(
    printed: str, default: str, driver: str
) -> None:
    running = replace(CRIO, serving=EffectiveConfig({}, "crun"))
    says = running.kind.describe_dry_run(running, {}).read_output
    assert says is not None

    found = says(printed)

    assert (found.default, found.cgroup_driver, {*found.handlers}) == (default, driver, {"crun"})


def test_an_oci_hook_among_the_texts_has_no_settings() -> None:
    texts = {
        PurePosixPath("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"): '{"version": "1.0.0"}\n'
    }
    understand = CRIO.kind.describe_dry_run(CRIO, texts).read_output
    assert understand is not None

    assert understand(PRINTED).default == "crun"
