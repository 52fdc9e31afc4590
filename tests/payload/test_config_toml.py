"""What config.toml says, and what becomes of an administrator's edits to it."""

import re
import tomllib
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from installer.errors import InstallerError
from installer.model.facts import DriverFacts
from installer.model.options import ToolkitConfig
from installer.payload.config_toml import carry_over, config_tree, render_config
from tests.change.golden import GOLDEN
from tests.support.golden import golden

NAME = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"


def rendered(
    config: ToolkitConfig | None = None,
    *,
    low_level: tuple[str, ...] = ("runc", "crun"),
    driver: DriverFacts | None = None,
    toolkit_dir: str = "/usr/local/nvidia/toolkit",
    before: str = "",
) -> str:
    tree = config_tree(
        config or ToolkitConfig(),
        driver or DriverFacts(),
        toolkit_dir=PurePosixPath(toolkit_dir),
        low_level=low_level,
    )
    return render_config(tree, before)


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
IN_AN_ODD_PLACE = rendered(
    ALL_ASKED,
    low_level=("/opt/it's runc/crun", "runc", "crun"),
    driver=DriverFacts("/d/"),
    toolkit_dir="/opt/it's $(here)/toolkit",
)


# `make golden` rewrites them.
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("default", rendered()),
        ("all-asked", IN_AN_ODD_PLACE),
        ("driver-on-the-host-debian", rendered(driver=DriverFacts("/", ldconfig_real=True))),
        ("suse", rendered(driver=DriverFacts(suse=True))),
    ],
)
def test_the_text_is_the_golden_one(name: str, text: str) -> None:
    assert text == golden(GOLDEN / f"toolkit/config-{name}.toml", text)


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
DEFAULT = rendered()
CHANGED = rendered(
    ToolkitConfig(mode="cdi", log_level="debug", features=("f",)), low_level=("/usr/bin/crun",)
)
CLI, RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"


def with_edit(old: str, new: str) -> str:
    """Return the default text with one place of it, which ``old`` matches, as an administrator has made it."""
    text, count = re.subn(old if old.startswith("\\") else re.escape(old), lambda _: new, DEFAULT, count=1)
    assert count == 1
    return text


@pytest.mark.parametrize(
    ("before", "stays"),
    [
        (f"# A line that we do not write any more\n{DEFAULT}", True),
        (CHANGED, False),
        ("no TOML", False),
        (DEFAULT.replace("load-kmods = true", "load-kmods = 1"), False),
        (DEFAULT + "\n[more]\nkey = 1\n", False),
    ],
    ids=["of another version", "of other flags", "no TOML", "another type", "more than is wanted"],
)
def test_a_text_is_rendered_anew_unless_it_says_what_is_wanted(before: str, *, stays: bool) -> None:
    assert rendered(before=before) == (before if stays else DEFAULT)


@pytest.mark.parametrize("features", [("a", "a.b"), ("a.b", "a")])
def test_a_feature_inside_another_is_refused(features: tuple[str, ...]) -> None:
    with pytest.raises(InstallerError, match=r"features a and a\.b .*to a alone, or to a\.b alone"):
        rendered(ToolkitConfig(features=features))


@given(
    st.builds(
        ToolkitConfig,
        runtime_debug=TEXT,
        cdi_annotation_prefixes=st.lists(TEXT, max_size=3).map(tuple),
        features=st.lists(TEXT.filter(lambda name: "." not in name), max_size=3).map(tuple),
    ),
    TEXT.map(lambda tail: f"/{tail}"),
)
def test_rendered_config_toml_has_every_asked_value(config: ToolkitConfig, root: str) -> None:
    found = tomllib.loads(rendered(config, driver=DriverFacts(root)))

    assert found["nvidia-container-cli"]["root"] == root
    assert found["nvidia-container-runtime"]["debug"] == config.runtime_debug
    cdi = found["nvidia-container-runtime"]["modes"]["cdi"]
    assert cdi["annotation-prefixes"] == list(config.cdi_annotation_prefixes)
    assert found.get("features", {}) == dict.fromkeys(config.features, True)


def test_a_config_stays_as_it_is_when_nothing_of_ours_changed() -> None:
    installed = "# mine\n" + DEFAULT.replace('mode = "auto"', "mode='legacy' # why").replace(
        'runtimes = ["runc", "crun"]', "runtimes = [\n 'runc', # first\n 'crun',\n]"
    )

    text, edited = carry_over(DEFAULT, installed, DEFAULT, name=NAME)

    assert text == installed
    assert edited == ("nvidia-container-runtime.mode",)


@pytest.mark.parametrize(
    ("old", "new", "kept", "edited"),
    [
        ("no-cgroups = false", "no-cgroups = true # rootless", None, f"{CLI}.no-cgroups"),
        ("[nvidia-ctk]", '[nvidia-ctk]\n  "a.b" = 1', None, 'nvidia-ctk."a.b"'),
        ('  ldcache = ""\n', "", "  environment = []\n  ldconfig = ", f"{CLI}.ldcache"),
        (r"\Z", "\n[other.table]\nkey = [1, 2]\n", None, "other.table.key"),
        ("disable-require = false", "disable-require = 0", None, "disable-require"),
        (r"\A", "# read this first\n", None, None),
        ('mode = "auto"', 'mode = "csv"', None, f"{RUNTIME}.mode"),  # which we have changed, too
        ('  mode = "auto"\n', "", '  log-level = "debug"\n  runtimes', f"{RUNTIME}.mode"),
        (r"\A", "features = true\n", None, "features"),
        ('log-level = "info"', "log-level.all = 1", None, f"{RUNTIME}.log-level"),
    ],
)
def test_what_an_administrator_did_survives_an_upgrade(
    old: str, new: str, kept: str | None, edited: str | None
) -> None:
    text, names = carry_over(DEFAULT, with_edit(old, new), CHANGED, name=NAME)

    assert (new if kept is None else kept) in text
    assert names == ((edited,) if edited else ())
    assert tomllib.loads(text)[RUNTIME]["runtimes"] == ["/usr/bin/crun"]


@pytest.mark.parametrize(("before", "now"), [(DEFAULT, CHANGED), (CHANGED, DEFAULT)], ids=["more", "less"])
def test_an_untouched_config_becomes_what_is_rendered_now(before: str, now: str) -> None:
    text, edited = carry_over(before, before, now, name=NAME)

    assert {key: value for key, value in tomllib.loads(text).items() if value != {}} == tomllib.loads(now)
    assert edited == ()


def test_edits_that_cannot_be_read_are_not_thrown_away() -> None:
    with pytest.raises(InstallerError) as refusal:
        carry_over(DEFAULT, DEFAULT + "mode = \n", CHANGED, name=NAME)

    assert str(refusal.value) == (
        f"cannot tell what was edited in {NAME} (it is not valid TOML); "
        "correct it, or delete it to have it written anew"
    )
