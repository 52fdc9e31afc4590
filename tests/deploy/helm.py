"""What ``helm template`` and ``helm upgrade`` say, by Helm's own library.

It is a program of its own, ``python -m tests.deploy.helm VERB JSON``: the library is written in Go, whose threads
would not survive the forks of other tests.
"""

import json
import sys
from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[2] / "deploy/helm/node-toolkit-installer"
RELEASE = "release"
NAMESPACE = "node-toolkit-installer"


def main(verb: str, given: str) -> int:
    """Print what a verb makes of ``given``, the values of ``--set``; return 1, the reason on stderr, if refused."""
    import helm_python as helm

    values = helm.parse_set_string(",".join(json.loads(given)))
    try:
        return _template(values, upgrade=verb == "upgrade")
    except helm.HelmError as error:
        print(error, file=sys.stderr)  # noqa: T201 - it is a program
        return 1


def _template(values: dict[str, Any], *, upgrade: bool) -> int:
    import helm_python as helm

    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name=RELEASE, namespace=NAMESPACE, is_upgrade=upgrade)
    for name in sorted(rendered):
        # The notes are text for people: as a document of their own they would not be YAML.
        text = json.dumps({"notes": rendered[name]}) if name.endswith("NOTES.txt") else rendered[name]
        print(f"---\n{text}")  # noqa: T201 - it is a program
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
