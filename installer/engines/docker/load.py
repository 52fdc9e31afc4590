"""Settings that dockerd refuses only when it loads or reloads: ``dockerd --validate`` accepts them.

The rules are those of dockerd from 20.10 to 28 (engine-facts.md#dockerd-load).
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath
from typing import Final, Protocol
from urllib.parse import urlsplit

from installer.model.engine import HostReader, LoadError, LoadInput
from installer.model.files import Kind

PLUGINS: Final = "authorization-plugins"
RUN: Final = PurePosixPath("/run/docker")
SPEC_DIRECTORIES: Final = (PurePosixPath("/etc/docker/plugins"), PurePosixPath("/usr/lib/docker/plugins"))
MANAGED: Final = re.compile("[0-9a-f]{64}")  # the directory of a plugin that dockerd itself runs
INSECURE: Final = "insecure-registries"
ARTIFACTS: Final = "allow-nondistributable-artifacts"
MIRRORS: Final = "registry-mirrors"
IGNORES_ARTIFACTS: Final = (28,)  # dockerd ignores ARTIFACTS, and its --validate reads MIRRORS
TAKES_PATHS: Final = (23,)  # the releases before take no path in a mirror; 23 to 25 are not measured
SCHEMES: Final = ("http", "https")
LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
REGISTRY: Final = re.compile(rf"{LABEL}(?:\.{LABEL})*(?::([0-9]{{1,9}}))?")
MOST_PORTS: Final = 65535


class _Rule(Protocol):
    """A rule for the entries of a list: true for a refused entry."""

    def __call__(self, name: str, *, is_old: bool) -> bool: ...


def find_load_errors(given: LoadInput) -> Iterator[LoadError]:
    """Yield the errors by which dockerd would neither start nor take up a reload with a readable config."""
    yield from _find_missing_plugins(given)
    yield from _find_bad_registries(given)


def _find_bad_registries(given: LoadInput) -> Iterator[LoadError]:
    """Yield the entries of registries refused by dockerd at a start and at a reload.

    dockerd refuses the whole reload for a single bad entry, and does not take up our runtimes either. The
    entries themselves stay out of the error: the URL of a mirror may hold a password.
    """
    version = given.state.version
    is_old = version is not None and version < TAKES_PATHS
    rules: dict[str, _Rule] = {INSECURE: _is_bad_insecure_registry}
    if version is not None and version < IGNORES_ARTIFACTS:
        rules[ARTIFACTS] = _is_bad_registry
        rules[MIRRORS] = _is_bad_mirror
    for path, tree in given.trees.items():
        for key, is_bad in rules.items():
            entries = tree.get(key)
            if not isinstance(entries, list):
                continue
            for number, entry in enumerate(entries, 1):
                if isinstance(entry, str) and is_bad(entry, is_old=is_old):
                    yield LoadError(
                        f"{path} has in {key} an entry that dockerd refuses, number {number}",
                        f"correct {key} in {path}",
                    )


def _is_bad_insecure_registry(name: str, *, is_old: bool) -> bool:
    """Tell whether dockerd refuses an insecure registry; dockerd cuts off http:// and https://."""
    scheme, separator, rest = name.partition("://")
    if separator and scheme.lower() in SCHEMES:
        name = rest
    return _is_bad_registry(name, is_old=is_old)


def _is_bad_registry(name: str, *, is_old: bool) -> bool:
    """Tell whether dockerd refuses a registry: a host with or without a port, or a network."""
    try:
        if "/" in name:
            ip_network(name, strict=False)
        else:
            ip_address(name)
    except ValueError:
        pass
    else:
        return False
    if name.startswith("["):  # an address of IPv6, before 23 with a port only
        return is_old and name.endswith("]")
    registry = REGISTRY.fullmatch(name)
    if registry is None:
        return True
    port = int(registry[1] or 0)
    return port > MOST_PORTS


def _is_bad_mirror(name: str, *, is_old: bool) -> bool:
    """Tell whether dockerd before 28 refuses a mirror, named by its URL."""
    try:
        parts = urlsplit(name)
    except ValueError:
        return True
    if name != name.strip() or parts.scheme.lower() not in SCHEMES:
        return True
    if parts.query or parts.fragment or "@" in parts.netloc:
        return True
    host, _, port = parts.netloc.rpartition(":")
    if " " in parts.netloc or (host and not port.isdigit() and not port.endswith("]")):
        return True
    return is_old and parts.path not in {"", "/"}


def _find_missing_plugins(given: LoadInput) -> Iterator[LoadError]:
    """Yield the authorization plugins that do not run."""
    flags = {word.partition("=")[0] for word in given.words}
    if "--exec-root" in flags:
        return  # the sockets of the plugins are in another directory
    for path, tree in given.trees.items():
        names = tree.get(PLUGINS)
        if "exec-root" in tree or not isinstance(names, list):
            continue
        for name in names:
            if isinstance(name, str) and _is_missing(given.host, name):
                yield LoadError(
                    f"{path} names the authorization plugin {name}, which does not run",
                    f"start that plugin, or take it out of {PLUGINS} in {path}",
                )


def _is_missing(host: HostReader, name: str) -> bool:
    """Tell whether dockerd finds no plugin of a name; False if unknown."""
    sockets = RUN / "plugins"
    if host.kind(RUN) is Kind.ABSENT or not name or "/" in name:
        return False  # the directory is not mounted here, or the plugin is a managed one
    if any(MANAGED.fullmatch(each) for each in host.names(sockets)):
        return False  # a managed plugin may have that name
    for directory in SPEC_DIRECTORIES:
        for place in (directory, directory / name):
            if any(host.kind(place / f"{name}{ending}") is Kind.FILE for ending in (".spec", ".json")):
                return False
    return all(host.is_dead(place / f"{name}.sock") for place in (sockets, sockets / name))
