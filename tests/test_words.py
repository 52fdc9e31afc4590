"""The documents stay short and plain.

``words`` are all words of the file, as ``wc -w`` counts them. Sentences are those of the prose: titles, code blocks,
tables and comments are left out, a link counts as its text, and `code` as its words. A sentence ends with a full stop,
a question mark or an exclamation mark, and where its paragraph or list item ends; not at a colon or a semicolon.
"""

import re

import pytest

from tests.documents import DOCUMENTS, PROJECT

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_END = re.compile(r"(?<=[.!?])[)*_\"]*\s+")
_WORD = re.compile(r"\w")


def sentences(text: str) -> list[str]:
    """Return the sentences of the prose of a document."""
    text = _FENCE.sub("\n\n", text)
    text = re.sub(r"<!--.*?-->|<a id=.*?></a>", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(\||#).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^ *([-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    code = re.compile(r"`[^`]*`")
    text = code.sub(lambda found: re.sub(r"[.!?]", "_", found.group()), text)
    found = [
        part for paragraph in re.split(r"\n\s*\n", text) for part in _END.split(" ".join(paragraph.split()))
    ]
    return [sentence for sentence in found if _WORD.search(sentence)]


def figures(document: str) -> tuple[int, float, int]:
    """Return the words of a document, the mean of its sentences, and the longest."""
    text = (PROJECT / document).read_text()
    lengths = [sum(bool(_WORD.search(word)) for word in each.split()) for each in sentences(text)]
    return len(text.split()), sum(lengths) / len(lengths), max(lengths)


# Words of the whole file, mean words of its sentences, words of the longest. Numbers only go down.
LIMITS = {
    "README.md": (750, 14, 30),
    "CONTRIBUTING.md": (1800, 14, 30),
    "docs/compatibility.md": (2050, 14, 30),
    "docs/deploy.md": (3000, 14, 30),
    "docs/doctor.md": (1850, 14, 30),
    "docs/engine-facts.md": (2300, 14, 30),
    "docs/gpu-operator.md": (850, 14, 30),
    "docs/host.md": (1050, 14, 30),
    "docs/metrics.md": (1150, 14, 30),
    "docs/modes.md": (800, 14, 30),
    "docs/nri.md": (900, 14, 30),
    "docs/reference.md": (2700, 14, 30),
    "docs/security-host.md": (700, 14, 30),
    "docs/security.md": (1000, 14, 30),
    "docs/troubleshooting.md": (3650, 14, 30),
    "docs/verify.md": (300, 14, 30),
}


@pytest.mark.parametrize("document", [*DOCUMENTS, "CONTRIBUTING.md"])
def test_a_document_is_short_and_plain(document: str) -> None:
    found = figures(document)

    assert [limit for limit, figure in zip(LIMITS[document], found, strict=True) if figure > limit] == [], (
        found
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "# A title\n\nOne two. Three `a. b`\nfour?\n", ["One two.", "Three `a_ b` four?"], id="prose"
        ),
        pytest.param("One:\n\n- two\n- three. Four\n", ["One:", "two", "three.", "Four"], id="a list"),
        pytest.param(
            "| a | b |\n|---|---|\n\n```text\nx. y\n```\nEnd [it](README.md).\n", ["End it."], id="the rest"
        ),
    ],
)
def test_sentences_are_those_of_the_prose(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
