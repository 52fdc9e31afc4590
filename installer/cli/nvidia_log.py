"""The log of NVIDIA's command line: a line that scripts wait for, and remedies with NVIDIA's flags."""

from typing import Final

from installer.cli import log as logging
from installer.cli.nvidia_flags import spell_option

# Scripts wait for this line of NVIDIA's tool.
EVENTS: Final = {"waiting for a signal": "Waiting for signal"}


def configure(log_format: str) -> None:
    """Write events from here on in ``log_format``, a value of ``--log-format``."""
    logging.configure(log_format, spoken=EVENTS, spelling=spell_option)
