"""What stands in one place, and what has to stand in two: the waiter loads nothing that others would load too."""

from pathlib import Path

from installer.host import nri_child, waiter

PACKAGE = Path(waiter.__file__).parents[1]


def test_the_signals_that_stop_us_are_named_in_one_module() -> None:
    naming = [file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py") if "SIGQUIT" in file.read_text()]

    assert naming == [Path("host/signals.py")]


def test_the_waiter_and_what_it_loads_for_the_plugin_have_the_same_constants() -> None:
    ours, theirs = (
        {name: value for name, value in vars(module).items() if name.isupper()}
        for module in (waiter, nri_child)
    )
    both = ours.keys() & theirs.keys()

    assert both >= {"MANY_FILES", "PLUGIN"}
    assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}
