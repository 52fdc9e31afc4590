"""``nri``: checks what it is asked for, locks, and becomes the plugin; ``run`` has it run beside itself."""

import sys

from installer import log as logging
from installer import nri_verb
from installer.decide.errors import Exit, InstallerError, LockedError
from installer.decide.inode import Kind
from installer.decide.nri.wishes import Nri
from installer.decide.options import Options
from installer.host import nri_image, waiting
from installer.host.events import log
from installer.host.files import Host
from installer.host.locks import Lock, lock_pidfile, write_pid
from installer.record.nri_seen import end_left


def serve(options: Options, log_format: str) -> Exit:
    """Become the plugin.

    Raises:
        InstallerError: another instance serves this engine, or NRI is not there.
    """
    nri, parent = options.nri, nri_image.parent()
    nri.refuse_idle()
    if parent is not None:
        if not nri_image.ends_with(parent):
            return Exit.OK  # nobody is left to serve for
        if parent.ended:
            log.warning("plugin started again", ended=parent.ended)
    host = Host.under(options.host_root, options.mounts)
    refuse_absent(host, nri)
    lock = _locked(host, nri)
    try:
        write_pid(lock, nri.lock)
        places = [str(host.local_path(path)) for path in (nri.socket, nri.state, nri.lock)]
        places.append(str(parent.pid) if parent else "")
        allowed = [str(each) for each in nri.allowed]
        nri_image.become_plugin([*places, log_format, nri.identity.name, nri.identity.index, *allowed])
    finally:
        lock.release()
    raise InstallerError(
        f"start {sys.executable} once more", remedy="install the program anew", code="internal-error"
    )


def _locked(host: Host, nri: Nri) -> Lock:
    """Lock; a plugin that a killed ``run`` has left gives its place up.

    Raises:
        LockedError: another instance serves this engine.
    """
    try:
        return lock_pidfile(host, nri.lock)
    except LockedError:
        if not end_left(host, nri):
            raise
        return lock_pidfile(host, nri.lock)


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


def attend(host: Host, nri: Nri) -> None:
    """Have the plugin run as a process of its own whenever this one waits."""
    words = (
        *("--host-root", "/", "--nri-socket", str(host.local_path(nri.socket))),
        *("--nri-name", nri.identity.name, "--nri-index", nri.identity.index),
        *("--log-format", logging.chosen()),
        *(word for each in nri.allowed for word in ("--nri-allow", str(each))),
    )
    waiting.attend_plugin(nri_verb.__file__, words)
