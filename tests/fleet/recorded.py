"""What a real API server answered, step by step (recorded.json), and what is compared of an answer.

``@uid``, ``@version`` and ``@old-version`` in a request stand for those of the Lease that it names, as the server
gave them last; in an answer they and ``@time`` stand for what differs from one server to the next.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

RECORDED = Path(__file__).parent / "recorded.json"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Step(NamedTuple):
    """One request, who made it, and what the server answered."""

    name: str
    user: str
    method: str
    path: str
    body: Any
    code: int
    answer: Any


def load() -> list[Step]:
    """Return the steps in the order in which they were recorded."""
    return [Step(**step) for step in json.loads(RECORDED.read_text())["steps"]]


class Identities:
    """The uids and versions that one server has given to its objects."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._versions: dict[str, list[str]] = {}

    def fill(self, body: Any) -> Any:
        """Return a request with this server's own values in the place of the names for them."""
        if body is None:
            return None
        name = body["metadata"]["name"]
        versions = self._versions.get(name, ["0", "0"])
        text = json.dumps(body).replace("@uid", self._uids.get(name, "")).replace("@version", versions[-1])
        return json.loads(text.replace("@old-version", versions[0]))

    def learn(self, answer: Any) -> None:
        """Remember what an answer says of an object."""
        if not isinstance(answer, dict) or answer.get("kind") != "Lease":
            return
        metadata = answer["metadata"]
        if self._uids.get(metadata["name"]) != metadata["uid"]:
            self._versions[metadata["name"]] = []
        self._uids[metadata["name"]] = metadata["uid"]
        self._versions[metadata["name"]].append(metadata["resourceVersion"])

    def blank(self, answer: Any) -> Any:
        """Return an answer without what differs from one server to the next."""
        if not isinstance(answer, dict):
            return answer
        text = json.dumps(_drop_managed(answer))
        for uid in self._uids.values():
            text = text.replace(uid, "@uid")
        text = re.sub(r'"resourceVersion": "\d+"', '"resourceVersion": "@version"', text)
        return json.loads(_TIME.sub("@time", text))


def _drop_managed(value: Any) -> Any:
    """Return an answer without the notes of who has set which field: nothing here reads or sends them."""
    if isinstance(value, dict):
        return {key: _drop_managed(part) for key, part in value.items() if key != "managedFields"}
    if isinstance(value, list):
        return [_drop_managed(part) for part in value]
    return value
