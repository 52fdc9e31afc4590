"""Fetch pip's wheel where Python has no ensurepip, as on Debian without python3-venv.

The Makefile runs this with the machine's own Python, which has the standard library and nothing else. One file of 2 MB is
fetched from the Python index, in one version and with one sum; nothing is installed on the machine.
"""

import hashlib
import json
import os
import re
import ssl
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urljoin
from urllib.request import Request, urlopen

BILL: Final = Path(__file__).parents[2] / "images/sbom.cdx.json"
VERSION: Final = "26.3"
NAME: Final = f"pip-{VERSION}-py3-none-any.whl"
DIGEST: Final = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
ANSWER_S: Final = 60.0


def find_index() -> str:
    """Return ``PIP_INDEX_URL``, as pip does, else the index that the bill of materials names."""
    named = os.environ.get("PIP_INDEX_URL")
    if named:
        return named
    component = json.loads(BILL.read_text())["components"][0]
    page: str = component["externalReferences"][0]["url"]
    return page.removesuffix(f"{component['name']}/")


def fetch(index: str, name: str = NAME, digest: str = DIGEST) -> bytes:
    """Return the file ``name`` of the project pip, as an index lists it.

    Raises:
        OSError: the index, or the place that it names, does not answer.
        ValueError: the index lacks the file, or the file has another SHA-256 than ``digest``.
    """
    page = f"{index.rstrip('/')}/pip/"
    listed = _read(page).decode()
    link = re.search(rf'href="([^"#]*{re.escape(name)})["#]', listed)
    if link is None:
        raise ValueError(f"{page} does not list {name}")
    address = urljoin(page, link[1])
    content = _read(address)
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise ValueError(f"{address} has the sum {found}, expected {digest}")
    return content


def _read(address: str) -> bytes:
    if not address.startswith(("http://", "https://")):
        raise ValueError(f"{address} is no address of an index")
    trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = Request(address, headers={"Accept": "text/html"})  # noqa: S310 - the scheme is checked
    with urlopen(request, timeout=ANSWER_S, context=trusted) as answer:  # noqa: S310 - likewise
        content: bytes = answer.read()
    return content


def main(directory: Path) -> int:
    """Put the wheel into ``directory`` and print its path, which Python can run as it is: ``WHEEL/pip``."""
    path = directory / NAME
    try:
        path.write_bytes(fetch(find_index()))
    except (OSError, ValueError) as error:
        sys.stderr.write(
            f"cannot fetch pip ({error}); install python3-venv, or name a Python index in PIP_INDEX_URL\n"
        )
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
