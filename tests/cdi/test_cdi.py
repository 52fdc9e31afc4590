"""The CDI specification for management containers, as nvidia-ctk is asked for it."""

from pathlib import Path, PurePosixPath

import pytest

from installer.cdi.generate import management_specification
from installer.model.files import Layout
from installer.model.options import Cdi

# Says what it was given, and with which words it was called.
TOOL = '#!/bin/sh\ntest "$2" = transform && cat\necho "$*"\n'


@pytest.mark.parametrize(
    ("local", "transformed"),
    [
        pytest.param(("/run/driver", "/"), [], id="the host's own paths"),
        pytest.param(("/host/run/driver", "/"), ["--from=/host/run/driver --to=/run/driver"], id="one moved"),
        pytest.param(
            ("/host/run/driver", "/host"),
            ["--from=/host/run/driver --to=/run/driver", "--from=/host --to=/"],
            id="both moved",
        ),
        pytest.param(
            ("/run/driver", "/run/driver"), ["--from=/run/driver/dev --to=/dev"], id="one here, and two there"
        ),
    ],
)
def test_paths_are_made_the_hosts_only_where_they_are_others_here(
    tmp_path: Path, local: tuple[str, str], transformed: list[str]
) -> None:
    tool = tmp_path / "usr/bin/nvidia-ctk"
    tool.parent.mkdir(parents=True)
    tool.write_text(TOOL)
    tool.chmod(0o755)
    layout = Layout(PurePosixPath("/usr/local/nvidia"))
    cdi = Cdi(
        PurePosixPath("/var/run/cdi"), "nvidia.com/x", "/run/driver", local[0], "/", local[1], nodes=False
    )

    said = management_specification(PurePosixPath(tmp_path), layout, cdi).splitlines()

    assert said[0].startswith(
        f"cdi generate --mode=management --driver-root={local[0]} --dev-root={local[1]} "
    )
    assert said[1:] == [f"cdi transform root {words}" for words in transformed]
