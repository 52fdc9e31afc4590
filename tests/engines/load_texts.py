"""Configs of containerd that are refused only at a start."""

from collections.abc import Mapping

from installer.config_text import Syntax, Value, WantedKey
from installer.config_text.change import apply
from tests.engines.configs import CONTAINERD
from tests.engines.nodes import Node

CERTS = "/etc/containerd/certs.d"


def _settings_of_images(node: Node) -> str:
    old = node.containerd_version.startswith("1.")
    return "io.containerd.grpc.v1.cri" if old else "io.containerd.cri.v1.images"


def registry_mirrors(node: Node) -> str:
    """Return ``mirrors`` beside ``config_path``, as a node has after half of a migration."""
    table = f"plugins.'{_settings_of_images(node)}'.registry"
    return (
        f"\n[{table}]\nconfig_path = '{CERTS}'\n"
        f"[{table}.mirrors.'docker.io']\nendpoint = ['https://mirror.invalid']\n"
    )


# By name: keys with their values, added to a config with which containerd serves. The first letters stand for the
# tables of CRI: its runtimes, images, server and snapshotter.
KATA = "R|containerd|runtimes|kata"


def spell(node: Node, usual: str, keys: Mapping[str, Value]) -> str:
    """Return a config with further keys, those of CRI in the plugin that this version has for them."""
    old = node.containerd_version.startswith("1.")
    cri, runtime, images = (
        ("plugins", plugin)
        for plugin in (
            "io.containerd.grpc.v1.cri",
            "io.containerd.cri.v1.runtime",
            "io.containerd.cri.v1.images",
        )
    )
    tables: dict[str, tuple[str, ...]] = {"S": cri, "R": cri if old else runtime, "I": cri if old else images}
    tables["N"] = (*cri, "containerd") if old else images
    wants = []
    for name, value in keys.items():
        first, *rest = name.split("|")
        wants.append(WantedKey((*tables.get(first, (first,)), *rest), value))
    if any(name.startswith(KATA) for name in keys):
        wants.append(
            WantedKey(
                (*tables["R"], "containerd", "runtimes", "kata", "runtime_type"), "io.containerd.kata.v2"
            )
        )
    return apply(usual, wants, Syntax.TOML, name=CONTAINERD)[0]
