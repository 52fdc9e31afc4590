"""The texts we install, as files to read: `make golden` rewrites them."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from installer.model.facts import DriverFacts
from installer.model.files import Artifact, PayloadFile, Text
from installer.model.options import ToolkitConfig
from installer.payload.config_toml import config_tree, render_config
from installer.payload.files import CONFIG, REQUIRED, list_payload
from tests.support.golden import golden

GOLDEN = Path(__file__).parents[1] / "golden" / "toolkit"
TOOLKIT = PurePosixPath("/usr/local/nvidia/toolkit")
ODD_TOOLKIT = PurePosixPath("/opt/it's $(here)/toolkit")
ALL_ASKED = ToolkitConfig(
    accept_envvar_when_unprivileged=False,
    accept_volume_mounts=True,
    cli_debug="/var/log/cli.log",
    runtime_debug="/var/log/runtime.log",
    log_level="debug",
    mode="cdi",
    cdi_default_kind="management.nvidia.com/gpu",
    cdi_annotation_prefixes=(),
    skip_mode_detection=False,
    features=("disable-imex-channel-creation", "nested.b", "nested.a"),
)


def installed(toolkit_dir: PurePosixPath, low_level: tuple[str, ...]) -> tuple[PayloadFile, ...]:
    artifacts = [Artifact(name, name, PurePosixPath("/src", name), 1, 0o755, "00", b"") for name in REQUIRED]
    config_text = config(ToolkitConfig(), toolkit_dir, low_level)
    return list_payload(artifacts, toolkit_dir=toolkit_dir, low_level=low_level, config_text=config_text)


def config(
    options: ToolkitConfig,
    toolkit_dir: PurePosixPath = TOOLKIT,
    low_level: tuple[str, ...] = ("runc", "crun"),
    driver: DriverFacts = DriverFacts(),  # noqa: B008 - it is frozen
) -> str:
    return render_config(config_tree(options, driver, toolkit_dir=toolkit_dir, low_level=low_level))


def texts() -> Mapping[str, str]:
    wrappers = {
        str(file.path): file.content
        for file in installed(TOOLKIT, ("runc", "crun"))
        if isinstance(file, Text) and file.path != CONFIG
    }
    odd = {
        f"{file.path}-in-an-odd-directory": file.content
        for file in installed(ODD_TOOLKIT, ("/opt/it's runc/crun", "runc"))
        if isinstance(file, Text) and file.path.name in {"nvidia-container-runtime", "nvidia-container-cli"}
    }
    return {
        **wrappers,
        **odd,
        "config-default.toml": config(ToolkitConfig()),
        "config-all-asked.toml": config(
            ALL_ASKED, ODD_TOOLKIT, ("/opt/it's runc/crun", "runc", "crun"), DriverFacts("/d/")
        ),
        "config-driver-on-the-host-debian.toml": config(
            ToolkitConfig(), driver=DriverFacts("/", ldconfig_real=True)
        ),
        "config-suse.toml": config(ToolkitConfig(), driver=DriverFacts(suse=True)),
    }


@pytest.mark.parametrize("name", sorted(texts()))
def test_the_text_is_the_golden_one(name: str) -> None:
    text = texts()[name]

    assert text == golden(GOLDEN / name, text)


def test_every_golden_file_has_its_text() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(texts())
