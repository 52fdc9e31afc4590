"""docs/compatibility.md is what nvidia.toml and differences.toml say, and every defect in it has a test that is there."""

import re
from functools import cache
from typing import Any

from installer.cli.nvidia_flags import Row, rows
from tests.conftest import defects, differences
from tests.support.entry import PROJECT
from tests.support.golden import golden

DOCUMENT = PROJECT / "docs/compatibility.md"
HEAD = """\
# Compatibility with NVIDIA's installer

`nvidia-toolkit` and `nvidia-ctk-installer` accept the command line and environment of NVIDIA's nvidia-ctk-installer v1.20.0,
and of container-config's nvidia-toolkit of 2021. `--help` explains the flags. `make golden` makes this page from
`installer/cli/nvidia.toml` and `tests/compat/differences.toml`. The latter lists 39 defects of NVIDIA's tool, each with the test that ours lacks it.

## Grammar

- `--x=v`, `--x v` and `-x=v` are the same. A bool takes no following word. The command line wins over the environment.
- The first variable that is set counts, even if it is empty. Bools are 1 t T TRUE true True, 0 f F FALSE false False.
- Lists have commas, and a flag may be repeated. Every error is one sentence with exit code 1, and changes nothing.
- Unknown variables are ignored; one that looks like a misspelling causes a warning.

## Flags

Flags that are not listed here are as NVIDIA's; `--help` shows all, with their variables.

| flag | variables | default | difference |
|---|---|---|---|
"""
MIDDLE = """
## Defects of NVIDIA's tool

"""

REST = """
## What else differs

| | NVIDIA's tool | ours |
|---|---|---|
"""


def _flag_line(row: Row) -> str:
    names = ", ".join(f"`{'--' if len(name) > 1 else '-'}{name}`" for name in row.names)
    variables = ", ".join(f"`{name}`" for name in row.env)
    cells = (names, variables, _default(row), row.ours)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(row: Row) -> str:
    if isinstance(row.default, dict):
        return ", ".join(f"{engine} `{value}`" for engine, value in row.default.items() if value)
    if isinstance(row.default, list):
        return ", ".join(f"`{item}`" for item in row.default)
    return f"`{str(row.default).lower()}`" if row.default != "" else ""


def _defect_line(defect: dict[str, Any]) -> str:
    anchor = f'<a id="{defect["id"].lower()}"></a>'
    return " ".join((f"- {anchor}{defect['id']}: {defect['what']}", defect.get("why", ""))).strip() + "\n"


def _difference_line(row: dict[str, Any]) -> str:
    cells = (row["where"], row["theirs"], row["ours"])
    return "| " + " | ".join(cell.replace("<", "&lt;").replace("|", "\\|") for cell in cells) + " |\n"


@cache
def _cited() -> frozenset[str]:
    """Return the anchors of this page that the code leads to."""
    texts = (path.read_text() for path in (PROJECT / "installer").rglob("*.py"))
    return frozenset(anchor for text in texts for anchor in re.findall(r"compatibility\.md#(d\d+)", text))


def rendered() -> str:
    """Return the document."""
    rest = REST + "".join(map(_difference_line, differences()))
    flags = "".join(_flag_line(row) for row in rows() if row.ours)
    named = "".join(
        _defect_line(each) for each in defects() if "why" in each or each["id"].lower() in _cited()
    )
    return HEAD + flags + MIDDLE + named + rest


def test_the_document_says_what_the_data_says() -> None:
    assert golden(DOCUMENT, rendered()) == rendered()


def test_each_row_is_there_once_and_whole_and_a_defect_has_a_test_or_a_reason() -> None:
    assert [defect["id"] for defect in defects()] == [f"D{number}" for number in range(1, 40)]
    assert [each["id"] for each in defects() if bool(each.get("tests")) == bool(each.get("why"))] == []
    assert all(row.keys() - {"tests"} == {"where", "theirs", "ours"} for row in differences())
    assert len({row["where"] for row in differences()}) == len(differences())


def test_the_document_names_what_ours_adds_and_what_it_refuses() -> None:
    written, readiness = (_row_of(name) for name in ("Written besides", "Readiness"))
    install_dir = next(
        line for line in DOCUMENT.read_text().splitlines() if "`--toolkit-install-dir`" in line
    )

    assert "`toolkit.pid.options`" in written
    assert "`--no-runtime-config`" in readiness
    assert "has .. is refused" in install_dir


def _row_of(where: str) -> str:
    """Return the line of the table of what else differs."""
    (line,) = (line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| {where} |"))
    return line
