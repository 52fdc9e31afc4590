"""Directories of the host by --mount: a wrong one is refused, and no later verb loses what it cannot see."""

from pathlib import Path

import pytest

from tests.support.site import Site

DOCKER = "etc/docker"


def mount(place: Path) -> tuple[str, str]:
    return "--mount", f"/{DOCKER}={place}"


@pytest.mark.parametrize("verb", ["plan", "install", "run", "uninstall"])
def test_a_mount_without_its_directory_is_refused_before_the_first_step(site: Site, verb: str) -> None:
    missing = site.root.parent / "missing"

    refused = site.refuses(verb, *mount(missing), code=2)

    assert refused == f"cannot use --mount /{DOCKER}={missing} (there is no directory {missing}); correct it"
    assert not missing.exists()
