"""The number of this version, from the one place that has it."""

import tomllib
from typing import Final

from tests.support.site import PROJECT

VERSION: Final[str] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
