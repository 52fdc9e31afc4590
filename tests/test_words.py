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


# Words of the whole file. A number goes up only where another goes down.
WORDS = {
    "README.md": 750,
    "CONTRIBUTING.md": 1790,
    "docs/compatibility.md": 1795,
    "docs/deploy.md": 2890,
    "docs/doctor.md": 1825,
    "docs/engine-facts.md": 2200,
    "docs/gpu-operator.md": 775,
    "docs/host.md": 1070,
    "docs/metrics.md": 1050,
    "docs/modes.md": 750,
    "docs/nri.md": 875,
    "docs/reference.md": 2980,
    "docs/security-host.md": 700,
    "docs/security.md": 1000,
    "docs/troubleshooting.md": 3670,
    "docs/verify.md": 250,
}


TOGETHER, MEAN, LONGEST = 24_000, 14, 30  # words of all documents; words of a sentence


@pytest.mark.parametrize("document", WORDS)
def test_a_document_is_short_and_plain(document: str) -> None:
    words, mean, longest = figures(document)

    assert words <= WORDS[document]
    assert mean <= MEAN
    assert longest <= LONGEST


def test_all_documents_together_are_short() -> None:
    assert WORDS.keys() == {*DOCUMENTS, "CONTRIBUTING.md"}
    assert sum(figures(document)[0] for document in WORDS) <= TOGETHER
