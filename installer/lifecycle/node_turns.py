"""Turns of this node, as installs, checks and stops see them; a node without a release has none.

``release_turns.py`` has the turns of a node with a release, and is loaded only there.
"""

from collections.abc import Callable

from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.change.plan import Plan
from installer.errors import Code, NotBegunError
from installer.host.events import log
from installer.host.files import Host
from installer.lifecycle.last_check import TurnState
from installer.model.facts import Record, TurnRow
from installer.model.options import Options


class TurnWaitError(NotBegunError):
    """The node has to wait for a turn; nothing was changed.

    Attributes:
        told: what is logged once, as long as it stays the same.
        next_try_s: the time of the next try, by ``time.monotonic``.
    """

    usual = "waiting-for-turn"

    def __init__(self, problem: str, remedy: str, code: Code | None, *, told: str, next_try_s: float) -> None:
        super().__init__(problem, remedy=remedy, code=code)
        self.told = told
        self.next_try_s = next_try_s


def is_begun(record: Record) -> bool:
    """Tell whether a change was begun and not finished; a finished change has proven its engines."""
    return not record.finished and bool(record.toolkit or record.engines or record.configs)


class NodeTurns:
    """The turns of one node while one child of ``run`` is at work; a node without a release has none.

    Attributes:
        state: What the next child of ``run`` has to know; a check publishes it.
    """

    def __init__(self, ledger: Ledger, state: TurnState) -> None:
        self.ledger = ledger
        self.state = state

    @property
    def is_proven(self) -> bool:
        """Whether the restart of the recorded turn was proven in this boot."""
        row = self.ledger.record.turn
        return row is not None and self.state.proven == row.asked

    def admit(self, plan: Plan, _replan: Callable[[], Plan], *, asked: bool = False) -> Plan:
        """Return a plan that may be carried out now: restarts of engines have their turn.

        Args:
            plan: a plan of this moment.
            _replan: plans anew.
            asked: a user asked for the plan, so the API is asked before the next try is due.

        Raises:
            TurnWaitError: the node has to wait; nothing was changed.
            InstallerError: the new plan is refused; nothing was changed.
        """
        del asked
        return plan

    def note_proof(self, plan: Plan) -> None:
        """Note that the engines serve what a plan of this moment has left.

        Args:
            plan: the plan, which is carried out.
        """

    def settle(self, failure: str = "") -> float:
        """Settle the turn in the ledger; return the seconds until it is to be settled again, 0 for never.

        Args:
            failure: the error of this node; "" if there is none.
        """
        del failure
        row = self.ledger.record.turn
        if row is not None:
            log.warning("turn forgotten", release=row.release, reason="run has another release now, or none")
            self.forget()
        return 0.0

    def give_back(self, row: TurnRow | None = None, *, at_stop: bool = False) -> None:
        """Give the recorded turn back at once: nothing was restarted, or this process ends with a proof.

        A turn with a failure of this node stays, unless all is undone or proven.

        Args:
            row: the turn, if everything is undone and the ledger is about to be removed.
            at_stop: a pod ends.
        """

    @property
    def soaks(self) -> bool:
        """Whether the restart of the recorded turn was proven, and its soak is not over."""
        return False

    def give_back_kept(self, *, to_next_run: bool = False) -> None:
        """Give the turn back at a stop that keeps something in place, unless a change is only half done.

        Args:
            to_next_run: the next run on this node goes on with the soak.
        """
        if to_next_run and self.soaks:
            return
        if self.is_proven or not is_begun(self.ledger.record):
            self.give_back(at_stop=True)

    def forget(self) -> None:
        """Remove the turn from the ledger."""
        self.state = replace(self.state, proven="")
        if not self.ledger.gone and self.ledger.record.turn is not None:
            self.ledger.write(replace(self.ledger.record, turn=None))


def open_turns(host: Host, options: Options, ledger: Ledger) -> NodeTurns:
    """Return the turns of this node."""
    if not options.turns.release:
        return NodeTurns(ledger, TurnState())
    from installer.lifecycle.release_turns import ReleaseTurns

    return ReleaseTurns(host, options, ledger)


def give_back_after_undo(host: Host, options: Options, ledger: Ledger, *, at_stop: bool) -> None:
    """Give the recorded turn back, of whichever release, while the ledger still has it.

    Args:
        host: the host.
        options: the options of the undo.
        ledger: the open ledger.
        at_stop: a pod ends.
    """
    row = ledger.record.turn
    if row is not None:
        from installer.lifecycle.release_turns import ReleaseTurns

        ReleaseTurns(host, options, ledger).give_back(row, at_stop=at_stop)
