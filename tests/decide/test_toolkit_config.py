import tomllib
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from installer.errors import InstallerError
from installer.model.facts import DriverFacts
from installer.model.options import ToolkitConfig
from installer.payload.config_toml import carry_over, config_tree, edited_keys, render_config

NAME = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"


def rendered(
    config: ToolkitConfig | None = None,
    *,
    low_level: tuple[str, ...] = ("runc", "crun"),
    driver: DriverFacts | None = None,
    before: str = "",
) -> str:
    tree = config_tree(
        config or ToolkitConfig(),
        driver or DriverFacts(),
        toolkit_dir=PurePosixPath("/usr/local/nvidia/toolkit"),
        low_level=low_level,
    )
    return render_config(tree, before)


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
DEFAULT = rendered()
CHANGED = rendered(
    ToolkitConfig(mode="cdi", log_level="debug", features=("f",)), low_level=("/usr/bin/crun",)
)


def test_a_text_that_says_what_is_wanted_is_not_rendered_again() -> None:
    of_another_version = f"# A line that we do not write any more\n{DEFAULT}"

    assert rendered(before=of_another_version) == of_another_version


@pytest.mark.parametrize(
    "before",
    [
        CHANGED,
        "",
        "no TOML",
        DEFAULT.replace("load-kmods = true", "load-kmods = 1"),
        DEFAULT + "\n[more]\nkey = 1\n",
    ],
    ids=["of other flags", "none", "no TOML", "another type", "more than is wanted"],
)
def test_a_text_that_says_anything_else_is_rendered_anew(before: str) -> None:
    assert rendered(before=before) == DEFAULT


@pytest.mark.parametrize(
    ("driver_root", "ldconfig_real", "ldconfig"),
    [
        pytest.param("/run/nvidia/driver", False, "@/run/nvidia/driver/sbin/ldconfig", id="container"),
        pytest.param(
            "/run/nvidia/driver", True, "@/run/nvidia/driver/sbin/ldconfig.real", id="debian container"
        ),
        pytest.param("/", False, "@/sbin/ldconfig", id="host"),
        pytest.param("/", True, "@/sbin/ldconfig.real", id="debian host"),
        pytest.param("/d/", False, "@/d/sbin/ldconfig", id="trailing slash"),
    ],
)
def test_ldconfig_is_the_drivers_own_while_the_root_stays_as_given(
    driver_root: str, ldconfig: str, *, ldconfig_real: bool
) -> None:
    text = rendered(driver=DriverFacts(driver_root, ldconfig_real=ldconfig_real))

    cli = tomllib.loads(text)["nvidia-container-cli"]
    assert (cli["root"], cli["ldconfig"]) == (driver_root, ldconfig)


@pytest.mark.parametrize(
    "features",
    [pytest.param(("a", "a.b"), id="shorter first"), pytest.param(("a.b", "a"), id="longer first")],
)
def test_a_feature_inside_another_is_refused(features: tuple[str, ...]) -> None:
    with pytest.raises(InstallerError, match="cannot opt in to the feature a"):
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
def test_whatever_is_asked_is_what_a_reader_finds(config: ToolkitConfig, root: str) -> None:
    found = tomllib.loads(rendered(config, driver=DriverFacts(root)))

    assert found["nvidia-container-cli"]["root"] == root
    assert found["nvidia-container-runtime"]["debug"] == config.runtime_debug
    cdi = found["nvidia-container-runtime"]["modes"]["cdi"]
    assert cdi["annotation-prefixes"] == list(config.cdi_annotation_prefixes)
    assert found.get("features", {}) == dict.fromkeys(config.features, True)


def test_an_untouched_config_becomes_what_is_rendered_now() -> None:
    text, edited = carry_over(DEFAULT, DEFAULT, CHANGED, name=NAME)

    assert tomllib.loads(text) == tomllib.loads(CHANGED)
    assert edited == ()


def test_a_config_stays_as_it_is_when_nothing_of_ours_changed() -> None:
    installed = "# mine\n" + DEFAULT.replace('mode = "auto"', "mode='legacy' # why").replace(
        'runtimes = ["runc", "crun"]', "runtimes = [\n 'runc', # first\n 'crun',\n]"
    )

    text, edited = carry_over(DEFAULT, installed, DEFAULT, name=NAME)

    assert text == installed
    assert edited == ("nvidia-container-runtime.mode",)


@pytest.mark.parametrize(
    ("edit", "kept", "edited"),
    [
        pytest.param(
            lambda text: text.replace("no-cgroups = false", "no-cgroups = true # rootless"),
            "no-cgroups = true # rootless\n",
            ("nvidia-container-cli.no-cgroups",),
            id="changed",
        ),
        pytest.param(
            lambda text: text.replace("[nvidia-ctk]", '[nvidia-ctk]\n  "a.b" = 1'),
            '\n  "a.b" = 1\n',
            ('nvidia-ctk."a.b"',),
            id="added",
        ),
        pytest.param(
            lambda text: text.replace('  ldcache = ""\n', ""),
            "  environment = []\n  ldconfig = ",
            ("nvidia-container-cli.ldcache",),
            id="removed",
        ),
        pytest.param(
            lambda text: text + "\n[other.table]\nkey = [1, 2]\n",
            "\n[other.table]\nkey = [1, 2]\n",
            ("other.table.key",),
            id="table added",
        ),
        pytest.param(
            lambda text: text.replace("disable-require = false", "disable-require = 0"),
            "disable-require = 0\n",
            ("disable-require",),
            id="another type",
        ),
        pytest.param(lambda text: f"# read this first\n{text}", "# read this first\n", (), id="comment"),
        pytest.param(
            lambda text: text.replace('mode = "auto"', 'mode = "csv"'),
            'mode = "csv"\n',
            ("nvidia-container-runtime.mode",),
            id="both sides",
        ),
        pytest.param(
            lambda text: text.replace('  mode = "auto"\n', ""),
            '  log-level = "debug"\n  runtimes',
            ("nvidia-container-runtime.mode",),
            id="removed and changed",
        ),
        pytest.param(
            lambda text: text.replace('mode = "auto"', 'mode = "cdi"'), 'mode = "cdi"\n', (), id="both alike"
        ),
        pytest.param(
            lambda text: f"features = true\n{text}",
            "features = true\n",
            ("features",),
            id="value for a table",
        ),
        pytest.param(
            lambda text: text.replace('log-level = "info"', "log-level.all = 1"),
            "log-level.all = 1\n",
            ("nvidia-container-runtime.log-level",),
            id="table for a value",
        ),
    ],
)
def test_what_an_administrator_did_survives_an_upgrade(
    edit: Callable[[str], str], kept: str, edited: tuple[str, ...]
) -> None:
    text, names = carry_over(DEFAULT, edit(DEFAULT), CHANGED, name=NAME)

    assert kept in text
    assert names == edited
    runtimes = tomllib.loads(text)["nvidia-container-runtime"]["runtimes"]
    assert runtimes == ["/usr/bin/crun"]


def test_a_second_upgrade_keeps_the_edits_of_the_first() -> None:
    once, _ = carry_over(
        DEFAULT, DEFAULT.replace("no-cgroups = false", "no-cgroups = true"), CHANGED, name=NAME
    )

    twice, edited = carry_over(CHANGED, once, DEFAULT, name=NAME)

    assert tomllib.loads(twice)["nvidia-container-runtime"]["mode"] == "auto"
    assert edited == ("nvidia-container-cli.no-cgroups",)


def test_options_that_go_take_their_keys_with_them() -> None:
    text, edited = carry_over(CHANGED, CHANGED, DEFAULT, name=NAME)

    assert "f = true" not in text
    assert edited == ()


def test_edits_that_cannot_be_read_are_not_thrown_away() -> None:
    with pytest.raises(InstallerError) as refusal:
        carry_over(DEFAULT, DEFAULT + "mode = \n", CHANGED, name=NAME)

    assert str(refusal.value) == (
        f"cannot tell what was edited in {NAME} (it is not valid TOML); "
        "correct it, or delete it to have it written anew"
    )


def test_status_can_name_the_edits() -> None:
    installed = DEFAULT.replace('mode = "auto"', 'mode = "cdi"') + "[nvidia-extra]\nx = 1\n"

    assert edited_keys(DEFAULT, installed, name=NAME) == ("nvidia-container-runtime.mode", "nvidia-extra.x")
