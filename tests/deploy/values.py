"""The chart's values as its README has them: a row for each, told by the comments of values.yaml."""

import json
import re
from collections.abc import Iterator

import yaml

from tests.deploy.helm import CHART

START = "| value | default | what it is |\n|---|---|---|\n"
_KEY = re.compile(r"^( *)(\w+):(.*)$")


def rows() -> list[tuple[str, str, str]]:
    """Return path, default and meaning of each value that has a comment."""
    text = (CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    return [(path, json.dumps(_at(defaults, path)), told) for path, told in _commented(text)]


def table() -> str:
    """Return the table of the README."""
    return START + "".join(f"| `{path}` | `{default}` | {told} |\n" for path, default, told in rows())


def _commented(text: str) -> Iterator[tuple[str, str]]:
    above, told = "", ""
    for line in text.splitlines():
        found = _KEY.match(line)
        if line.strip().startswith("# "):
            told = f"{told} {line.strip()[2:]}".strip()
        elif found and told:
            yield (f"{above}.{found[2]}" if found[1] else found[2]), told
            told = ""
        if found and not found[1]:
            above = found[2]


def _at(values: object, path: str) -> object:
    for name in path.split("."):
        assert isinstance(values, dict)
        values = values[name]
    return values
