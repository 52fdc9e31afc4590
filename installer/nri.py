"""``nri``: checks what it is asked for, locks, and becomes the plugin; ``run`` has it run beside itself."""

import sys

from installer import log as logging
from installer.decide.errors import Exit, InstallerError
from installer.decide.inode import Kind
from installer.decide.nri.wishes import Nri
from installer.decide.options import Options
from installer.host import nri_image, supervision
from installer.host.events import log
from installer.host.files import Host
from installer.host.locks import lock_pidfile, write_pid


def serve(options: Options, log_format: str, parent: int = 0) -> Exit:
    """Become the plugin, beside the ``run`` that is the ``parent``, if one is.

    Raises:
        InstallerError: another instance serves this engine, or NRI is not there.
    """
    nri = options.nri
    nri.refuse_idle()
    host = Host.under(options.host_root, options.mounts)
    refuse_absent(host, nri)
    lock = lock_pidfile(host, nri.lock)
    try:
        write_pid(lock, nri.lock)
        places = [str(host.local_path(path)) for path in (nri.socket, nri.state, nri.lock)]
        places.append(str(parent) if parent else "")
        allowed = [str(each) for each in nri.allowed]
        nri_image.become_plugin(
            lock.fd, [*places, log_format, nri.identity.name, nri.identity.index, *allowed]
        )
    finally:
        lock.release()
    raise InstallerError(
        f"start {sys.executable} once more", remedy="install the program anew", code="internal-error"
    )


def serve_beside(options: Options, ended: str) -> Exit:
    """Become the plugin beside ``run``, which ends with that; ``ended`` is how the one before it has."""
    if not supervision.end_with_run():
        return Exit.OK  # nobody is left to serve for
    if ended != "-":
        log.warning("plugin started again", ended=nri_image.told(ended))
    return serve(options, logging.chosen(), supervision.run().pid)


def refuse_unusable(host: Host, options: Options) -> None:
    """Return where ``run`` may have the plugin run beside itself, or is not asked to.

    Raises:
        InstallerError: NRI is not there.
    """
    if options.serves_nri:
        refuse_absent(host, options.nri)


def refuse_absent(host: Host, nri: Nri) -> None:
    """Return where an engine may listen for plugins.

    Raises:
        InstallerError: the directory of its socket is not there.
    """
    directory = nri.socket.parent
    if host.kind(directory) is not Kind.DIRECTORY:
        raise InstallerError(
            f"reach NRI at {nri.socket} (there is no directory {directory})",
            remedy="switch NRI on in the engine, and mount that directory, not the socket, where this runs",
            code="nri-unusable",
        )
