"""The manifests: each overlay and the chart hold to Kubernetes' schemas, and say the same."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.flags import FLAGS
from tests.deploy.helm import NAMESPACE
from tests.deploy.rendered import (
    KUSTOMIZE,
    OVERLAYS,
    SCHEMAS,
    Manifest,
    charted,
    container_of,
    kubectl,
    kustomized,
    objects,
    pod_of,
)


def _by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def _validate(manifests: list[Manifest], version: str) -> None:
    import kubernetes_validate

    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("directory", [*(f"overlays/{name}" for name in OVERLAYS), "base", "uninstall"])
def test_what_kustomize_makes_holds_to_the_schemas(directory: str, version: str) -> None:
    _validate(kustomized(directory), version)


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize(
    "settings", [(), ("runtime=docker", "onExit=keep", "env.A=b", "runtimeClasses=false", "uninstallNode=a")]
)
def test_what_the_chart_makes_holds_to_the_schemas(settings: tuple[str, ...], version: str) -> None:
    _validate(charted(*settings), version)


def test_a_misspelt_field_would_be_noticed() -> None:
    import kubernetes_validate

    daemon_set = _by_name(kustomized("base"))["DaemonSet", NAMESPACE]
    wrong = {**daemon_set, "spec": {**daemon_set["spec"], "minReadySecs": 1}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, SCHEMAS[-1], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_and_the_overlay_say_the_same(overlay: str) -> None:
    ours = _by_name(kustomized(f"overlays/{overlay}"))
    del ours["Namespace", NAMESPACE]  # helm makes it, or somebody has

    classes = "false" if overlay in {"k3s", "rke2"} else "true"
    assert _by_name(charted(f"runtime={overlay}", f"runtimeClasses={classes}")) == ours


def test_the_chart_and_kustomize_free_a_node_by_the_same_job() -> None:
    (theirs,) = (each for each in charted("uninstallNode=name-of-the-node") if each["kind"] == "Job")

    assert [theirs] == kustomized("uninstall")


@pytest.mark.parametrize("policy", ["undo", "keep"])
def test_the_exit_policy_is_a_component(policy: str, tmp_path: Path) -> None:
    (tmp_path / "kustomize").symlink_to(KUSTOMIZE)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        f"resources: [../kustomize/base]\ncomponents: [../kustomize/components/{policy}]\n"
    )
    told = objects(kubectl(), "kustomize", "--load-restrictor=LoadRestrictionsNone", str(mine))

    values = {each["name"]: each["value"] for each in container_of(told)["env"]}
    assert values["TOOLKIT_INSTALLER_ON_EXIT"] == policy
    assert values == {
        each["name"]: each["value"] for each in container_of(charted(f"onExit={policy}"))["env"]
    }


ACCEPT = "TOOLKIT_INSTALLER_ACCEPT_NVIDIA_VISIBLE_DEVICES_"


@pytest.mark.parametrize(
    ("component", "mounts"), [("devices-by-volume-mounts", "true"), ("devices-by-cdi", "false")]
)
def test_who_may_choose_gpus_is_a_component(component: str, mounts: str, tmp_path: Path) -> None:
    (tmp_path / "kustomize").symlink_to(KUSTOMIZE)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        f"resources: [../kustomize/overlays/auto]\ncomponents: [../kustomize/components/{component}]\n"
    )
    told = objects(kubectl(), "kustomize", "--load-restrictor=LoadRestrictionsNone", str(mine))
    settings = ("envvarWhenUnprivileged=false", f"asVolumeMounts={mounts}")

    values = {each["name"]: each["value"] for each in container_of(told)["env"]}
    assert values[f"{ACCEPT}ENVVAR_WHEN_UNPRIVILEGED"] == "false"
    assert values[f"{ACCEPT}AS_VOLUME_MOUNTS"] == mounts
    chart = charted(*(f"acceptNvidiaVisibleDevices.{setting}" for setting in settings))
    assert values == {each["name"]: each["value"] for each in container_of(chart)["env"]}


@pytest.mark.parametrize("made", [lambda: kustomized("base"), lambda: kustomized("uninstall"), charted])
def test_every_variable_in_it_is_one_of_ours(made: Callable[[], list[Manifest]]) -> None:
    known = {flag.variable for flag in FLAGS}

    assert {each["name"] for each in container_of(made())["env"]} <= known


def test_the_table_of_what_we_ask_for_is_what_the_manifests_ask_for() -> None:
    text = (KUSTOMIZE.parents[1] / "docs/deploy.md").read_text()
    asked = text.partition("| we ask for | why |")[2].partition("\n\n")[0]
    pod, container = pod_of(kustomized("base")), container_of(kustomized("base"))
    security, limits = container["securityContext"], container["resources"]

    assert re.findall(r"capability `(\w+)`", asked) == security["capabilities"]["add"]
    assert f"host directory `{pod['volumes'][0]['hostPath']['path']}` at `/host`" in asked
    assert f"SELinux type `{security['seLinuxOptions']['type']}`" in asked
    assert f"priority class `{pod['priorityClassName']}`" in asked
    assert f"grace of {pod['terminationGracePeriodSeconds']} s" in asked
    assert (
        f"memory: {limits['requests']['memory'][:-2]} MiB asked for, {limits['limits']['memory'][:-2]} MiB"
        in asked
    )
    annotations = _by_name(kustomized("base"))["DaemonSet", NAMESPACE]["spec"]["template"]["metadata"][
        "annotations"
    ]
    assert set(annotations.values()) == {"unconfined"}
    assert "AppArmor `unconfined`" in asked
    assert len(asked.strip().splitlines()) == 13, "a row for each, and no other"


@pytest.mark.parametrize("made", [lambda: kustomized("base"), lambda: kustomized("uninstall"), charted])
def test_nothing_is_asked_for_that_is_not_needed(made: Callable[[], list[Manifest]]) -> None:
    manifests = made()
    container = container_of(manifests)
    pod = pod_of(manifests)

    security = container["securityContext"]
    assert security["privileged"] is security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "hostPID"} & pod.keys()
    assert all(volume["hostPath"]["type"] == "Directory" for volume in pod["volumes"])
    assert not {each["kind"] for each in manifests} & {
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
    }
