"""What an admin's own links lead to: the toolkit outlives every text that names it, by whatever path."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_verbs import DAEMON_JSON, Site, sentence

TOOLKIT = "usr/local/nvidia/toolkit"
PROGRAM = f"/{TOOLKIT}/nvidia-container-runtime"
LINK = "usr/local/bin/nv"
CONTAINERD = "etc/containerd/config.toml"
OLD = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpu'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def link(site: Site, target: str = PROGRAM) -> None:
    path = site.root / LINK
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def in_docker(site: Site, name: str) -> str:
    path = site.root / DAEMON_JSON
    said = json.loads(path.read_text())
    said["runtimes"]["gpu"] = {"path": name}
    path.write_text(json.dumps(said))
    return DAEMON_JSON


def in_containerd(site: Site, name: str) -> str:
    path = site.root / CONTAINERD
    runtime = f'\n[{OLD}]\nruntime_type = "io.containerd.runc.v2"\n[{OLD}.options]\nBinaryName = "{name}"\n'
    path.write_text(path.read_text() + runtime)
    return CONTAINERD


def in_crio(site: Site, name: str) -> str:
    drop_in = "etc/crio/crio.conf.d/50-gpu.conf"
    text = f'[crio.runtime]\ndefault_runtime = "gpu"\n[crio.runtime.runtimes.gpu]\nruntime_path = "{name}"\n'
    (site.root / drop_in).write_text(text)
    return drop_in


@pytest.mark.parametrize("edit", [in_docker, in_containerd, in_crio])
@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(f"/{LINK}", PROGRAM, id="a link"),
        pytest.param(f"/{LINK}", "../nvidia/toolkit/nvidia-container-runtime", id="a relative link"),
        pytest.param("nv", PROGRAM, id="a word that is found in PATH"),
    ],
)
def test_the_toolkit_stays_while_a_text_names_it_by_a_link(
    site: Site, edit: Callable[[Site, str], str], name: str, target: str
) -> None:
    assert site.call("install").returncode == 0
    link(site, target)
    path = edit(site, name)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"remove the toolkit (/{path} names {name}, a link to /usr/local/nvidia/" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    assert site.call("uninstall").returncode == 4
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    if path.endswith("50-gpu.conf"):
        (site.root / path).unlink()
    else:
        text = (site.root / path).read_text()
        (site.root / path).write_text(text.replace(f'"{name}"', '"/usr/bin/other"'))
    assert site.call("uninstall").returncode == 0
    assert not (site.root / TOOLKIT).exists()


def test_a_link_to_something_else_keeps_nothing(site: Site) -> None:
    assert site.call("install").returncode == 0
    link(site, "/usr/bin/runc")
    in_docker(site, f"/{LINK}")

    assert site.call("uninstall").returncode == 0

    assert not (site.root / TOOLKIT).exists()


def test_a_default_that_leads_to_ours_is_not_what_ours_wraps(site: Site) -> None:
    assert site.call("install", "--runtime", "docker").returncode == 0
    link(site)
    in_docker(site, f"/{LINK}")
    said = json.loads((site.root / DAEMON_JSON).read_text())
    (site.root / DAEMON_JSON).write_text(json.dumps(said | {"default-runtime": "gpu"}))

    assert site.call("install", "--runtime", "docker").returncode == 0

    config = (site.root / TOOLKIT / ".config/nvidia-container-runtime/config.toml").read_text()
    assert LINK not in config


@pytest.mark.parametrize("name", ["/opt/a\0b", "/opt/\ud800"], ids=["a zero byte", "half a character"])
def test_a_name_that_no_file_can_have_is_nobodys_reference(site: Site, name: str) -> None:
    installed = site.call("install")
    path = site.root / in_docker(site, name)

    again = site.call("install")
    done = site.call("uninstall")

    assert [each.returncode for each in (installed, again, done)] == [0, 0, 0], again.stderr + done.stderr
    assert json.loads(path.read_text())["runtimes"] == {"gpu": {"path": name}}


def copied_for_docker(site: Site) -> tuple[str, list[str]]:
    copy = "srv/docker/daemon.json"
    (site.root / copy).parent.mkdir(parents=True)
    (site.root / copy).write_text((site.root / DAEMON_JSON).read_text())
    return copy, ["--config", f"docker={site.root / copy}"]


def copied_for_containerd(site: Site) -> tuple[str, list[str]]:
    copy = "srv/containerd/config.toml"
    (site.root / copy).parent.mkdir(parents=True)
    (site.root / copy).write_text((site.root / CONTAINERD).read_text())
    return copy, ["--config", f"containerd={site.root / copy}"]


def renamed_for_crio(site: Site) -> tuple[str, list[str]]:
    renamed = "etc/crio/crio.conf.d/50-gpu.conf"
    (site.root / "etc/crio/crio.conf.d/99-nvidia.toml").rename(site.root / renamed)
    return renamed, []


@pytest.mark.parametrize("move", [copied_for_docker, copied_for_containerd, renamed_for_crio])
def test_our_own_text_in_another_file_is_nobodys_original(
    site: Site, move: Callable[[Site], tuple[str, list[str]]]
) -> None:
    assert site.call("install", "--set-as-default").returncode == 0
    path, options = move(site)

    assert site.call("install", "--set-as-default", *options).returncode == 0
    kept = site.call("uninstall", *options)

    assert kept.returncode == 4, kept.stderr
    assert f"remove the toolkit (/{path} names /{TOOLKIT}/" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    assert site.call("install", "--set-as-default", *options).returncode == 0
    assert site.call("uninstall", *options).returncode == 4
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    (site.root / path).unlink()
    assert site.call("uninstall", *options).returncode == 0
    assert not (site.root / TOOLKIT).exists()
