"""The bill of materials names what the image gets of Python, with the same sums; `make sbom` writes it."""

import json

from tests.support.locked import ROWS
from tests.support.site import PROJECT
from tests.support.version import VERSION

BILL = json.loads((PROJECT / "images/sbom.cdx.json").read_text())


def _sums(component: dict[str, list[dict[str, list[dict[str, str]]]]]) -> set[str]:
    return {each["content"] for place in component["externalReferences"] for each in place["hashes"]}


def test_the_bill_has_every_package_of_the_image_and_no_other() -> None:
    listed = {each["purl"] for each in BILL["components"]}

    assert BILL["bomFormat"] == "CycloneDX"
    assert listed == {f"pkg:pypi/{name}@{version}" for name, version, _ in ROWS}


def test_the_bill_has_the_sums_that_the_image_is_built_with() -> None:
    found = {each["name"]: _sums(each) for each in BILL["components"]}

    assert found == {
        name: set(hashes.replace("--hash=sha256:", "").replace("\\", "").split()) for name, _, hashes in ROWS
    }


def test_the_bill_is_of_this_version() -> None:
    program = BILL["metadata"]["component"]

    assert (program["name"], program["version"]) == ("node-toolkit-installer", VERSION)
    assert "timestamp" not in BILL["metadata"], "the same bill twice is the same file"
