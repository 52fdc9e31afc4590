"""How the program is started: by the entry points that pyproject.toml names."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SCRIPTS: dict[str, str] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
# What a Python is told to be the program by NVIDIA's command line.
NVIDIAS = ("-m", SCRIPTS["nvidia-toolkit"].partition(":")[0])
