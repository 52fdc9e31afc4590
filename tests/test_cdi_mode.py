"""Mode cdi by the real program, on a host below a directory whose Docker takes devices by CDI."""

import json
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.cdi.plan import SPEC_DIR, mode_of, without_effect
from installer.cli.flags import AS_VOLUME_MOUNTS, ENVVAR_WHEN_UNPRIVILEGED, FLAGS, options_from
from installer.engines import ENGINES
from installer.errors import UsageError
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.facts import Record
from installer.model.options import Mode
from tests.support.cdi_site import CdiSite
from tests.support.site import TOOLKIT, sentence
from tests.support.waiting import until, until_it_sleeps


@pytest.fixture
def site(tmp_path: Path) -> CdiSite:
    return CdiSite(tmp_path)


FLAGS_BY_FIELD = {flag.field: flag.default for flag in FLAGS}
HEEDED, NO_EFFECT, REFUSED = "heeded", "no effect", "refused"
# Each flag by which an engine and its runtimes are described, with a value that is not its default.
DESCRIBED = (
    pytest.param({"set_as_default": True}, REFUSED, "--set-as-default", id="--set-as-default"),
    pytest.param({"runtime_name": "gpu"}, REFUSED, "--runtime-name", id="--runtime-name"),
    pytest.param({"crio_hook": True}, REFUSED, "--crio-hook", id="--crio-hook"),
    pytest.param({AS_VOLUME_MOUNTS: True}, REFUSED, "as-volume-mounts", id="--accept-...-as-volume-mounts"),
    pytest.param({"restart_mode": "none"}, NO_EFFECT, "--restart-mode", id="--restart-mode none"),
    pytest.param({"accept_pending": True}, NO_EFFECT, "--accept-pending", id="--accept-pending"),
    pytest.param({"retry": True}, NO_EFFECT, "--retry", id="--retry"),
    pytest.param({ENVVAR_WHEN_UNPRIVILEGED: False}, NO_EFFECT, "--no-accept", id="--no-accept-...-envvar"),
    pytest.param({"socket": ("docker=/a.sock",)}, HEEDED, "", id="--socket"),
    # A manifest sets its variables to what they are anyway.
    pytest.param(
        {"runtime_name": "nvidia", "restart_mode": "auto", AS_VOLUME_MOUNTS: False}, HEEDED, "", id="defaults"
    ),
)


@pytest.mark.parametrize(("values", "outcome", "words"), DESCRIBED)
def test_what_is_about_runtimes_is_refused_or_told_to_have_no_effect_where_there_are_none(
    values: dict[str, Any], outcome: str, words: str
) -> None:
    for mode in ("cdi", "nri"):
        given = {"mode": mode, "nri_allow": ("a=b.c/d",), **values}
        if outcome == REFUSED:
            with pytest.raises(UsageError, match=f"give GPUs by CDI alone with .*{words}"):
                options_from(FLAGS_BY_FIELD | given, frozenset(given))
        else:
            said = without_effect(options_from(FLAGS_BY_FIELD | given, frozenset(given)))
            assert (said != "") is (outcome == NO_EFFECT)
            assert words in said


@pytest.mark.parametrize(("values", "outcome", "words"), DESCRIBED)
def test_auto_takes_runtimes_where_one_is_asked_for(values: dict[str, Any], outcome: str, words: str) -> None:
    options = options_from(FLAGS_BY_FIELD | values | {"mode": "auto"}, frozenset(values))
    engine = EngineState(
        *(ENGINES["docker"], PurePosixPath("/c"), None, None, (), PurePosixPath("/s"), "docker.service"),
        version=(28, 5, 2),
        serving=EffectiveConfig({}, "runc", cdi=True, cdi_dirs=(SPEC_DIR,)),
    )

    mode, why = mode_of((engine,), Record(), options)

    assert mode is (Mode.RUNTIME if outcome == REFUSED else Mode.CDI)
    assert outcome != REFUSED or words in why


def test_what_has_no_effect_is_noted_by_plan_and_in_the_log_and_by_variable_too(site: CdiSite) -> None:
    variables = {"TOOLKIT_INSTALLER_CONFIG": f"docker={site.root}/etc/docker/daemon.json"}
    with site.docker():
        plan = site.call("plan", "--restart-mode", "none", env=variables)
        done = site.call("install", "--restart-mode", "none", env=variables)

    words = "--config and --restart-mode have no effect by CDI: no engine is configured or restarted"
    assert plan.returncode == 10, plan.stderr
    assert f"! note: {words}" in plan.stdout
    assert done.returncode == 0, done.stderr
    assert words in done.stderr


def test_what_is_refused_for_an_install_keeps_nobody_from_an_uninstall(site: CdiSite) -> None:
    variables = {"TOOLKIT_INSTALLER_SET_AS_DEFAULT": "true"}
    before = site.tree()
    with site.docker():
        site.install()
        refused, done = (site.call(verb, env=variables) for verb in ("install", "uninstall"))

    assert refused.returncode == 2
    assert sentence(refused) == (
        "cannot give GPUs by CDI alone with --set-as-default; leave that out, or use --mode runtime"
    )
    assert done.returncode == 0, done.stderr
    assert {path: what for path, what in site.tree().items() if path != "run/docker.sock"} == before


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        pytest.param("", "the stale one was removed", id="no engine answers"),
        pytest.param("nvidia-cdi-hook", "cannot repair the toolkit without", id="its hook is gone"),
    ],
)
def test_a_stale_specification_is_withdrawn_or_replaced_whatever_else_stands_in_the_way(
    site: CdiSite, gone: str, told: str
) -> None:
    library = site.library("libnvidia-gone.so.1")
    with ExitStack() as docker:
        docker.enter_context(site.docker())
        with site.running("--drift", "report") as child:
            until_it_sleeps(child.pid)
            named = site.specification
            docker.close() if not gone else (site.root / TOOLKIT / gone).unlink()
            library.unlink()
            until(lambda: library.name not in site.specification)
            until_it_sleeps(child.pid)
            status = site.status()
    again = site.call("uninstall")

    assert library.name in named
    assert told in status.stdout
    assert again.returncode == 0, again.stderr


def test_a_run_that_may_not_start_withdraws_a_stale_specification_all_the_same(site: CdiSite) -> None:
    gone = site.library("libnvidia-gone.so.1")
    with site.docker():
        site.install()
    named = site.specification
    kept = site.call("run"), site.specification
    gone.unlink()

    refused = site.call("run")

    assert gone.name in named
    assert (kept[0].returncode, kept[1]) == (1, named), "one that holds stays"
    assert (refused.returncode, site.specification) == (1, "")
    withdrawn = [line for line in map(json.loads, refused.stderr.splitlines()) if "gone" in line]
    assert [line["event"] for line in withdrawn] == ["CDI specification removed"]
    assert withdrawn[0]["gone"] == ["/driver/usr/lib64/libnvidia-gone.so.1"]
