"""CRI-O: whole entries in one drop-in, and what the other files say about them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from installer.config_text import Value
from installer.engines.crio.config import read_effective
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig
from tests.observe.texts import NVIDIA, at, decided, result

ROOT = "/etc/crio/crio.conf"
CONF_D = "/etc/crio/crio.conf.d"
NAMED = "[crio.runtime.runtimes.nvidia]\n"
OVERRULED = f'{NAMED}runtime_path = "{NVIDIA}"\ninherit_default_runtime = true\n'


def recorded_config(name: str = "config.toml") -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parents[1] / "engines/crio" / name).read_text())


def nvidia_of(serving: EffectiveConfig) -> Value:
    return at(result(decided("crio", {}, serving=serving)), "crio", "runtime", "runtimes", "nvidia")


def test_what_a_reload_has_crio_forget_is_no_difference() -> None:
    started, reloaded = recorded_config(), recorded_config("config-reloaded.toml")
    now, then = read_effective(started), read_effective(reloaded)

    assert started["crio"]["runtime"]["runtimes"] != reloaded["crio"]["runtime"]["runtimes"]
    assert (nvidia_of(now), now.handlers) == (nvidia_of(then), then.handlers)


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [("log_level", "warn", False), ("y", "", True), ("pids_limit", 0, False), ("x", 0, False)],
    ids=["another value", "what says nothing", "none", "a number more"],
)
def test_settings_besides_the_runtimes_are_compared(key: str, value: Value, *, same: bool) -> None:
    started, changed = recorded_config(), recorded_config()
    changed["crio"]["runtime"][key] = value

    assert (read_effective(started).rest_digest == read_effective(changed).rest_digest) is same


@pytest.mark.parametrize(
    ("key", "value", "said", "inherited"),
    [
        pytest.param("monitor_cgroup", "pod", {}, True, id="a cgroup of the runtime's own"),
        pytest.param("monitor_path", "/opt/conmon", {"conmon": "/opt/conmon"}, False, id="conmon"),
        pytest.param("monitor_path", "/usr/bin/conmon", {}, False, id="found in the PATH"),
        pytest.param("monitor_env", ["A=1"], {"conmon_env": []}, True, id="variables of the runtime's own"),
    ],
)
def test_what_crio_fills_in_for_each_runtime_is_not_inherited(
    key: str, value: Value, said: dict[str, Value], *, inherited: bool
) -> None:
    recorded = recorded_config("config-reloaded.toml")
    recorded["crio"]["runtime"] |= said
    recorded["crio"]["runtime"]["runtimes"]["crun"][key] = value

    entry = nvidia_of(read_effective(recorded))

    assert isinstance(entry, dict)
    assert (entry.get(key) == value) is inherited


def test_a_new_entry_inherits_what_the_running_crio_reports() -> None:
    """The operator names a file that CRI-O does not read, so that the files alone tell nothing."""
    recorded = recorded_config()
    runtime = recorded["crio"]["runtime"]
    runtime["default_runtime"] = "runc"
    runtime["runtimes"]["runc"]["privileged_without_host_devices"] = True

    proposal = decided("crio", {}, serving=read_effective(recorded))

    assert at(result(proposal), "crio", "runtime", "runtimes", "nvidia") == {
        "runtime_path": NVIDIA,
        "runtime_type": "oci",
        "runtime_root": "/run/runc",
        "privileged_without_host_devices": True,
        "monitor_path": "/usr/libexec/crio/conmon",
        "container_min_memory": "12MiB",
        "container_create_timeout": 240,
    }
    assert proposal.low_level[0] == "/usr/libexec/crio/runc"


def test_what_ours_has_inherited_stays_whatever_the_default_is_now() -> None:
    recorded = recorded_config()
    runtime = recorded["crio"]["runtime"]
    runtime["runtimes"]["nvidia"] = {**runtime["runtimes"]["crun"], "runtime_path": NVIDIA}
    runtime["default_runtime"] = "runc"

    proposal = decided("crio", {}, serving=read_effective(recorded), version="1.37.0", default=True)

    assert at(result(proposal), "crio", "runtime", "runtimes", "nvidia", "runtime_root") == "/run/crun"
    assert proposal.low_level[0] == "/usr/libexec/crio/runc"


@pytest.mark.parametrize("text", [NAMED, OVERRULED], ids=["our runtime", "our program, overruled"])
def test_a_file_that_is_read_later_may_not_set_our_runtime(text: str) -> None:
    with pytest.raises(InstallerError, match=f"{CONF_D}/zz is read later and sets the runtime nvidia too"):
        decided("crio", {ROOT: "", f"{CONF_D}/zz": text}, default=True)


def test_where_its_containers_are_crio_tells_or_it_is_the_usual_place() -> None:
    said: dict[str, Any] = {"runtime": {"runtimes": {}}}
    elsewhere = said | {"runroot": "/run/x", "storage_driver": "vfs"}

    assert str(read_effective({"crio": said}).state) == "/run/containers/storage/overlay-containers"
    assert str(read_effective({"crio": elsewhere}).state) == "/run/x/vfs-containers"


@pytest.mark.parametrize(
    ("runtime", "cdi", "hook_dirs"),
    [
        pytest.param({}, None, ["/usr/share/containers/oci/hooks.d"], id="nothing"),
        pytest.param({"cdi_spec_dirs": [], "hooks_dir": []}, False, [], id="no place"),
        pytest.param({"cdi_spec_dirs": ["/etc/cdi"], "hooks_dir": ["/h"]}, True, ["/h"], id="one place each"),
    ],
)
def test_crio_reports_its_cdi_and_hook_directories(
    runtime: dict[str, list[str]], hook_dirs: list[str], *, cdi: bool | None
) -> None:
    found = read_effective({"crio": {"runtime": {"default_runtime": "x", **runtime}}})

    assert (found.cdi, [str(path) for path in found.cdi_dirs]) == (cdi, runtime.get("cdi_spec_dirs", []))
    assert [str(path) for path in found.hook_dirs] == hook_dirs
    assert found.default == "x"
