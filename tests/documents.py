"""The commands that the documents tell people to type."""

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", *sorted(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md")))
CHART = "deploy/helm/node-toolkit-installer/README.md"
_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a console block, without what follows it as a comment."""

    document: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"


def commands() -> list[Command]:
    """Return every line of every console block, each once for each document."""
    found = {}
    for document in (*DOCUMENTS, CHART):
        for block in _BLOCK.findall((PROJECT / document).read_text()):
            for line in block.splitlines():
                command = Command(document, re.sub(r"\s+#.*", "", line).strip())
                found[str(command)] = command
    return list(found.values())


def starting(*words: str) -> list[Command]:
    """Return the commands that begin with one of ``words``, ``sudo`` aside."""
    return [each for each in commands() if each.text.removeprefix("sudo ").startswith(words)]


def anchors(document: Path) -> set[str]:
    """Return the names that a link into ``document`` may end in: its titles, and what it names itself."""
    text = document.read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = set(re.findall(r'<a id="([\w-]+)"></a>', text))
    return named | {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def version_rows() -> dict[str, tuple[str, str, str]]:
    """Return the matrix of docs/versions.md: what was run, edited only and not tried, by the first column."""
    matrix = (PROJECT / "docs/versions.md").read_text().partition("## ")[0]
    found = {}
    for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", matrix, re.MULTILINE):
        title, run, edited, untried = row
        found[title] = (run, edited, untried)
    return found
