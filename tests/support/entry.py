"""How the program is called and started: the version and the entry points that pyproject.toml names."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_SAID = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
VERSION: str = _SAID["version"]
RELEASE, _, DEVELOPMENT = VERSION.partition(".dev")
# Helm takes semantic versions alone.
CHART_VERSION = f"{RELEASE}-dev{DEVELOPMENT}" if DEVELOPMENT else VERSION
SCRIPTS: dict[str, str] = _SAID["scripts"]
# What a Python is told to be the program by NVIDIA's command line.
NVIDIAS = ("-m", SCRIPTS["nvidia-toolkit"].partition(":")[0])
