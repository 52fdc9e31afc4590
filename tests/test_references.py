"""What an admin's own links lead to: the toolkit outlives every text that names it, by whatever path."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.site import DAEMON_JSON, Site, sentence

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
    assert f"remove the toolkit (/{path} names {name}, which leads to /usr/local/nvidia/" in sentence(kept)
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


def test_the_toolkit_stays_while_a_runtime_of_crio_is_found_by_its_name(site: Site) -> None:
    assert site.call("install").returncode == 0
    link(site)
    text = '[crio.runtime]\ndefault_runtime = "nv"\n[crio.runtime.runtimes.nv]\nruntime_type = "oci"\n'
    (site.root / "etc/crio/crio.conf.d/50-gpu.conf").write_text(text)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert "50-gpu.conf names nv, which leads to /usr/local/nvidia/" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()


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


HOOK = f"/{TOOLKIT}/nvidia-container-runtime-hook"
CDI_HOOK = f"/{TOOLKIT}/nvidia-cdi-hook"
PRESTART = json.dumps(
    {"ociVersion": "1.1.0", "hooks": {"prestart": [{"path": HOOK, "args": ["x", "prestart"]}]}}
)
CRIO_HOOK = json.dumps({"version": "1.0.0", "hook": {"path": HOOK}, "when": {"always": True}})
# As `nvidia-ctk cdi generate` writes it.
GENERATED = f"""---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    hookName: createContainer
    path: {CDI_HOOK}
"""
GENERATED_JSON = json.dumps(
    {"cdiVersion": "0.5.0", "containerEdits": {"hooks": [{"hookName": "createContainer", "path": CDI_HOOK}]}}
)


def written(site: Site, path: str, text: str) -> Path:
    place = site.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def with_base_spec(site: Site, plugin: str) -> None:
    runtime = f'\n[plugins."{plugin}".containerd.runtimes.gpu]\nruntime_type = "io.containerd.runc.v2"\n'
    path = site.root / CONTAINERD
    path.write_text(f'{path.read_text()}{runtime}base_runtime_spec = "/etc/containerd/base.json"\n')


def with_cri(site: Site) -> None:
    with_base_spec(site, "io.containerd.grpc.v1.cri")


def with_cri_of_2(site: Site) -> None:
    with_base_spec(site, "io.containerd.cri.v1.runtime")


def with_places_of_docker(site: Site) -> None:
    path = site.root / DAEMON_JSON
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cdi-spec-dirs": ["/srv/cdi"]}))


def with_places_of_containerd(site: Site) -> None:
    path = site.root / CONTAINERD
    path.write_text(path.read_text().replace("sandbox_image", 'cdi_spec_dirs = ["/srv/cdi"]\nsandbox_image'))


def with_places_of_crio(site: Site) -> None:
    text = '[crio.runtime]\nhooks_dir = ["/srv/hooks"]\ncdi_spec_dirs = ["/srv/cdi"]\n'
    written(site, "etc/crio/crio.conf.d/50-places.conf", text)


def as_it_is(site: Site) -> None:
    """Leave the engines' places as they are without a word."""


@pytest.mark.parametrize(
    ("configure", "path", "text", "program"),
    [
        pytest.param(with_cri, "etc/containerd/base.json", PRESTART, HOOK, id="a base spec"),
        pytest.param(with_cri_of_2, "etc/containerd/base.json", PRESTART, HOOK, id="one of containerd 2"),
        pytest.param(as_it_is, "etc/cdi/nvidia.yaml", GENERATED, CDI_HOOK, id="CDI"),
        pytest.param(as_it_is, "etc/cdi/nvidia.json", GENERATED_JSON, CDI_HOOK, id="CDI in JSON"),
        pytest.param(as_it_is, "var/run/cdi/nvidia.yaml", GENERATED, CDI_HOOK, id="CDI until the next boot"),
        pytest.param(with_places_of_docker, "srv/cdi/x.yaml", GENERATED, CDI_HOOK, id="CDI of Docker's"),
        pytest.param(with_places_of_containerd, "srv/cdi/x.yaml", GENERATED, CDI_HOOK, id="of containerd's"),
        pytest.param(with_places_of_crio, "srv/cdi/x.json", GENERATED_JSON, CDI_HOOK, id="of CRI-O's"),
        pytest.param(as_it_is, "usr/share/containers/oci/hooks.d/a.json", CRIO_HOOK, HOOK, id="a hook"),
        pytest.param(as_it_is, "etc/containers/oci/hooks.d/a.json", CRIO_HOOK, HOOK, id="a hook in /etc"),
        pytest.param(with_places_of_crio, "srv/hooks/a.json", CRIO_HOOK, HOOK, id="a hook elsewhere"),
    ],
)
def test_the_toolkit_stays_while_what_an_engine_gives_its_containers_names_it(
    site: Site, configure: Callable[[Site], None], path: str, text: str, program: str
) -> None:
    configure(site)
    assert site.call("install").returncode == 0
    link(site)
    file = written(site, path, text)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"remove the toolkit (/{path} names {program}, which leads to /usr/local/nvidia/" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    assert site.call("uninstall").returncode == 4
    assert file.read_text() == text
    file.unlink()
    assert site.call("uninstall").returncode == 0
    assert not (site.root / TOOLKIT).exists()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/cdi/nvidia.yaml", GENERATED.replace(f"/{TOOLKIT}", "/usr/bin")),
        ("etc/cdi/nvidia.yaml", GENERATED.replace(f"/{TOOLKIT}", f"/host/{TOOLKIT}")),
        ("etc/cdi/nvidia.yaml", GENERATED.replace(f"    path: /{TOOLKIT}", f"#   path: /{TOOLKIT}")),
        ("etc/cdi/nvidia.yaml.bak", GENERATED),
        ("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json.off", CRIO_HOOK),
        ("srv/base.json", PRESTART),
    ],
    ids=["other programs", "another tree", "a comment", "no specification", "no hook", "nobody's base spec"],
)
def test_what_no_engine_would_start_the_toolkit_by_keeps_nothing(site: Site, path: str, text: str) -> None:
    assert site.call("install").returncode == 0
    file = written(site, path, text)

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()
    assert file.read_text() == text


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"{", b"- [" * 10_000], ids=["no text", "torn", "deep"])
def test_a_specification_that_nobody_can_read_ends_nothing(site: Site, content: bytes) -> None:
    assert site.call("install").returncode == 0
    written(site, "etc/cdi/a.yaml", "").write_bytes(content)
    (site.root / "etc/cdi/b.yaml").mkdir()
    (site.root / "etc/cdi/c.yaml").symlink_to("/nowhere")

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()


def test_a_specification_may_name_the_toolkit_that_comes_back(site: Site) -> None:
    theirs = written(site, f"{TOOLKIT}/nvidia-cdi-hook", "theirs")
    file = written(site, "etc/cdi/nvidia.yaml", GENERATED)
    installed = site.call("install")
    assert installed.returncode == 0, installed.stderr
    assert theirs.read_bytes() != b"theirs"

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert theirs.read_text() == "theirs"
    assert file.read_text() == GENERATED


def named_before_us(site: Site) -> str:
    """Have a daemon.json that names a program of the toolkit before we come, by its owner's own link."""
    link(site)
    site.root.joinpath(DAEMON_JSON).write_text(json.dumps({"runtimes": {"mine": {"path": f"/{LINK}"}}}))
    return (site.root / DAEMON_JSON).read_text()


def test_what_a_file_named_before_us_keeps_nothing(site: Site) -> None:
    before = named_before_us(site)
    assert site.call("install", "--runtime", "docker").returncode == 0

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert (site.root / DAEMON_JSON).read_text() == before


@pytest.mark.parametrize("again", [(), ("install",), ("install", "--runtime-name", "gpu2")])
@pytest.mark.parametrize("name", [PROGRAM, f"/{LINK}"], ids=["by its path", "by the name of before"])
def test_what_a_file_names_since_our_install_keeps_the_toolkit(
    site: Site, again: tuple[str, ...], name: str
) -> None:
    before = named_before_us(site)
    assert site.call("install", "--runtime", "docker").returncode == 0
    path = in_docker(site, name)
    assert not again or site.call(*again, "--runtime", "docker").returncode == 0

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"remove the toolkit (/{path} names {name}, which leads to " in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    said = json.loads((site.root / path).read_text())
    del said["runtimes"]["gpu"]
    (site.root / path).write_text(json.dumps(said))
    assert site.call("uninstall").returncode == 0
    assert json.loads((site.root / path).read_text()) == json.loads(before)
    assert not (site.root / TOOLKIT).exists()


def a_list(site: Site) -> str:
    """As in ``env FOO=1 T``: a runtime that starts ours by its arguments."""
    path = site.root / DAEMON_JSON
    said = json.loads(path.read_text())
    said["runtimes"]["gpu"] = {"path": "/usr/bin/env", "runtimeArgs": ["FOO=1", PROGRAM]}
    path.write_text(json.dumps(said))
    return f"/{DAEMON_JSON} names {PROGRAM}"


def an_argument(site: Site) -> str:
    path = site.root / DAEMON_JSON
    said = json.loads(path.read_text())
    said["runtimes"]["gpu"] = {"path": "/usr/bin/trace", "runtimeArgs": [f"--runtime={PROGRAM}"]}
    path.write_text(json.dumps(said))
    return f"/{DAEMON_JSON} names {PROGRAM}"


def a_hard_link(site: Site) -> str:
    """Another name of the same script, which names what it starts."""
    place = written(site, "opt/nv/runtime", "")
    place.unlink()
    place.hardlink_to((site.root / TOOLKIT / "nvidia-container-runtime").resolve())
    return f"/{in_docker(site, '/opt/nv/runtime')} names /opt/nv/runtime"


def a_script(site: Site) -> str:
    written(site, "opt/traced", f'#!/bin/sh\n# starts it\nexec {PROGRAM} "$@"\n')
    return f"/{in_docker(site, '/opt/traced')} names /opt/traced"


def podmans(site: Site) -> str:
    path = "etc/containers/containers.conf"
    written(site, path, f'[engine.runtimes]\nnvidia = ["{PROGRAM}"]\n')
    return f"/{path} names {PROGRAM}"


def podmans_drop_in(site: Site) -> str:
    path = "etc/containers/containers.conf.d/50-nvidia.conf"
    written(site, path, f'[engine.runtimes]\nnvidia = [\n  "{PROGRAM}",\n]\n')
    return f"/{path} names {PROGRAM}"


@pytest.mark.parametrize(
    "name",
    [
        a_list,
        an_argument,
        a_hard_link,
        a_script,
        podmans,
        podmans_drop_in,
    ],
)
def test_the_toolkit_outlives_what_starts_it_otherwise(site: Site, name: Callable[[Site], str]) -> None:
    before = (site.root / DAEMON_JSON).read_text()
    assert site.call("install").returncode == 0
    said = name(site)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"remove the toolkit ({said}, which leads to /usr/local/nvidia/" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    (site.root / DAEMON_JSON).write_text(before)
    for path in ("opt", "etc/containers"):
        shutil.rmtree(site.root / path, ignore_errors=True)
    done = site.call("uninstall")
    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()


def test_scripts_that_start_each_other_for_ever_are_followed_to_an_end(site: Site) -> None:
    written(site, "opt/a", "#!/bin/sh\nexec /opt/b\n")
    written(site, "opt/b", "#!/bin/sh\nexec /opt/a\n")
    assert site.call("install").returncode == 0
    in_docker(site, "/opt/a")

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()


@pytest.mark.parametrize(
    "program",
    [
        "usr/sbin/runc",
        "usr/bin/containerd-shim-gpu-v2",
        "usr/bin/containerd-shim-runc-v2",
        "usr/bin/docker-init",
        "usr/bin/docker-proxy",
        "usr/bin/nvidia-container-runtime-hook",
        "usr/bin/nvidia-container-runtime",
        "usr/local/bin/nvidia-ctk",
        "usr/bin/conmon",
    ],
)
@pytest.mark.parametrize("script", [False, True], ids=["a link", "a script"])
def test_the_toolkit_outlives_a_program_that_no_config_has_to_name(
    site: Site, program: str, *, script: bool
) -> None:
    assert site.call("install").returncode == 0
    place = written(site, program, f'#!/bin/sh\nexec {PROGRAM} "$@"\n')
    if not script:
        place.unlink()
        place.symlink_to(PROGRAM)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    said = f"remove the toolkit (/{program}, which is started though no config names it, leads to /usr/local"
    assert said in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    place.unlink()
    place.write_text("the node's own")
    assert site.call("uninstall").returncode == 0
    assert not (site.root / TOOLKIT).exists()


def test_a_program_that_leads_to_the_toolkit_that_comes_back_keeps_nothing(site: Site) -> None:
    theirs = written(site, f"{TOOLKIT}/nvidia-container-runtime", "theirs")
    written(site, "usr/sbin/runc", "").unlink()
    (site.root / "usr/sbin/runc").symlink_to(PROGRAM)
    installed = site.call("install")
    assert installed.returncode == 0, installed.stderr

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert theirs.read_text() == "theirs"


def test_what_is_no_plain_file_is_not_opened(site: Site) -> None:
    os.mkfifo(site.root / "fifo")
    assert site.call("install").returncode == 0
    in_docker(site, "/fifo")

    assert site.call("uninstall").returncode == 0

    assert not (site.root / TOOLKIT).exists()


def a_process(
    site: Site, number: int, *words: str, namespace: str = "mnt:[1]", name: str = "", exe: str = "/bin/true"
) -> Path:
    """Lay down what /proc has of a process of root's, the program of which root has written."""
    process = site.root / f"proc/{number}"
    (process / "ns").mkdir(parents=True)
    (process / "exe").symlink_to(exe)
    (process / "ns/mnt").symlink_to(namespace)
    (process / "root").symlink_to(site.root if namespace == "mnt:[1]" else site.root / "other")
    uids = "\t".join([str(os.geteuid())] * 4)
    (process / "status").write_text(f"Name:\t{name or words[0]}\nUid:\t{uids}\n")
    (process / "comm").write_text(f"{name or words[0]}\n")
    (process / "cmdline").write_text("".join(f"{word}\0" for word in words))
    (process / "environ").write_text("PATH=/usr/bin\0")
    (process / "cgroup").write_text("0::/system.slice/second.service\n")
    return process


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (("dockerd", "--config-file", "/etc/second/daemon.json"), DAEMON_JSON),
        (("dockerd", "--config-file=/etc/second/daemon.json"), DAEMON_JSON),
        (("containerd", "-c", "/etc/second/config.toml"), CONTAINERD),
        (("crio", "--config-dir", "/etc/second"), "etc/crio/crio.conf.d/99-nvidia.toml"),
    ],
)
def test_the_toolkit_outlives_a_second_engine_that_names_it(
    site: Site, words: tuple[str, ...], config: str
) -> None:
    assert site.call("install").returncode == 0
    second = f"etc/second/{Path(config).name}"
    written(site, second, (site.root / config).read_text())
    a_process(site, 1, "systemd")
    a_process(site, 50, *words)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"of second.service runs and reads /{second}, which names /{TOOLKIT}/" in sentence(kept)
    assert "restart second.service" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    shutil.rmtree(site.root / "proc/50")
    assert site.call("uninstall").returncode == 0
    assert not (site.root / TOOLKIT).exists()


def test_the_toolkit_outlives_a_second_engine_that_is_started_by_a_link(site: Site) -> None:
    assert site.call("install").returncode == 0
    written(site, "etc/second/config.toml", (site.root / CONTAINERD).read_text())
    a_process(site, 1, "systemd")
    exe = str(shutil.copy("/bin/true", site.root / "containerd"))
    a_process(site, 50, "/opt/gpud", "--config", "/etc/second/config.toml", name="gpud", exe=exe)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert "of second.service runs and reads /" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("containerd-shim", "containerd-shim-runc-v2"),
        ("docker-containe", "docker-containerd-shim"),
        ("cri-dockerd", "cri-dockerd"),
        ("containerd-star", "containerd-stargz-grpc"),
    ],
)
def test_what_is_called_alike_and_is_no_engine_keeps_nothing(site: Site, name: str, program: str) -> None:
    assert site.call("install").returncode == 0
    written(site, "etc/second/config.toml", (site.root / CONTAINERD).read_text())
    a_process(site, 1, "systemd")
    exe = str(shutil.copy("/bin/true", site.root / program))
    a_process(site, 50, f"/usr/bin/{program}", "--config", "/etc/second/config.toml", name=name, exe=exe)

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()


BUNDLES = {
    "containerd": "run/containerd/io.containerd.runtime.v2.task/k8s.io/3f6c0d5e8a9b",
    "crio": "run/containers/storage/overlay-containers/3f6c0d5e8a9b/userdata",
}
PODS = {
    "containerd": {"io.kubernetes.cri.sandbox-namespace": "train", "io.kubernetes.cri.sandbox-name": "bert"},
    "crio": {"io.kubernetes.pod.namespace": "train", "io.kubernetes.pod.name": "bert"},
}


@pytest.mark.parametrize(
    ("engine", "stage"),
    [
        ("containerd", "prestart"),
        ("containerd", "poststart"),
        ("containerd", "poststop"),
        ("crio", "poststop"),
    ],
)
@pytest.mark.parametrize("path", [HOOK, f"/{LINK}"], ids=["by its path", "by a link"])
def test_the_toolkit_outlives_a_container_that_has_it_as_a_hook(
    site: Site, engine: str, stage: str, path: str
) -> None:
    assert site.call("install").returncode == 0
    link(site, HOOK)
    spec = {"annotations": PODS[engine], "hooks": {stage: [{"path": "/bin/true"}, {"path": path}]}}
    written(site, f"{BUNDLES[engine]}/config.json", json.dumps(spec))

    kept = site.call("uninstall", "--in-use", "keep")

    assert kept.returncode == 4, kept.stderr
    assert f"(our runtime runs train/bert ({engine}))" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-container-runtime-hook").exists()
    shutil.rmtree(site.root / BUNDLES[engine])
    assert site.call("uninstall").returncode == 0
    assert not (site.root / TOOLKIT).exists()


@pytest.mark.parametrize(
    ("engine", "hooks"),
    [
        ("containerd", {"poststop": [{"path": "/usr/bin/other"}]}),
        ("containerd", {"createContainer": [{"path": CDI_HOOK}]}),
        ("containerd", {"poststop": [None, {"path": 7}, {"path": "a"}, {"path": "/a\0"}], "prestart": 7}),
        ("containerd", []),
        ("crio", {"prestart": [{"path": HOOK}]}),
    ],
    ids=["another program", "what has run", "no hooks", "no stages", "what CRI-O gives each container"],
)
def test_a_container_whose_hooks_do_not_need_the_toolkit_keeps_nothing(
    site: Site, engine: str, hooks: object
) -> None:
    assert site.call("install").returncode == 0
    written(site, f"{BUNDLES[engine]}/config.json", json.dumps({"annotations": PODS[engine], "hooks": hooks}))

    done = site.call("uninstall", "--in-use", "keep")

    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()


def test_an_engine_with_other_files_at_the_same_paths_keeps_nothing(site: Site) -> None:
    assert site.call("install").returncode == 0
    written(site, f"other/{DAEMON_JSON}", (site.root / DAEMON_JSON).read_text())
    written(site, f"other/{TOOLKIT}/nvidia-container-runtime", "theirs")
    a_process(site, 1, "systemd")
    a_process(site, 50, "dockerd", namespace="mnt:[2]")

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()


def test_the_toolkit_outlives_the_config_of_a_package_that_names_it(site: Site) -> None:
    assert site.call("install").returncode == 0
    text = f'[nvidia-container-runtime]\nruntimes = ["runc"]\n[nvidia-ctk]\npath = "/{TOOLKIT}/nvidia-ctk"\n'
    place = written(site, "etc/nvidia-container-runtime/config.toml", text)

    kept = site.call("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"/etc/nvidia-container-runtime/config.toml names /{TOOLKIT}/nvidia-ctk" in sentence(kept)
    assert (site.root / TOOLKIT / "nvidia-ctk").exists()
    place.write_text(text.replace(f"/{TOOLKIT}/", "/usr/bin/"))
    assert site.call("uninstall").returncode == 0
    assert not (site.root / TOOLKIT).exists()
