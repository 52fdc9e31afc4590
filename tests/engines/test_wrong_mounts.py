"""A pod or a user gives a directory to --mount that is not the one from which the running engine reads."""

from pathlib import PurePosixPath

import pytest

from tests.engines.configs import DOCKER
from tests.engines.live import run_through_us
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, served, snapshot

OTHER = "/srv/other"
UNITS = {"docker": ("docker.socket", "docker.service"), "containerd": ("containerd.service",)}


def copy_config(node: Node) -> str:
    """Copy the directory of the engine's config; return the copy as a --mount for it."""
    directory = PurePosixPath(node.config).parent
    node.run(["cp", "-a", str(directory), OTHER])
    return f"{directory}={OTHER}"


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_an_install_through_a_directory_that_the_engine_does_not_read_is_refused(node: Node) -> None:
    mount = copy_config(node)
    files = snapshot(node)
    pid = node.pid_of()

    refused = node.installer("install", *SOURCE, "--mount", mount)

    name = PurePosixPath(node.config).name
    assert refused.returncode == 1
    assert f"(pid {pid} sees another {node.config} than {OTHER}/{name})" in sentence(refused.stderr)
    assert snapshot(node) == files
    assert node.pid_of() == pid


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_an_undo_of_a_copy_is_refused_and_the_engine_goes_on(node: Node) -> None:
    files = snapshot(node)
    before = served(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    mount = copy_config(node)
    installed = snapshot(node)
    pid = node.pid_of()

    refused = node.installer("uninstall", "--mount", mount)

    assert refused.returncode == 4
    assert sentence(refused.stderr).endswith(f"(install did not use --mount {mount}); leave it out")
    assert snapshot(node) == installed
    assert node.pid_of() == pid
    run_through_us(node, "")
    node.run(["rm", "-r", OTHER])
    node.installer("uninstall", check=True)
    assert served(node) == before
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_an_undo_of_hard_links_to_the_configs_is_refused(node: Node) -> None:
    """After a rename the links would be of two files."""
    files = snapshot(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    directory = str(PurePosixPath(node.config).parent)
    node.run(["cp", "-al", directory, OTHER])
    node.run(["systemctl", "stop", *UNITS[node.engine]])

    refused = node.installer("uninstall", "--mount", f"{directory}={OTHER}")

    assert refused.returncode == 4
    assert sentence(refused.stderr).endswith(
        f"(install did not use --mount {directory}={OTHER}); leave it out"
    )
    node.run(["systemctl", "start", *UNITS[node.engine]])
    run_through_us(node, "")
    node.run(["rm", "-r", OTHER])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.parametrize("engine", ["running", "stopped"])
@pytest.mark.any_version
def test_an_undo_below_a_root_without_the_hosts_mounts_does_not_lose_the_edits(
    node: Node, engine: str
) -> None:
    """The host has its configs on a mount of their own, and somebody binds its root without that mount."""
    directory = str(PurePosixPath(node.config).parent)
    node.run(["cp", "-a", directory, OTHER])
    node.run(["mount", "-t", "tmpfs", "configs", directory])
    node.run(["cp", "-a", f"{OTHER}/.", directory])
    before = node.run(["cat", node.config]).stdout
    node.installer("install", *SOURCE, check=True)
    installed = node.run(["cat", node.config]).stdout
    node.run(["mkdir", "/srv/host"])
    node.run(["mount", "--bind", "/", "/srv/host"])
    if engine == "stopped":
        node.run(["systemctl", "stop", *UNITS[node.engine]])

    refused = node.installer("uninstall", "--host-root", "/srv/host")

    assert refused.returncode == 4
    seen = f"(pid 1 sees another {node.config} than /srv/host{node.config})"
    assert f"cannot find our edits of {node.config} {seen}" in sentence(refused.stderr)
    assert node.run(["cat", node.config]).stdout == installed
    node.installer("uninstall", check=True)
    assert node.run(["cat", node.config]).stdout == before


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_an_engine_with_a_directory_of_its_own_is_not_restarted_for_the_hosts(node: Node) -> None:
    directory = str(PurePosixPath(node.config).parent)
    node.run(["cp", "-a", directory, OTHER])
    node.write(f"/etc/systemd/system/{node.unit}.d/own.conf", f"[Service]\nBindPaths={OTHER}:{directory}\n")
    node.run(["systemctl", "daemon-reload"])
    node.restart(node.engine)
    files = snapshot(node)
    pid = node.pid_of()

    refused = node.installer("install", *SOURCE)

    assert refused.returncode == 1
    assert f"(pid {pid} sees another {node.config} than this process)" in sentence(refused.stderr)
    assert sentence(refused.stderr).endswith(f"name the place with --mount {directory}=HERE")
    assert snapshot(node) == files
    assert node.pid_of() == pid
    node.installer("install", *SOURCE, "--mount", f"{directory}={OTHER}", check=True)
    node.run(["systemctl", "stop", *UNITS[node.engine]])
    refused = node.installer("uninstall")
    assert refused.returncode == 4
    assert sentence(refused.stderr).endswith(f"(install used --mount {directory}={OTHER}); give it again")
    node.run(["systemctl", "start", *UNITS[node.engine]])
    node.installer("uninstall", "--mount", f"{directory}={OTHER}", check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.parametrize("engine", ["running", "stopped"])
@pytest.mark.any_version
def test_an_undo_for_an_engine_whose_unit_mounts_a_copy_of_our_edits_names_a_remedy_that_works(
    node: Node, engine: str
) -> None:
    """The owner gave the engine a directory of its own after the install."""
    files = snapshot(node)
    before = served(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    directory = str(PurePosixPath(node.config).parent)
    node.run(["cp", "-a", directory, OTHER])
    drop_in = f"/etc/systemd/system/{node.unit}.d/own.conf"
    node.write(drop_in, f"[Service]\nBindPaths={OTHER}:{directory}\n")
    node.run(["systemctl", "daemon-reload"])
    commands = f"systemctl daemon-reload and systemctl restart {node.unit}"
    reason = f"pid {{}} sees another {node.config} than this process"
    if engine == "running":
        node.restart(node.engine)
        reason = reason.format(node.pid_of())
    else:
        node.run(["systemctl", "stop", *UNITS[node.engine]])
        commands = "systemctl daemon-reload"
        reason = f"{node.unit} mounts another {node.config} at its next start"
    installed = snapshot(node)

    refused = node.installer("uninstall")

    assert refused.returncode == 4
    take_out = f"take the mount at or above {node.config} out of {node.unit}, run {commands}"
    assert sentence(refused.stderr).endswith(f"({reason}); {take_out}, then run this again")
    assert but_the_ledger(snapshot(node)) == but_the_ledger(installed)
    node.run(["rm", "-r", str(PurePosixPath(drop_in).parent), OTHER])
    for command in commands.split(" and "):
        node.run(command.split())
    node.installer("uninstall", check=True)
    if engine == "stopped":
        node.run(["systemctl", "start", *UNITS[node.engine]])
    assert served(node) == before
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_a_missing_directory_of_a_drop_in_below_a_directory_of_the_engines_own_is_refused(
    containerd_node: Node,
) -> None:
    node = containerd_node
    node.run(["mkdir", "/srv/opt"])
    node.write(f"/etc/systemd/system/{node.unit}.d/own.conf", "[Service]\nBindPaths=/srv/opt:/opt\n")
    node.run(["systemctl", "daemon-reload"])
    node.restart(node.engine)
    files = snapshot(node)
    pid = node.pid_of()

    refused = node.installer("install", *SOURCE, "--drop-in-config", "containerd=/opt/new/99.toml")

    assert refused.returncode == 1
    assert f"(pid {pid} sees another /opt than this process)" in sentence(refused.stderr)
    assert sentence(refused.stderr).endswith("name the place with --mount /opt=HERE")
    assert snapshot(node) == files
    assert node.pid_of() == pid
    mount = ("--mount", "/opt=/srv/opt")
    node.installer("install", *SOURCE, "--drop-in-config", "containerd=/opt/new/99.toml", *mount, check=True)
    node.installer("uninstall", *mount, check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
def test_a_file_that_was_mounted_over_the_config_after_our_start_is_not_lost(docker_node: Node) -> None:
    """A rename in the older mount namespace would take the owner's mount off the config."""
    node = docker_node
    node.installer("install", *SOURCE, check=True)
    older = node.start(["unshare", "--mount", "--propagation", "private", "sleep", "600"])
    node.run(["cp", "-a", node.config, "/srv/bound"])
    node.run(["mount", "--bind", "/srv/bound", node.config])

    in_older = ["nsenter", "-t", str(older.pid), "--mount", *node.program]
    refused = node.run([*in_older, "uninstall"], check=False)

    assert refused.returncode == 4
    assert f"sees another {node.config} than this process)" in sentence(refused.stderr)
    assert node.run(["findmnt", node.config], check=False).returncode == 0
    older.kill()
    older.wait()
    node.run(["umount", node.config])
    node.installer("uninstall", check=True)


@pytest.mark.sampled(16)
def test_a_mount_of_the_hosts_own_config_is_believed_when_our_edits_are_gone(docker_node: Node) -> None:
    node, before = docker_node, docker_node.read(DOCKER)
    files = snapshot(node)
    node.run(["mkdir", OTHER])
    node.run(["mount", "--bind", "/etc/docker", OTHER])
    node.installer("install", *SOURCE, "--mount", f"/etc/docker={OTHER}", check=True)
    node.write(DOCKER, before)
    node.run(["systemctl", "reload", "docker"])

    node.installer("uninstall", "--mount", f"/etc/docker={OTHER}", check=True)

    node.run(["umount", OTHER])
    node.run(["rmdir", OTHER])
    assert snapshot(node) == files


@pytest.mark.sampled(16)
def test_an_undo_ends_although_a_former_mount_still_shows_our_edits(docker_node: Node) -> None:
    """A tool of the owner's has put a copy of /etc/docker in the place of the one that was mounted."""
    node, before = docker_node, docker_node.read(DOCKER)
    node.run(["mkdir", OTHER])
    node.run(["mount", "--bind", "/etc/docker", OTHER])
    node.installer("install", *SOURCE, "--mount", f"/etc/docker={OTHER}", check=True)
    node.run(["sh", "-c", "mv /etc/docker /etc/former && cp -a /etc/former /etc/docker"])
    refused = node.installer("uninstall", "--mount", f"/etc/docker={OTHER}")
    assert refused.returncode == 4
    assert sentence(refused.stderr).endswith(f"({OTHER} is not the host's /etc/docker); leave it out")

    node.installer("uninstall", check=True)

    assert node.read(DOCKER) == before
