"""docs/doctor.md is what checks.toml says."""

from collections.abc import Iterator
from pathlib import Path

from installer.report.doctor import programs, system
from installer.report.doctor.verb import CHECKS, TABLE
from tests.support.golden import golden

PAGE = Path(__file__).parents[2] / "docs/doctor.md"
VALUES = {"date": programs.TABLE_DATE, "full": system.FULL, "nearly": system.NEARLY}
HEAD = """\
# doctor: what is wrong with this node

`toolkit-installer doctor` looks at a node, installed or not, and changes nothing: it writes no file, takes no lock and starts no engine.
It takes a few seconds. Each line is `ok`, `warn` or `bad`, with what was found and what to do; `n/a` is what does not apply, or what nobody
can tell from where it was called. It exits 1 if a line is bad, 0 otherwise; `--json` has the same for programs.

It is a report of what is seen, and of the reports that look the same: the same words may have another cause on your node. Versions are asked
of the programs themselves. Only processes and programs of root's are believed, and each question has an end. In a pod it needs the
host's root, `/proc` included: root with all capabilities, with or without the host's pid namespace, sees what it sees on the node. The DaemonSet's pod has
fewer capabilities: it sees which processes run and not their programs, so that the checks of shims and of the versions of running programs are `n/a` there.
For those say it on the node itself, or in a privileged pod ([how](deploy.md#questions)). Where no process of the host is in view, each check says so.

This page is generated from the table in `installer/report/doctor/`; the known holes in it are of {date}.
"""


def rendered() -> str:
    """Return the page."""
    return HEAD.format(**VALUES) + "".join(_lines()) + f"\n{len(CHECKS)} checks.\n"


def _lines() -> Iterator[str]:
    for group, rows in TABLE["checks"].items():
        yield f"\n## {group}\n\n| check | looks at | wrong when | remedy | seen in |\n|---|---|---|---|---|\n"
        for name, row in rows.items():
            texts = (row["looks_at"], row["wrong_when"].format(**VALUES), row["remedy"])
            cells = (f"`{name}`", *texts, ", ".join(row.get("seen", ())) or "-")
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def test_the_page_is_what_the_table_says() -> None:
    assert golden(PAGE, rendered()) == rendered()
