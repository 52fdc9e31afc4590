"""What programs are told, as docs/ publishes it, is made of the types that are told."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import schema_components

from installer.cli.output import PlanDocument
from installer.report.status import StatusDocument
from tests.support.golden import golden

DOCS = Path(__file__).parent.parent / "docs"
DOCUMENTS = {"plan": PlanDocument, "status": StatusDocument}


def _inline(schema: Any, types: dict[str, Any]) -> Any:
    """Return a schema that stands by itself: each type where it is used, without its name in the program."""
    if isinstance(schema, list):
        return [_inline(each, types) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = _inline(types[schema["$ref"].rpartition("/")[2]], types)
        return {name: value for name, value in named.items() if name != "title"}
    return {name: _inline(value, types) for name, value in schema.items()}


@pytest.mark.parametrize("verb", DOCUMENTS)
def test_the_published_schema_is_that_of_the_type(verb: str) -> None:
    (schema,), types = schema_components([DOCUMENTS[verb]])
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"toolkit-installer {verb} --json",
    }
    text = json.dumps(head | _inline(schema, types), indent=2) + "\n"

    assert golden(DOCS / f"{verb}.schema.json", text) == text
