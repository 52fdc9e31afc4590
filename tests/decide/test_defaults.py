"""What a thing says of itself where nobody has said anything: a claim is false until somebody makes it."""

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import installer

# Of these the usual case is the true one; the two of the toolkit's config are so in NVIDIA's own.
TRUE = {
    "ConfigChange.saved",
    "Effect.ready",
    "Entry.owned",
    "Node.sees_host",
    "ToolkitConfig.accept_envvar_when_unprivileged",
    "ToolkitConfig.skip_mode_detection",
}


def _claims() -> dict[str, Any]:
    """Return the claims of all classes of data that are made in ``decide`` and ``record``, with their defaults."""
    top = Path(inspect.getfile(installer)).parent
    found = {}
    for floor in ("decide", "record"):
        for path in (top / floor).rglob("*.py"):
            module = import_module(
                ".".join(path.relative_to(top.parent).with_suffix("").parts).removesuffix(".__init__")
            )
            for cls in vars(module).values():
                known = ("__defaults__", "_field_defaults")  # of our own classes, of named tuples
                defaults = next(
                    (getattr(cls, each) for each in known if inspect.isclass(cls) and hasattr(cls, each)),
                    None,
                )
                for name, value in (defaults or {}).items():
                    if isinstance(value, bool):
                        found[f"{cls.__name__}.{name}"] = value
    return found


def test_a_claim_is_false_until_somebody_makes_it() -> None:
    found = _claims()

    assert len(found) > 40
    assert {name for name, value in found.items() if value} == TRUE
