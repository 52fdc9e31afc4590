"""What kustomize and helm make of the manifests."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.engines import debs

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
SCHEMAS = ("1.29", "1.33")
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
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


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
