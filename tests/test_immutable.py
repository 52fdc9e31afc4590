"""A config with an attribute that keeps root from replacing it: chattr +i."""

import json

import pytest

from installer.host.files import FS_APPEND_FL, FS_IMMUTABLE_FL
from tests.support.attributes import attribute
from tests.support.neighbours import only_as_root
from tests.support.site import CONTAINERD, CRIO, DAEMON_JSON, LEDGER, TOOLKIT, Site, sentence


@only_as_root
@pytest.mark.parametrize(
    ("place", "flags"),
    [
        pytest.param(DAEMON_JSON, FS_IMMUTABLE_FL, id="the file is immutable"),
        pytest.param(DAEMON_JSON, FS_APPEND_FL, id="the file takes only more text"),
        pytest.param("etc/docker", FS_IMMUTABLE_FL, id="the directory is immutable"),
    ],
)
def test_an_immutable_config_is_refused_by_plan_and_install_before_the_first_step(
    clean: Site, place: str, flags: int
) -> None:
    with attribute(clean.root / place, flags):
        planned = clean.call("plan")
        refused = clean.refuses("install")

    reason = f"cannot write /{DAEMON_JSON} (an attribute of /{place} forbids it: lsattr shows i or a)"
    assert planned.returncode == 1
    assert f"install would stop: {reason}" in planned.stdout
    assert refused == f"{reason}; remove the attribute: chattr -i -a /{place}"


@only_as_root
def test_an_uninstall_names_the_attribute_last_and_what_it_has_undone_before(clean: Site) -> None:
    """Nor does it speak of a unit on the host: root cannot write there either."""
    original = clean.read(CONTAINERD)
    clean.install()

    with attribute(clean.root / DAEMON_JSON, FS_IMMUTABLE_FL):
        refused = clean.uninstall(code=4)
    reverted = clean.read(CONTAINERD)
    clean.uninstall()

    reason = f"cannot write /{DAEMON_JSON} (an attribute of /{DAEMON_JSON} forbids it: lsattr shows i or a)"
    assert sentence(refused) == f"{reason}; remove the attribute: chattr -i -a /{DAEMON_JSON}"
    events = [json.loads(line) for line in refused.stderr.splitlines()]
    assert [each["path"] for each in events[:-1]] == [f"/{CONTAINERD}", f"/{CRIO}"]
    assert reverted == original


@only_as_root
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_an_immutable_file_in_the_toolkit_is_refused_before_the_first_step(site: Site, verb: str) -> None:
    site.install()
    version = (site.root / TOOLKIT).resolve().relative_to(site.root)
    (site.root / version / "my").mkdir()
    own = site.write(f"{version}/my/own-file", "mine\n")
    (site.root / version / "nvidia-ctk").unlink()
    before = site.tree()

    with attribute(own, FS_IMMUTABLE_FL):
        refused = [site.call(verb) for _ in range(2)]

    after = site.tree()
    # A refused uninstall notes the reason in the ledger.
    assert {path for path in {*before, *after} if before.get(path) != after.get(path)} <= {LEDGER}
    assert [done.returncode for done in refused] == ([4, 4] if verb == "uninstall" else [1, 1])
    first, second = map(sentence, refused)
    reason = f"(an attribute of /{version}/my/own-file forbids it: lsattr shows i or a)"
    assert f"{reason}; remove the attribute: chattr -i -a /{version}/my/own-file" in first
    assert second == first
    assert site.call(verb).returncode == 0


@only_as_root
@pytest.mark.parametrize("verb", ["install", "uninstall"])
@pytest.mark.parametrize(
    "place", ["", "/.toolkit-installer", "/.toolkit-installer/versions", "/.toolkit-installer/backups"]
)
def test_an_immutable_directory_above_the_toolkit_is_refused_before_the_first_step(
    site: Site, place: str, verb: str
) -> None:
    site.write(DAEMON_JSON, "{}\n")
    site.install()
    version = (site.root / TOOLKIT).resolve().relative_to(site.root)
    (site.root / version / "nvidia-ctk").unlink()
    before = site.tree()
    directory = f"usr/local/nvidia{place}"

    with attribute(site.root / directory, FS_IMMUTABLE_FL):
        refused = site.call(verb)

    after = site.tree()
    assert {path for path in {*before, *after} if before.get(path) != after.get(path)} <= {LEDGER}
    assert refused.returncode == (4 if verb == "uninstall" else 1)
    reason = f"(an attribute of /{directory} forbids it: lsattr shows i or a)"
    assert sentence(refused).endswith(f"{reason}; remove the attribute: chattr -i -a /{directory}")
    assert site.call(verb).returncode == 0


@only_as_root
def test_an_owners_immutable_directory_is_not_replaced(site: Site) -> None:
    site.write(f"{TOOLKIT}/own-file", "mine\n")

    with attribute(site.root / TOOLKIT, FS_IMMUTABLE_FL):
        refused = site.refuses("install")

    assert f"chattr -i -a /{TOOLKIT}" in refused
