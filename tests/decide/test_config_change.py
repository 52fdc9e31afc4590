"""What is noted of a config that says by itself what is wanted."""

from msgspec.structs import replace

from installer.config_text import Syntax, Want
from installer.engines import ENGINES
from installer.engines.config_edits import change_config
from installer.model.engine_spec import FileWants
from installer.model.facts import EngineRow, Record, Saved
from tests.decide.golden import Case, cases

CASE: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
PATH = ENGINES["containerd"].config
WANTED = FileWants(PATH, Syntax.TOML, (Want(("version",), 2),))


def test_a_file_that_says_what_is_wanted_ahead_of_us_is_to_say_so_when_we_are_gone() -> None:
    facts = CASE.facts(CASE.before, Record(), {})

    change = change_config("containerd", WANTED, facts)

    assert change.row is not None
    assert (change.step, change.row.edits, change.row.syntax) == (None, (), Syntax.TOML)
    assert change.row.original == Saved.of(facts.contents[PATH])


def test_a_file_of_which_nothing_is_wanted_is_not_held() -> None:
    change = change_config("containerd", replace(WANTED, wants=()), CASE.facts(CASE.before, Record(), {}))

    assert (change.step, change.row) == (None, None)


def test_a_file_that_came_to_say_so_after_our_install_is_no_original_to_come_back_to() -> None:
    row = ENGINES["containerd"]
    held = Record(engines=(EngineRow(row.name, row.socket, row.unit, {}),))

    change = change_config("containerd", WANTED, CASE.facts(CASE.before, held, {}))

    assert (change.step, change.row) == (None, None)
