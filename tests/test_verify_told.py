"""What a container tells is asked again until all of it has arrived."""

import itertools

from installer.decide.verify import END, MARK
from installer.verify import told

WHOLE = f"{MARK}\ndevice /dev/nvidia0\n{END}\n"


def test_output_that_a_busy_engine_dropped_or_cut_is_asked_for_again() -> None:
    answers = iter(["", f"{MARK}\ndevice /dev/nvi", WHOLE])

    assert told(lambda _: next(answers), timeout_s=30) == WHOLE
    assert next(answers, None) is None


def test_who_never_tells_all_is_given_up_at_the_deadline() -> None:
    asked = itertools.count()

    def script(_: str) -> str:
        next(asked)
        return "something else\n"

    assert told(script, timeout_s=0.5) == "something else\n"
    assert 1 < next(asked) < 5
