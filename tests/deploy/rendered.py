"""What kustomize and helm make of the manifests."""

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.deploy.helm import NAMESPACE
from tests.engines import debs
from tests.support.entry import PROJECT

DEPLOY = PROJECT / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
OLDEST = "1.29"  # which knows AppArmor by an annotation alone
SCHEMAS = ("1.30", "1.37")  # to the newest that there is
SUITE = "trixie"  # the first whose kubectl has kustomize 5
Manifest = dict[str, Any]


@cache
def kubectl() -> str:
    """Return the machine's own kubectl, or one from Debian."""
    return debs.program("kubectl", "kubectl", SUITE)


def objects(*command: str) -> list[Manifest]:
    """Return the objects that a command prints."""
    import yaml

    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
    for spec in (each.get("spec", {}).get("template", {}).get("spec", {}) for each in found):
        for container in spec.get("containers", []):  # kustomize puts patched variables first
            container.get("env", []).sort(key=lambda variable: variable["name"])
    return found


@cache
def kustomized(directory: str) -> list[Manifest]:
    """Return the objects of one directory below deploy/kustomize."""
    return objects(kubectl(), "kustomize", str(KUSTOMIZE / directory))


def helm(verb: str, *settings: str) -> list[str]:
    """Return the command that is ``helm VERB`` with ``--set`` of each setting."""
    return [sys.executable, "-m", "tests.deploy.helm", verb, json.dumps(settings)]


def charted(*settings: str) -> list[Manifest]:
    """Return the objects of the chart with ``--set`` of each setting."""
    return [each for each in objects(*helm("template", *settings)) if "notes" not in each]


def pod_of(manifests: list[Manifest]) -> Manifest:
    """Return the one pod's spec."""
    (pod,) = (each["spec"]["template"]["spec"] for each in manifests if "template" in each.get("spec", {}))
    return dict(pod)


def container_of(manifests: list[Manifest]) -> Manifest:
    """Return the one container of the one pod."""
    (container,) = pod_of(manifests)["containers"]
    return dict(container)


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    """Return the one object of each kind."""
    found = {each["kind"]: each for each in manifests}
    assert all(sum(each["kind"] == kind for each in manifests) == 1 for kind in kinds), kinds
    return [found[kind] for kind in kinds]


def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    """Return the objects by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def validate(manifests: list[Manifest], version: str) -> None:
    """Hold the objects to the schemas of one Kubernetes, unknown fields included."""
    import kubernetes_validate

    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


class Layer:
    """An operator's own kustomization over ours; ``tree`` is the kustomize directory that it builds on."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "kustomize"
        self.tree.symlink_to(KUSTOMIZE)
        self._mine = directory / "mine"
        self._mine.mkdir()
        self._patches: list[Manifest] = []

    def copy(self) -> None:
        """Make ``tree`` a copy that may be changed."""
        self.tree.unlink()
        shutil.copytree(KUSTOMIZE, self.tree)

    def patch(self, place: str, what: Manifest) -> None:
        """Change the DaemonSet at ``place``, such as spec.template."""
        for name in reversed(place.split(".")):
            what = {name: what}
        named = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAMESPACE}, **what}
        self._patches.append({"patch": json.dumps(named)})

    def __call__(self, resource: str, *components: str) -> list[Manifest]:
        """Return the objects of one directory with some components."""
        text = {
            "resources": [f"../kustomize/{resource}"],
            "components": [f"../kustomize/{each}" for each in components],
            "patches": self._patches,
        }
        (self._mine / "kustomization.yaml").write_text(json.dumps(text))
        return objects(kubectl(), "kustomize", "--load-restrictor=LoadRestrictionsNone", str(self._mine))
