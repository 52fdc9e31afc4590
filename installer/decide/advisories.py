"""Known holes of NVIDIA's container toolkit, by the version that closed them."""

from typing import Final

Version = tuple[int, ...]

# NVIDIA's security bulletins of the container toolkit.
FIXED_IN: Final[tuple[tuple[Version, tuple[str, ...]], ...]] = (
    ((1, 17, 8), ("CVE-2025-23266", "CVE-2025-23267")),
    ((1, 17, 4), ("CVE-2025-23359",)),
    ((1, 17, 3), ("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137")),
    ((1, 17, 0), ("CVE-2024-0134",)),
    ((1, 16, 2), ("CVE-2024-0132", "CVE-2024-0133")),
)


def advice(version: Version | None) -> tuple[str, ...]:
    """Return a sentence where a toolkit of this version has known holes; none where nobody knows it."""
    if version is None:
        return ()
    holes = [name for fixed, names in FIXED_IN if version < fixed for name in names]
    if not holes:
        return ()
    text = ".".join(map(str, version))
    safe = ".".join(map(str, max(fixed for fixed, _ in FIXED_IN)))
    return (f"the toolkit {text} has known holes ({', '.join(holes)}): install {safe} or later",)
