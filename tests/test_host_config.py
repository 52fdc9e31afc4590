"""The config.toml of a toolkit of the host's own: what it hardens is kept, and what is lost is named."""

import tomllib

import pytest

from tests.support.site import CONFIG_TOML, Site

HOSTS = "etc/nvidia-container-runtime/config.toml"
KEY = "accept-nvidia-visible-devices-envvar-when-unprivileged"
HARDENED = (
    f'{KEY} = false\nswarm-resource = "DOCKER_RESOURCE_GPU"\n[nvidia-container-cli]\nno-cgroups = true\n'
)
# As NVIDIA's package writes it.
PACKAGED = """\
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""


def test_a_host_that_keeps_gpus_from_unprivileged_containers_goes_on_doing_so(site: Site) -> None:
    site.write(HOSTS, HARDENED)

    planned, installed = site.call("plan").stdout, site.install().stderr

    assert tomllib.loads(site.read(CONFIG_TOML))[KEY] is False
    for said in (planned, installed):
        assert f"{KEY} is false as in the host's /{HOSTS}: the flag overrides that" in said
        assert (
            f"not as in the host's /{HOSTS}: nvidia-container-cli.no-cgroups, swarm-resource; edit " in said
        )
    assert "nothing changed" in site.install().stderr


@pytest.mark.parametrize("given", ["", "no-"])
def test_a_flag_overrides_the_hosts_config(site: Site, given: str) -> None:
    site.write(HOSTS, HARDENED)

    said = site.install(f"--{given}{KEY}").stderr

    assert tomllib.loads(site.read(CONFIG_TOML))[KEY] is not bool(given)
    assert "the flag overrides that" not in said
    assert (f"{KEY} is not as in the host's /{HOSTS}: --[no-]{KEY} sets it" in said) is not bool(given)


@pytest.mark.parametrize("text", ["", PACKAGED, "not toml"], ids=["none", "of a package", "broken"])
def test_nothing_is_said_of_a_config_that_hardens_nothing(site: Site, text: str) -> None:
    if text:
        site.write(HOSTS, text)

    planned = site.call("plan")

    assert planned.returncode == 10, planned.stderr
    assert HOSTS not in planned.stdout
