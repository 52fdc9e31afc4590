"""docs/doctor.md, made of the table."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from installer.decide.doctor import CHECKS
from installer.decide.doctor.holes import TABLE_DATE
from installer.decide.doctor.model import Check

HEAD: Final = f"""\
# doctor: what is wrong with this node

`toolkit-installer doctor` looks at a node, installed or not, and changes nothing: it writes no file, takes no lock and starts no engine.
It takes a few seconds. Each line is `ok`, `warn` or `bad`, with what was found and what to do; `n/a` is what does not apply, or what nobody
can tell from where it was called. It exits 1 if a line is bad, 0 otherwise; `--json` has the same for programs.

It is a report of what is seen, and of the reports that look the same: the same words may have another cause on your node. Versions are asked
of the programs themselves. Only processes and programs of root's are believed, and each question has an end. In a pod it needs the
host's root, `/proc` included: root with all capabilities, with or without the host's pid namespace, sees what it sees on the node. The DaemonSet's pod has
fewer capabilities: it sees which processes run and not their programs, so that the checks of shims and of the versions of running programs are `n/a` there.
For those say it on the node itself, or in a privileged pod ([how](deploy.md#questions)). Where no process of the host is in view, each check says so.

This page is generated from the table in `installer/decide/doctor/`; the known holes in it are of {TABLE_DATE}.
"""


def document() -> str:
    """Return the page."""
    return HEAD + "".join(_sections()) + f"\n{len(CHECKS)} checks.\n"


def _sections() -> Iterator[str]:
    for group, checks in groupby(CHECKS, key=lambda check: check.group):
        yield f"\n## {group}\n\n| check | looks at | wrong when | remedy | seen in |\n|---|---|---|---|---|\n"
        yield from map(_row, checks)


def _row(check: Check) -> str:
    cells = (f"`{check.name}`", check.looks_at, check.wrong_when, check.remedy, ", ".join(check.seen) or "-")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
