"""A node whose containerd is the fake one: where it is told what to do, and what an install by it leaves."""

from pathlib import Path

from tests.engines.payload import ARTIFACTS

FAKE = (Path(__file__).parent / "fake_containerd.py").read_text()
BEHAVIOUR = "/run/fake/behaviour"
INSTALL = ("install", "--runtime", "containerd", "--toolkit-source", ARTIFACTS, "--timeout", "5")
LEFT = {
    "/usr/local/nvidia",
    "/usr/local/nvidia/.toolkit-installer",
    "/usr/local/nvidia/.toolkit-installer/ledger",
    "/usr/local/nvidia/.toolkit-installer/lock",
}
