"""What a thing says of itself where nobody has said anything: a claim is false until somebody makes it."""

import dataclasses
import inspect
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

import installer

# Of these the usual case is the true one; the two of the toolkit's config are so in NVIDIA's own.
TRUE = {
    "EffectiveConfig.ready",
    "Entry.owned",
    "Node.sees_host",
    "ToolkitConfig.accept_envvar_when_unprivileged",
    "ToolkitConfig.skip_mode_detection",
}


def _claims() -> dict[str, Any]:
    """Return the claims of all classes of data that are made in the rooms, with their defaults."""
    top = Path(inspect.getfile(installer)).parent
    found = {}
    for room in ("model", "engines", "payload", "cdi", "nri", "change", "lifecycle", "report/doctor"):
        for path in (top / room).rglob("*.py"):
            module = import_module(
                ".".join(path.relative_to(top.parent).with_suffix("").parts).removesuffix(".__init__")
            )
            for cls in filter(inspect.isclass, vars(module).values()):
                fields = getattr(cls, "_field_defaults", {})  # of a named tuple
                if is_dataclass(cls):
                    fields = {each.name: each.default for each in dataclasses.fields(cls)}
                if issubclass(cls, Struct):
                    defaults = cls.__struct_defaults__  # of the last fields
                    fields = dict(zip(cls.__struct_fields__[-len(defaults) :], defaults, strict=False))
                for name, value in fields.items():
                    if isinstance(value, bool):
                        found[f"{cls.__name__}.{name}"] = value
    return found


def test_a_claim_is_false_until_somebody_makes_it() -> None:
    found = _claims()

    assert len(found) > 40
    assert {name for name, value in found.items() if value} == TRUE
