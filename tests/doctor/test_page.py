"""docs/doctor.md is what checks.toml says."""

from collections.abc import Iterator
from pathlib import Path

from installer.report.doctor import programs, system
from installer.report.doctor.verb import CHECKS, TABLE
from tests.support.golden import golden

PAGE = Path(__file__).parents[2] / "docs/doctor.md"
VALUES = {"date": programs.TABLE_DATE, "full": system.FULL, "nearly": system.NEARLY}
HEAD = """\
# doctor: checks of a node

```console
sudo toolkit-installer doctor
```

`doctor` checks a node, installed or not, in a few seconds, and changes nothing. Lines that are `bad` or `warn` come first, with a
remedy and similar public reports; on your node the cause may be another. `--all` also shows lines that are `n/a`: the check does not apply, or is not possible from here. Exit
code 1: a line is `bad`. `--json` is for programs.

In a pod `doctor` needs the host's root with `/proc`. The checks of shims and of running versions need all capabilities; the DaemonSet's pod has four, so there they are
`n/a`. Run them on the node or in a privileged pod: [how](deploy.md#questions).

This page is made from `installer/report/doctor/checks.toml`. Its table of known defects is of {date}.
"""


def rendered() -> str:
    """Return the page."""
    return HEAD.format(**VALUES) + "".join(_lines()) + f"\n{len(CHECKS)} checks.\n"


def _lines() -> Iterator[str]:
    for group, rows in TABLE["checks"].items():
        yield f"\n## {group}\n\n| check: looks at | wrong when |\n|---|---|\n"
        for name, row in rows.items():
            cells = (f"`{name}`: {row['looks_at']}", row["wrong_when"].format(**VALUES))
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def test_the_page_is_what_the_table_says() -> None:
    assert golden(PAGE, rendered()) == rendered()
