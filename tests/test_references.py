"""The toolkit outlives whatever names it: texts, by whatever path, programs, other engines and containers."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.site import CONFIG_TOML, CONTAINERD, CRIO, DAEMON_JSON, PROJECT, TOOLKIT, Site, sentence
from tests.support.stand_in import CONFIGS

PROGRAM = f"/{TOOLKIT}/nvidia-container-runtime"
HOOK = f"/{TOOLKIT}/nvidia-container-runtime-hook"
CDI_HOOK = f"/{TOOLKIT}/nvidia-cdi-hook"
LINK = "usr/local/bin/nv"
# A name is a file with a text, or a link.
Files = dict[str, str | Path]
PRESTART = json.dumps({"hooks": {"prestart": [{"path": HOOK, "args": ["x", "prestart"]}]}})
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
    {"containerEdits": {"hooks": [{"hookName": "createContainer", "path": CDI_HOOK}]}}
)
CRI, CRI_OF_2 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


def docker(name: str, *words: str) -> Files:
    """Return Docker's config with one runtime."""
    runtime = {"path": name} | ({"runtimeArgs": [*words]} if words else {})
    return {DAEMON_JSON: json.dumps({"runtimes": {"gpu": runtime}})}


def containerd(lines: str, plugin: str = CRI) -> Files:
    runtime = f'[plugins."{plugin}".containerd.runtimes.gpu]\nruntime_type = "io.containerd.runc.v2"\n'
    return {CONTAINERD: f"{CONFIGS[CONTAINERD]}\n{runtime}{lines}"}


def crio(name: str, line: str) -> Files:
    text = f'[crio.runtime]\ndefault_runtime = "{name}"\n[crio.runtime.runtimes.{name}]\n{line}\n'
    return {"etc/crio/crio.conf.d/50-gpu.conf": text}


BINARY = f'[plugins."{CRI}".containerd.runtimes.gpu.options]\nBinaryName = "{{}}"\n'
BASE_SPEC = 'base_runtime_spec = "/etc/containerd/base.json"\n'
CDI_OF_DOCKER: Files = {DAEMON_JSON: '{"cdi-spec-dirs": ["/srv/cdi"]}'}
CDI_OF_CONTAINERD: Files = {
    CONTAINERD: CONFIGS[CONTAINERD].replace("sandbox_image", 'cdi_spec_dirs = ["/srv/cdi"]\nsandbox_image')
}
PLACES_OF_CRIO: Files = {
    "etc/crio/crio.conf.d/50-places.conf": '[crio.runtime]\nhooks_dir = ["/srv/hooks"]\ncdi_spec_dirs = ["/srv/cdi"]\n'
}
SCRIPT = f'#!/bin/sh\n# starts it\nexec {PROGRAM} "$@"\n'
BY_LINK: Files = {LINK: Path(PROGRAM)}
RELATIVE: Files = {LINK: Path("../nvidia/toolkit/nvidia-container-runtime")}
CONF = "etc/containers/containers.conf"
PACKAGES = "etc/nvidia-container-runtime/config.toml"
GPU_CONF, BASE = "etc/crio/crio.conf.d/50-gpu.conf", "etc/containerd/base.json"
HOOKS, YAML = "etc/containers/oci/hooks.d/a.json", "etc/cdi/nvidia.yaml"
PODMAN = f'[engine.runtimes]\nnvidia = [\n  "{PROGRAM}",\n]\n'
PACKAGE = f'[nvidia-ctk]\npath = "/{TOOLKIT}/nvidia-ctk"\n'
# What is there, and which of it is told to name which program.
NAMED: dict[str, tuple[Files, str, str]] = {
    "docker, a link": (BY_LINK | docker(f"/{LINK}"), DAEMON_JSON, f"/{LINK}"),
    "docker, a word of PATH": (BY_LINK | docker("nv"), DAEMON_JSON, "nv"),
    "docker, an argument": (docker("/usr/bin/env", "FOO=1", PROGRAM), DAEMON_JSON, PROGRAM),
    "docker, a flag's value": (docker("/usr/bin/trace", f"--runtime={PROGRAM}"), DAEMON_JSON, PROGRAM),
    "docker, a script": (docker("/opt/traced") | {"opt/traced": SCRIPT}, DAEMON_JSON, "/opt/traced"),
    "containerd": (RELATIVE | containerd(BINARY.format(f"/{LINK}")), CONTAINERD, f"/{LINK}"),
    "crio": (BY_LINK | crio("gpu", 'runtime_path = "nv"'), GPU_CONF, "nv"),
    "crio, the name of a runtime": (BY_LINK | crio("nv", 'runtime_type = "oci"'), GPU_CONF, "nv"),
    "a base spec": (containerd(BASE_SPEC) | {BASE: PRESTART}, BASE, HOOK),
    "a base spec of containerd 2": (containerd(BASE_SPEC, CRI_OF_2) | {BASE: PRESTART}, BASE, HOOK),
    "CDI": ({YAML: GENERATED}, YAML, CDI_HOOK),
    "CDI until the next boot": ({"var/run/cdi/a.json": GENERATED_JSON}, "var/run/cdi/a.json", CDI_HOOK),
    "CDI by a suffix alone": ({"etc/cdi/.json": GENERATED_JSON}, "etc/cdi/.json", CDI_HOOK),
    "CDI of Docker's": (CDI_OF_DOCKER | {"srv/cdi/x.yaml": GENERATED}, "srv/cdi/x.yaml", CDI_HOOK),
    "CDI of containerd's": (CDI_OF_CONTAINERD | {"srv/cdi/x.yaml": GENERATED}, "srv/cdi/x.yaml", CDI_HOOK),
    "CDI of CRI-O's": (PLACES_OF_CRIO | {"srv/cdi/x.yaml": GENERATED}, "srv/cdi/x.yaml", CDI_HOOK),
    "a hook": ({HOOKS: CRIO_HOOK}, HOOKS, HOOK),
    "a hook elsewhere": (PLACES_OF_CRIO | {"srv/hooks/a.json": CRIO_HOOK}, "srv/hooks/a.json", HOOK),
    "Podman": ({CONF: PODMAN}, CONF, PROGRAM),
    "Podman's drop-in": ({f"{CONF}.d/50.conf": PODMAN}, f"{CONF}.d/50.conf", PROGRAM),
    "a package's config": ({PACKAGES: PACKAGE}, PACKAGES, f"/{TOOLKIT}/nvidia-ctk"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a node whose configs are as before us, with the toolkit that a text needed; without one it goes."""
    site = Site(tmp_path_factory.mktemp("kept"))
    site.install()
    reference = site.write("etc/cdi/nvidia.yaml", GENERATED)
    site.uninstall(code=4)
    reference.unlink()
    yield site
    site.uninstall()
    assert not (site.root / TOOLKIT).exists()


def lay_down(site: Site, files: Files) -> None:
    for path, content in files.items():
        place = site.write(path, content if isinstance(content, str) else "")
        if isinstance(content, Path):
            place.unlink()
            place.symlink_to(content)


def uninstall_beside(site: Site, files: Files) -> str:
    """Return by which sentence an uninstall keeps the toolkit while some files are there."""
    lay_down(site, files)
    try:
        done = site.uninstall(code=4)
        assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    finally:
        for path in files:
            site.write(path, CONFIGS[path]) if path in CONFIGS else (site.root / path).unlink()
    return sentence(done)


@pytest.mark.parametrize(("files", "path", "program"), NAMED.values(), ids=NAMED)
def test_the_toolkit_stays_while_a_text_names_it(kept: Site, files: Files, path: str, program: str) -> None:
    said = uninstall_beside(kept, files)

    assert f"remove the toolkit (/{path} names {program}, which leads to /usr/local/nvidia/" in said


@pytest.mark.parametrize(
    "program",
    [
        "usr/sbin/runc",
        "usr/bin/conmon",
        "usr/bin/docker-init",
        "usr/bin/docker-proxy",
        "usr/bin/containerd-shim-gpu-v2",
        "usr/bin/containerd-shim-runc-v2",
        "usr/bin/nvidia-container-runtime",
        "usr/bin/nvidia-container-runtime-hook",
        "usr/local/bin/nvidia-ctk",
    ],
)
def test_the_toolkit_outlives_a_program_that_no_config_has_to_name(kept: Site, program: str) -> None:
    said = [uninstall_beside(kept, {program: content}) for content in (SCRIPT, Path(PROGRAM))]

    told = f"remove the toolkit (/{program}, which is started though no config names it, leads to /usr/local"
    assert [told in each for each in said] == [True, True], said


BUNDLES = {
    "containerd": "run/containerd/io.containerd.runtime.v2.task/k8s.io/3f6c0d5e8a9{}",
    "crio": "run/containers/storage/overlay-containers/3f6c0d5e8a9{}/userdata",
}
PODS = {
    "containerd": {"io.kubernetes.cri.sandbox-namespace": "train", "io.kubernetes.cri.sandbox-name": "bert"},
    "crio": {"io.kubernetes.pod.namespace": "train", "io.kubernetes.pod.name": "bert"},
}


def container(engine: str, hooks: object, number: int = 0) -> Files:
    spec = json.dumps({"annotations": PODS[engine], "hooks": hooks})
    return {f"{BUNDLES[engine].format(number)}/config.json": spec}


RUNTIMES = {"a": "/opt/a\0b", "b": "/opt/\ud800", "c": "/opt/a", "d": "/fifo", "e": "/usr/local/bin/other"}
# Of each it is known why no engine would start the toolkit by it.
HARMLESS: Files = {
    "etc/cdi/other-programs.yaml": GENERATED.replace(f"/{TOOLKIT}", "/usr/bin"),
    "etc/cdi/another-tree.yaml": GENERATED.replace(f"/{TOOLKIT}", f"/host/{TOOLKIT}"),
    "etc/cdi/a-comment.yaml": GENERATED.replace(f"    path: /{TOOLKIT}", f"#   path: /{TOOLKIT}"),
    "etc/cdi/no-specification.yaml.bak": GENERATED,
    "etc/cdi/torn.yaml": "{",
    "etc/cdi/deep.yaml": "- [" * 10_000,
    "etc/cdi/to-nowhere.yaml": Path("/nowhere"),
    "etc/cdi/a-directory.yaml/file": "",
    "usr/share/containers/oci/hooks.d/no-hook.json.off": CRIO_HOOK,
    "srv/nobodys-base-spec.json": PRESTART,
    "opt/a": "#!/bin/sh\nexec /opt/b\n",
    "opt/b": "#!/bin/sh\nexec /opt/a\n",
    "usr/local/bin/other": Path("/usr/bin/runc"),
    **container("containerd", {"poststop": [{"path": "/usr/bin/other"}]}, 1),
    **container("containerd", {"createContainer": [{"path": CDI_HOOK}]}, 2),  # it has run
    **container("containerd", {"poststop": [None, {"path": 7}, {"path": "a"}, {"path": "/a\0"}]}, 3),
    **container("containerd", [], 4),
    **container("crio", {"prestart": [{"path": HOOK}]}, 5),  # CRI-O gives it to each container
}


def test_files_that_start_no_toolkit_do_not_delay_its_removal(installed: Site) -> None:
    lay_down(installed, HARMLESS)
    (installed.root / "etc/cdi/no-text.yaml").write_bytes(b"\xff\xfe\0")
    os.mkfifo(installed.root / "fifo")
    runtimes = {name: {"path": path} for name, path in RUNTIMES.items()}
    installed.rewrite(DAEMON_JSON, lambda said: said["runtimes"].update(runtimes))

    installed.install()
    installed.uninstall("--in-use", "keep")

    assert not (installed.root / TOOLKIT).exists()
    assert json.loads(installed.read(DAEMON_JSON))["runtimes"] == runtimes
    assert [
        path for path, text in HARMLESS.items() if isinstance(text, str) and installed.read(path) != text
    ] == []


@pytest.mark.parametrize("stage", ["prestart", "poststart", "poststop"])
@pytest.mark.parametrize("path", [HOOK, f"/{LINK}"], ids=["by its path", "by a link"])
def test_the_toolkit_outlives_a_container_that_has_it_as_a_hook(
    installed: Site, stage: str, path: str
) -> None:
    engine = "crio" if stage == "poststop" else "containerd"
    files = container(engine, {stage: [{"path": "/bin/true"}, {"path": path}]})
    lay_down(installed, {LINK: Path(HOOK), **files})

    kept = installed.uninstall("--in-use", "keep", code=4)

    assert f"(our runtime runs train/bert ({engine}))" in sentence(kept)
    assert (installed.root / HOOK[1:]).exists()
    shutil.rmtree((installed.root / next(iter(files))).parent)
    installed.uninstall()
    assert not (installed.root / TOOLKIT).exists()


def test_a_default_that_leads_to_ours_is_not_what_ours_wraps(site: Site) -> None:
    site.install("--runtime", "docker")
    lay_down(site, BY_LINK)
    gpu = {"path": f"/{LINK}"}
    site.rewrite(
        DAEMON_JSON, lambda said: said["runtimes"].update(gpu=gpu) or said.update({"default-runtime": "gpu"})
    )

    site.install("--runtime", "docker")

    assert LINK not in site.read(CONFIG_TOML)


@pytest.mark.parametrize(("engine", "path"), [("docker", DAEMON_JSON), ("crio", CRIO)])
def test_our_own_text_in_another_file_is_nobodys_original(site: Site, engine: str, path: str) -> None:
    site.install("--set-as-default")
    options: tuple[str, ...] = ()
    if engine == "docker":
        copy = "srv/docker/daemon.json"
        options = ("--config", f"docker={site.root}/{copy}")
        site.write(copy, site.read(path))
    else:
        copy = str(Path(path).with_name("50-gpu.conf"))
        (site.root / path).rename(site.root / copy)

    for _ in range(2):
        site.install("--set-as-default", *options)
        kept = site.uninstall(*options, code=4)
        assert f"remove the toolkit (/{copy} names /{TOOLKIT}/" in sentence(kept)
        assert (site.root / PROGRAM[1:]).exists()
    (site.root / copy).unlink()
    site.uninstall(*options)
    assert not (site.root / TOOLKIT).exists()


def test_a_reference_to_the_restored_former_toolkit_does_not_stop_an_undo(site: Site) -> None:
    theirs = [site.write(program[1:], "theirs") for program in (CDI_HOOK, PROGRAM)]
    lay_down(site, {"etc/cdi/nvidia.yaml": GENERATED, "usr/sbin/runc": Path(PROGRAM)})
    before = site.tree()
    site.install()
    assert [each.read_bytes() == b"theirs" for each in theirs] == [False, False]

    site.uninstall()

    assert site.tree() == before


@pytest.mark.parametrize(
    ("again", "name"),
    [
        pytest.param((), "", id="nothing more"),
        pytest.param((), PROGRAM, id="by its path"),
        pytest.param(("install",), f"/{LINK}", id="by the name of before, and installed again"),
        pytest.param(("install", "--runtime-name", "gpu2"), PROGRAM, id="and installed by another name"),
    ],
)
def test_only_what_a_file_names_since_our_install_keeps_the_toolkit(
    site: Site, again: tuple[str, ...], name: str
) -> None:
    lay_down(site, BY_LINK | docker(f"/{LINK}"))
    before = site.read(DAEMON_JSON)
    site.install("--runtime", "docker")
    if name:
        site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].update(more={"path": name}))
        assert not again or site.call(*again, "--runtime", "docker").returncode == 0
        kept = site.uninstall(code=4)
        assert f"remove the toolkit (/{DAEMON_JSON} names {name}, which leads to " in sentence(kept)
        assert (site.root / PROGRAM[1:]).exists()
        site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].pop("more"))

    site.uninstall()

    assert json.loads(site.read(DAEMON_JSON)) == json.loads(before)
    assert not (site.root / TOOLKIT).exists()


# The look at all processes ends at once, as it does after two seconds where a user runs very many.
OUT_OF_TIME = """
import runpy, sys
from installer.host import processes
processes.LOOK_S = -1.0
sys.argv = ["installer", *sys.argv[1:]]
runpy.run_module("installer", run_name="__main__")
"""


def test_an_undo_that_cannot_look_at_all_processes_keeps_the_toolkit(installed: Site) -> None:
    site = installed
    site.write("proc/7/status", "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n")
    python, _, _, *words = site.command("uninstall", "--log-format", "json")

    done = subprocess.run(
        [python, "-c", OUT_OF_TIME, *words], capture_output=True, text=True, check=False, cwd=PROJECT
    )

    assert done.returncode == 4, done.stderr
    said = json.loads(done.stderr.splitlines()[-1])
    assert said["code"] == "toolkit-needed"
    assert "not all processes can be looked at" in said["problem"]
    assert (site.root / TOOLKIT / "nvidia-container-runtime").exists()
    assert TOOLKIT not in site.read(DAEMON_JSON)
    site.uninstall()
    assert not (site.root / TOOLKIT).exists()
