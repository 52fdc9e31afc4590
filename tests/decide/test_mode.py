"""Which way GPUs come to containers: what engines say decides, and what was asked for."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.cdi.plan import against_cdi, highest_read, lacking, mode_of
from installer.change.plan import plan_install
from installer.engines import ENGINES
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import Container, ContainerFacts, EngineRow, EngineState, Record
from installer.model.options import Mode, Options
from tests.decide.golden import cases

DIRS = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
IN_EFFECT = EffectiveConfig({}, "runc", cdi=True, cdi_dirs=DIRS)
AUTO = Options(mode=Mode.AUTO)
HELD = Record(engines=(EngineRow("containerd", PurePosixPath("/s"), "containerd.service", {}),))


def engine(
    serving: EffectiveConfig | None = IN_EFFECT,
    name: str = "containerd",
    version: tuple[int, ...] = (2, 1, 9),
) -> EngineState:
    row = ENGINES[name]
    return EngineState(
        name,
        row.config,
        None,
        None,
        (),
        row.socket,
        row.unit,
        version,
        serving,
        "" if serving else "it is busy",
    )


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(engine(), "", id="in effect"),
        pytest.param(
            engine(replace(IN_EFFECT, cdi_dirs=(PurePosixPath("/run/cdi"),))), "", id="the other name"
        ),
        pytest.param(engine(None), "it is busy", id="no answer"),
        pytest.param(engine(replace(IN_EFFECT, cdi=None)), "it knows nothing of CDI", id="containerd 1.6"),
        pytest.param(engine(replace(IN_EFFECT, cdi=False)), "it says that CDI is switched off", id="1.7"),
        pytest.param(
            engine(replace(IN_EFFECT, cdi_dirs=DIRS[:1])),
            "it reads specifications in /etc/cdi alone",
            id="elsewhere",
        ),
        pytest.param(engine(name="crio", version=(1, 28)), "", id="CRI-O that hands them over"),
        pytest.param(
            engine(name="crio", version=(1, 27, 8)),
            "1.27.8 does not hand over what a kubelet asks for",
            id="older",
        ),
    ],
)
def test_an_engine_takes_devices_by_cdi_where_it_says_so(found: EngineState, why: str) -> None:
    assert lacking(found) == why


@pytest.mark.parametrize(
    ("engines", "highest"),
    [
        pytest.param((engine(),), (1, 0, 0), id="containerd 2.1"),
        pytest.param((engine(version=(2, 0, 8)),), (0, 8, 0), id="containerd 2.0"),
        pytest.param((engine(version=(1, 7, 24)),), (0, 7, 0), id="containerd 1.7"),
        pytest.param((engine(version=(1, 7, 8)),), (0, 5, 0), id="an early containerd 1.7"),
        pytest.param((engine(name="docker", version=(25, 0)),), (0, 6, 0), id="dockerd 25"),
        pytest.param((engine(name="crio", version=(1, 29)), engine()), (0, 6, 0), id="the lowest of two"),
        pytest.param((engine(name="docker", version=(28, 5)),), None, id="nobody knows"),
        pytest.param((), None, id="no engine"),
    ],
)
def test_a_specification_is_of_a_version_that_all_engines_read(
    engines: tuple[EngineState, ...], highest: tuple[int, ...] | None
) -> None:
    assert highest_read(engines) == highest


@pytest.mark.parametrize(
    ("engines", "held", "options", "mode", "why"),
    [
        pytest.param((engine(),), Record(), AUTO, Mode.CDI, "every engine has CDI in effect", id="CDI alone"),
        pytest.param(
            (engine(),), HELD, AUTO, Mode.RUNTIME, "containerd has runtimes of ours already", id="served"
        ),
        pytest.param(
            *(
                (engine(),),
                Record(),
                replace(AUTO, set_as_default=True),
                Mode.RUNTIME,
                "a runtime is asked for",
            ),
            id="the default",
        ),
        pytest.param(
            *(
                (engine(),),
                Record(),
                replace(AUTO, runtime_name="gpu"),
                Mode.RUNTIME,
                "a runtime is asked for",
            ),
            id="a name",
        ),
        pytest.param(
            (engine(), engine(replace(IN_EFFECT, cdi=False), "docker")),
            *(
                Record(),
                AUTO,
                Mode.RUNTIME,
                "Docker takes no devices by CDI (it says that CDI is switched off)",
            ),
            id="one of two without",
        ),
        pytest.param((), Record(), AUTO, Mode.RUNTIME, "no engine is to be asked", id="no engine"),
        pytest.param(
            (engine(),), Record(), Options(), Mode.RUNTIME, "", id="the mode is a runtime by default"
        ),
    ],
)
def test_auto_takes_what_costs_the_node_least(
    engines: tuple[EngineState, ...], held: Record, options: Options, mode: Mode, why: str
) -> None:
    found, said = mode_of(engines, held, options)

    assert found is mode
    assert said.startswith(why)
    assert bool(said) is bool(why)


def test_all_that_stands_against_cdi_is_told_with_the_release_that_has_it() -> None:
    off = replace(IN_EFFECT, cdi=False)
    engines = [engine(off, name) for name in ENGINES]

    said = [str(error) for error in against_cdi(engines, HELD)]

    assert len(said) == 1 + len(ENGINES)
    assert said[0].startswith(
        "cannot leave containerd to CDI (it has runtimes of ours since an earlier install)"
    )
    assert all("(it says that CDI is switched off); use --mode runtime; " in words for words in said[1:])
    assert {words.partition("--mode runtime; ")[2].split()[0] for words in said[1:]} == {
        "containerd",
        "Docker",
        "CRI-O",
    }


def test_a_runtime_in_use_does_not_go_for_an_oci_hook() -> None:
    ours = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    hook = PurePosixPath("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json")
    given = next(iter(cases("crio"))).facts({}, Record(), {})
    facts = replace(
        given,
        engines=(replace(given.engines[0], hook=hook),),
        contents={**given.contents, hook: None},
        held=Record(engines=(replace(HELD.engines[0], name="crio", runtimes={"nvidia": ours}),)),
        containers=ContainerFacts((Container("crio", "3f6c0d5e8a9b", "default/trainer", ours),)),
    )

    first = plan_install(facts, Options(engines=("crio",))).obstacles[0]

    assert first.problem == "remove the runtime nvidia from CRI-O (it runs default/trainer (crio))"
    assert (first.code, str(first.remedy)) == ("in-use", "stop them first, or do without the OCI hook")


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        pytest.param(
            Options(mode=Mode.CDI),
            "stop them, run toolkit-installer uninstall, then try again; or keep --mode runtime",
            id="the mode",
        ),
        pytest.param(
            Options(runtime_name="gpu"), "stop them first, or keep --runtime-name as it was", id="the name"
        ),
    ],
)
def test_a_runtime_in_use_cannot_go_and_the_remedy_names_what_takes_it_away(
    options: Options, remedy: str
) -> None:
    ours = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    row = replace(HELD.engines[0], runtimes={"nvidia": ours})
    facts = replace(
        next(iter(cases("containerd"))).facts({}, Record(), {}),
        held=Record(engines=(row,)),
        containers=ContainerFacts((Container("containerd", "3f6c0d5e8a9b", "default/trainer", ours),)),
    )

    first = plan_install(facts, replace(options, engines=("containerd",))).obstacles[0]

    assert first.problem == "remove the runtime nvidia from containerd (it runs default/trainer (containerd))"
    assert first.remedy == remedy
