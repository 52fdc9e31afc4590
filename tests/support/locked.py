"""What requirements.txt insists on: name, version and sums of each package that the image gets."""

import re
from typing import Final

from tests.support.site import PROJECT

ROWS: Final[list[tuple[str, str, str]]] = re.findall(
    r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
    (PROJECT / "requirements.txt").read_text(),
    re.MULTILINE,
)
