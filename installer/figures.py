"""Metrics and labels, where they are asked for; where not, nothing of this is loaded."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from installer.decide.data import replace
from installer.decide.errors import Exit, InstallerError, StoppedError
from installer.decide.options import Options
from installer.decide.plan import Plan
from installer.host import signals, supervision
from installer.host.files import Host
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger


def claim(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down which files are going to be told, ahead of the first; remove those not asked for any more.

    Raises:
        InstallerError: one of them is somebody else's; nothing was changed.
    """
    if options.published or ledger.held.published:
        from installer.record import monitoring

        monitoring.claim(host, options, ledger)


def claim_again(host: Host, options: Options, ledger: Ledger) -> None:
    """Write it down anew where the ledger was lost while ``run`` has waited."""
    if options.published and not ledger.held.published:
        from installer.record import monitoring

        monitoring.claim_again(host, options, ledger)


def withdraw(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove what was told, as an undo begins; the ledger sees to it that nothing of it stays."""
    if options.published or ledger.held.published:
        from installer.record import monitoring

        monitoring.withdraw(host, options, ledger)


def installed(
    host: Host, options: Options, ledger: Ledger, plan: Plan, refused: Collection[str] | None = None
) -> None:
    """Tell the end of an install that went well, or of a look at the node by a ``run`` that has waited.

    After a look ``refused`` are the engines that would not come up again with the configs that lie there.
    """
    if ledger.held.published:
        from installer.record import monitoring

        monitoring.installed(host, options, ledger, plan, refused)


def failed(host: Host, options: Options, ledger: Ledger, error: InstallerError) -> None:
    """Tell that something went wrong: nothing is proven any more."""
    if ledger.held.published and not ledger.gone:
        from installer.record import monitoring

        monitoring.failed(host, options, ledger, error)


@contextmanager
def failures_told(host: Host, options: Options, ledger: Ledger) -> Iterator[None]:
    """Tell it where the block fails. A stop is no failure."""
    try:
        with internal_errors():
            yield
    except StoppedError:
        if ledger.held.published and ledger.held.empty and not ledger.gone:  # as before: nothing was there
            from installer.record import monitoring

            if monitoring.withdraw(host, options, ledger):
                ledger.held = replace(ledger.held, published=())
        raise
    except InstallerError as error:
        failed(host, options, ledger, error)
        raise


def serve(options: Options) -> Exit:
    """Answer who asks for metrics, as a child of ``run``, until told to stop."""
    from installer.host.listening import serve
    from installer.record.monitoring import warned

    assert options.metrics_listen is not None  # noqa: S101 - else nobody has started us
    host = Host.under(options.host_root, options.mounts)
    if not supervision.end_with_run():
        return Exit.OK
    with warned():
        serve(host, options.metrics_listen, options.layout.answer, lambda: not signals.stop_requested())
    return Exit.OK if signals.stop_requested() else Exit.FAILED
