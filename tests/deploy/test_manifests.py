"""The manifests: each overlay and the chart hold to Kubernetes' schemas, and say the same."""

import os
import re
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from tests.deploy.helm import NAMESPACE, RELEASE
from tests.deploy.rendered import (
    KUSTOMIZE,
    OLDEST,
    OVERLAYS,
    SCHEMAS,
    Layer,
    Manifest,
    by_name,
    charted,
    container_of,
    kustomized,
    pod_of,
    validate,
)
from tests.support import preloaded
from tests.support.entry import PROJECT
from tests.support.version import VERSION

KEY = "node-toolkit-installer/not-ready"
READY = "/dev/shm/untaint.ready"  # noqa: S108 - in the pod

DIRECTORIES = (
    *(f"overlays/{name}" for name in OVERLAYS),
    *("base", "namespace", "plan-node", "uninstall", "uninstall-node"),
)
HELMS = {
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": f"node-toolkit-installer-{VERSION}",
}


def _without_helms_labels(manifests: list[Manifest]) -> list[Manifest]:
    for each in manifests:
        for name, value in HELMS.items():
            assert each["metadata"]["labels"].pop(name) == value
    return manifests


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_what_kustomize_makes_holds_to_the_schemas(directory: str, version: str) -> None:
    validate(kustomized(directory), version)


def test_before_kubernetes_1_30_a_component_turns_the_field_for_apparmor_into_its_annotation(
    layer: Layer,
) -> None:
    manifests = layer("base", "components/apparmor-annotation")

    validate(manifests, OLDEST)
    template = by_name(manifests)["DaemonSet", NAMESPACE]["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "container.apparmor.security.beta.kubernetes.io/toolkit": "unconfined"
    }
    assert by_name(_without_helms_labels(charted("kubeVersion=v1.29.0"))) == by_name(manifests)


def test_a_misspelt_field_would_be_noticed() -> None:
    import kubernetes_validate

    daemon_set = by_name(kustomized("base"))["DaemonSet", NAMESPACE]
    wrong = {**daemon_set, "spec": {**daemon_set["spec"], "minReadySecs": 1}}

    with pytest.raises(kubernetes_validate.ValidationError):
        validate([wrong], SCHEMAS[-1])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_and_the_overlay_say_the_same(overlay: str) -> None:
    classes = "false" if overlay in {"k3s", "rke2"} else "true"
    chart = charted(f"runtime={overlay}", f"runtimeClasses={classes}")

    assert by_name(_without_helms_labels(chart)) == by_name(kustomized(f"overlays/{overlay}"))


def test_the_chart_and_kustomize_uninstall_from_a_node_by_the_same_job() -> None:
    chart = charted("uninstallNode=name-of-the-node")
    (theirs,) = _without_helms_labels([each for each in chart if each["kind"] == "Job"])

    assert [theirs] == kustomized("uninstall-node")


def test_the_chart_and_kustomize_print_the_plan_of_a_node_by_the_same_job() -> None:
    chart = charted("planNode=name-of-the-node")
    (theirs,) = _without_helms_labels([each for each in chart if each["kind"] == "Job"])

    assert [theirs] == kustomized("plan-node")


def test_the_plan_of_a_node_is_asked_for_what_the_daemon_set_asks_for() -> None:
    settings = ("runtime=docker", "runtimeName=gpu", "extraEnv[0].name=TOOLKIT_INSTALLER_RESTART_MODE")
    manifests = charted("planNode=gpu-7", *settings, "extraEnv[0].value=when-idle")
    (job,) = (container_of([each]) for each in manifests if each["kind"] == "Job")
    (daemon_set,) = (container_of([each]) for each in manifests if each["kind"] == "DaemonSet")

    assert [each for each in daemon_set["env"] if not each["name"].endswith("ON_EXIT")] == job["env"]
    assert job["volumeMounts"] == daemon_set["volumeMounts"]
    assert job["securityContext"] == daemon_set["securityContext"]


OF_THE_JOB = (
    *("mode-auto", "mode-cdi", "mode-nri", "nri-plugin", "runtime-name"),
    *("devices-by-cdi", "devices-by-volume-mounts"),
)


@pytest.mark.parametrize("component", OF_THE_JOB)
def test_a_component_changes_the_plan_of_a_node_as_it_changes_the_daemon_set(
    component: str, layer: Layer
) -> None:
    daemon_set = container_of(layer("overlays/auto", f"components/{component}"))
    told = layer("plan-node", f"components/{component}")

    validate(told, SCHEMAS[-1])
    job = container_of(told)
    assert [each for each in daemon_set["env"] if not each["name"].endswith("ON_EXIT")] == job["env"]
    assert job["env"] != container_of(kustomized("plan-node"))["env"]


@pytest.mark.parametrize(("job", "value"), [("plan-node", "planNode"), ("uninstall-node", "uninstallNode")])
def test_the_jobs_of_a_node_take_the_annotation_for_apparmor(job: str, value: str, layer: Layer) -> None:
    told = layer(job, "components/apparmor-annotation")

    validate(told, OLDEST)
    chart = charted(f"{value}=name-of-the-node", "kubeVersion=v1.29.0")
    assert _without_helms_labels([each for each in chart if each["kind"] == "Job"]) == told


@pytest.mark.parametrize("directory", ["plan-node", "uninstall-node"])
def test_openshift_admits_the_job_of_a_node(directory: str, layer: Layer) -> None:
    told = by_name(layer(directory, "components/openshift"))
    (job,) = (each for (kind, _), each in told.items() if kind == "Job")
    account = pod_of([job])["serviceAccountName"]

    (user,) = told["SecurityContextConstraints", NAMESPACE]["users"]
    assert user == f"system:serviceaccount:{NAMESPACE}:{account}"
    assert pod_of([job])["automountServiceAccountToken"] is False


EXCLUDING = {
    frozenset(pair)
    for mode in ("mode-cdi", "mode-nri")
    for pair in ((mode, "runtime-name"), (mode, "devices-by-volume-mounts"))
}


@pytest.mark.parametrize("pair", [*combinations(OF_THE_JOB, 2)], ids="+".join)
def test_the_components_that_exclude_each_other_are_those_whose_variables_the_program_refuses(
    pair: tuple[str, str], layer: Layer, tmp_path: Path
) -> None:
    told = layer("overlays/auto", *(f"components/{each}" for each in pair))
    given = {each["name"]: each["value"] for each in container_of(told)["env"]}
    host = tmp_path / "host"
    host.mkdir()
    done = preloaded.run(
        [sys.executable, "-m", "installer", "plan"], {**given, f"{PREFIX}HOST_ROOT": str(host)}
    )

    refused = done.returncode == 2
    assert refused == ("give GPUs by CDI alone" in done.stderr), done.stderr
    assert refused == (frozenset(pair) in EXCLUDING), done.stderr
    if refused:
        mode, other = sorted(pair, key=lambda name: not name.startswith("mode-"))
        comment = (KUSTOMIZE / f"components/{mode}/kustomization.yaml").read_text()
        assert other in comment, "its comment says so"


@pytest.mark.parametrize("value", ["planNode", "uninstallNode"])
def test_the_job_of_a_node_needs_no_account_that_an_overlay_or_a_release_brings(value: str) -> None:
    (ours,) = kustomized(value.replace("Node", "-node"))
    (charts,) = (each for each in charted(f"{value}=gpu-7") if each["kind"] == "Job")

    assert "serviceAccountName" not in pod_of([ours]) | pod_of([charts])


def test_the_plan_of_a_node_is_printed_once() -> None:
    (job,) = kustomized("plan-node")
    pod = pod_of([job])

    assert "priorityClassName" not in pod
    assert job["spec"]["ttlSecondsAfterFinished"] == 3600
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never"), "a plan is printed once"


def test_the_chart_and_kustomize_uninstall_from_all_nodes_alike() -> None:
    chart = _without_helms_labels(charted("uninstall=true", "runtimeClasses=false"))

    assert by_name(chart) == by_name(kustomized("uninstall"))


def test_the_chart_and_kustomize_have_the_same_quota_and_constraints(layer: Layer) -> None:
    chart = by_name(_without_helms_labels(charted("resourceQuota=true", "openshift=true")))

    quota = by_name(kustomized("namespace"))["ResourceQuota", NAMESPACE]
    assert chart["ResourceQuota", NAMESPACE] == quota
    ours = by_name(layer("base", "components/openshift"))["SecurityContextConstraints", NAMESPACE]
    del chart["SecurityContextConstraints", NAMESPACE]["metadata"]["labels"]
    assert chart["SecurityContextConstraints", NAMESPACE] == ours


def test_openshift_admits_what_the_pod_asks_for(layer: Layer) -> None:
    objects = by_name(layer("base", "components/openshift"))
    constraints, security = (
        objects["SecurityContextConstraints", NAMESPACE],
        container_of(kustomized("base"))["securityContext"],
    )

    assert constraints["allowedCapabilities"] == security["capabilities"]["add"]
    assert constraints["users"] == [f"system:serviceaccount:{NAMESPACE}:{NAMESPACE}"]
    assert [name for name, value in constraints.items() if value is True] == [
        "allowHostDirVolumePlugin",
        "readOnlyRootFilesystem",
    ]


@pytest.mark.parametrize("directory", [name for name in DIRECTORIES if name != "namespace"])
def test_who_deletes_the_toolkit_keeps_the_namespace_that_the_uninstall_needs(directory: str) -> None:
    assert not {"Namespace", "ResourceQuota"} & {each["kind"] for each in kustomized(directory)}


def test_a_quota_admits_pods_of_our_priority() -> None:
    quota = by_name(kustomized("namespace"))["ResourceQuota", NAMESPACE]
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]

    assert scope["scopeName"] == "PriorityClass"
    assert scope["values"] == [pod_of(kustomized("base"))["priorityClassName"]]


def test_the_image_is_named_in_one_place(layer: Layer) -> None:
    mine = {"name": "node-toolkit-installer", "newName": "registry.example.com/mine", "newTag": "7"}
    layer.copy()
    file = layer.tree / "components/image/kustomization.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "images": [mine]}))

    images = {
        container_of(layer(directory))["image"]
        for directory in ("overlays/auto", "plan-node", "uninstall", "uninstall-node")
    }

    assert images == {"registry.example.com/mine:7"}


def test_an_uninstall_keeps_how_a_layer_has_changed_the_daemon_set(layer: Layer) -> None:
    layer.patch("spec.template.spec", {"nodeSelector": {"gpu": "yes"}})

    pod = pod_of(layer("overlays/auto", "components/uninstall"))

    assert pod["nodeSelector"]["gpu"] == "yes"
    assert "toolkit-installer uninstall" in pod["containers"][0]["args"][0]


@pytest.mark.parametrize("node", ["gpu-1", "gpu-2.example.com"])
def test_each_node_has_an_uninstall_job_of_its_own_that_the_scheduler_places(node: str) -> None:
    (job,) = (each for each in charted(f"uninstallNode={node}") if each["kind"] == "Job")

    assert job["metadata"]["name"] == f"toolkit-uninstall-{node}"
    assert "nodeName" not in job["spec"]["template"]["spec"]
    selector = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = selector["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": [node]}]


@pytest.mark.parametrize("name", ["undo", "keep"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_and_a_policy_set_their_variable_whatever_stands_before_it(
    layer: Layer, name: str, overlay: str
) -> None:
    layer.copy()
    file = layer.tree / "base/daemonset.yaml"
    first = "            - name: TOOLKIT_INSTALLER_HOST_ROOT"
    file.write_text(
        file.read_text().replace(first, f"            - name: A\n              value: b\n{first}")
    )

    env = container_of(layer(f"overlays/{overlay}", f"components/{name}"))["env"]

    values = {each["name"]: each["value"] for each in env}
    assert (values["A"], values["TOOLKIT_INSTALLER_HOST_ROOT"]) == ("b", "/host")
    assert values["TOOLKIT_INSTALLER_ON_EXIT"] == name
    assert values["TOOLKIT_INSTALLER_RUNTIME"] == overlay


PREFIX = "TOOLKIT_INSTALLER_"
ACCEPT = f"{PREFIX}ACCEPT_NVIDIA_VISIBLE_DEVICES_"


@pytest.mark.parametrize(
    ("component", "mounts"), [("devices-by-volume-mounts", "true"), ("devices-by-cdi", "false")]
)
def test_who_may_choose_gpus_is_a_component(component: str, mounts: str, layer: Layer) -> None:
    told = layer("overlays/auto", f"components/{component}")
    settings = ("envvarWhenUnprivileged=false", f"asVolumeMounts={mounts}")

    values = {each["name"]: each["value"] for each in container_of(told)["env"]}
    assert values[f"{ACCEPT}ENVVAR_WHEN_UNPRIVILEGED"] == "false"
    assert values[f"{ACCEPT}AS_VOLUME_MOUNTS"] == mounts
    chart = charted(*(f"acceptNvidiaVisibleDevices.{setting}" for setting in settings))
    assert values == {each["name"]: each["value"] for each in container_of(chart)["env"]}


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("metrics-textfile", "metricsTextfile"),
        ("metrics-listen", "metricsListen"),
        ("nfd-features", "nfdFeatures"),
    ],
)
def test_what_monitoring_is_told_is_a_component(component: str, value: str, layer: Layer) -> None:
    told = container_of(layer("overlays/auto", f"components/{component}"))

    variable = f"TOOLKIT_INSTALLER_{component.replace('-', '_').upper()}"
    (path,) = (each["value"] for each in told["env"] if each["name"] == variable)
    assert told["env"] == container_of(charted(f"{value}={path}"))["env"]
    assert variable not in {each["name"] for each in container_of(kustomized("overlays/auto"))["env"]}


def test_the_prometheus_operator_is_told_which_port_to_ask(layer: Layer) -> None:
    told = by_name(layer("overlays/auto", "components/pod-monitor"))

    settings = ("metricsListen=0.0.0.0:9400", "podMonitor=true")
    assert by_name(_without_helms_labels(charted(*settings))) == told
    monitor = told.pop(("PodMonitor", NAMESPACE))["spec"]
    validate(list(told.values()), SCHEMAS[-1])
    template = told["DaemonSet", NAMESPACE]["spec"]["template"]
    (port,), (endpoint,) = template["spec"]["containers"][0]["ports"], monitor["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    assert monitor["selector"]["matchLabels"] == template["metadata"]["labels"]


NRI_ALLOW = "nri.allow[0]=gpu-operator=nvidia.com/gpu"


@pytest.mark.parametrize(
    ("component", "settings", "classes"),
    [
        ("mode-auto", ("mode=auto",), 3),
        ("mode-cdi", ("mode=cdi",), 0),
        ("mode-nri", ("mode=nri", NRI_ALLOW), 0),
        ("nri-plugin", ("nri.enabled=true", NRI_ALLOW), 3),
    ],
)
def test_how_containers_get_gpus_is_a_component(
    component: str, settings: tuple[str, ...], classes: int, layer: Layer, tmp_path: Path
) -> None:
    told = layer("overlays/auto", f"components/{component}")

    validate(told, SCHEMAS[-1])
    assert by_name(_without_helms_labels(charted(*settings))) == by_name(told)
    assert len([each for each in told if each["kind"] == "RuntimeClass"]) == classes
    plain = container_of(kustomized("overlays/auto"))
    assert container_of(told) == {**plain, "env": container_of(told)["env"]}, "no right and no mount more"
    given = {each["name"]: each["value"] for each in container_of(told)["env"]}
    asked = given.get(f"{PREFIX}MODE", "runtime")
    assert asked == component.removeprefix("mode-").replace("nri-plugin", "runtime")
    assert (asked == "nri" or given.get(f"{PREFIX}NRI") == "true") is ("nri" in component)
    command = [sys.executable, "-m", "installer", "plan", "--host-root", str(tmp_path)]
    done = preloaded.run(command, {"PATH": os.defpath, **given})
    assert done.returncode == 1, "it takes these values, and finds neither a toolkit nor an engine here"


TAINT = "node-toolkit-installer-taint"


def test_a_startup_taint_is_a_component_and_off_by_default(layer: Layer) -> None:
    told, plain = layer("overlays/auto", "components/startup-taint"), by_name(kustomized("overlays/auto"))

    for version in SCHEMAS:
        validate(told, version)
    assert by_name(_without_helms_labels(charted("startupTaint=true"))) == by_name(told)
    added = by_name(told).keys() - plain.keys()
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Deployment")
    assert added == {(kind, TAINT) for kind in kinds}
    assert all(by_name(told)[name] == each for name, each in plain.items())


def test_who_removes_the_taint_may_do_nothing_else_and_has_nothing_of_a_node(layer: Layer) -> None:
    told = by_name(layer("overlays/auto", "components/startup-taint"))
    (of_nodes,), (of_pods,) = told["ClusterRole", TAINT]["rules"], told["Role", TAINT]["rules"]
    pod = told["Deployment", TAINT]["spec"]["template"]["spec"]

    assert of_nodes == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    assert of_pods == {"apiGroups": [""], "resources": ["pods"], "verbs": ["watch"]}
    assert not {"volumes", "hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    security = pod["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is security["privileged"] is False


def test_the_pod_that_removes_the_taint_is_not_kept_away_by_it(layer: Layer) -> None:
    told = by_name(layer("overlays/auto", "components/startup-taint"))
    pod = told["Deployment", TAINT]["spec"]["template"]["spec"]

    tolerated = {each["key"] for each in pod["tolerations"]}
    assert KEY in tolerated
    assert "node.kubernetes.io/unreachable" not in tolerated, "it would stay on a node that is gone"
    (name,) = pod["containers"][0]["args"][1:]
    labels = told["DaemonSet", NAMESPACE]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == name


def test_the_pod_that_removes_the_taint_is_ready_while_it_may_watch(layer: Layer) -> None:
    (deployment,) = (
        each for each in layer("overlays/auto", "components/startup-taint") if each["kind"] == "Deployment"
    )

    assert container_of([deployment])["readinessProbe"]["exec"]["command"] == ["test", "-e", READY]


def test_the_taint_of_the_documents_is_the_one_that_is_removed() -> None:
    text = (KUSTOMIZE.parents[1] / "docs/deploy.md").read_text()

    assert f"--register-with-taints={KEY}:NoSchedule" in text


def test_the_runtime_class_has_the_name_of_the_runtime(layer: Layer) -> None:
    manifests = layer("overlays/auto", "components/runtime-name")

    classes = [each for each in manifests if each["kind"] == "RuntimeClass"]
    assert {(each["metadata"]["name"], each["handler"]) for each in classes} == {
        (name, name) for name in ("gpu", "nvidia-cdi", "nvidia-legacy")
    }
    assert by_name(_without_helms_labels(charted("runtimeName=gpu"))) == by_name(manifests)


def test_pods_of_the_runtime_classes_go_where_the_daemon_set_goes() -> None:
    selector = pod_of(kustomized("base"))["nodeSelector"]
    classes = [each for each in kustomized("base") if each["kind"] == "RuntimeClass"]

    assert len(classes) == 3
    assert all(each["scheduling"] == {"nodeSelector": selector} for each in classes)


def test_a_pod_is_looked_at_each_second_until_it_is_ready_for_the_first_time() -> None:
    container = container_of(kustomized("base"))
    startup, ready = container["startupProbe"], container["readinessProbe"]

    assert startup["exec"] == ready["exec"]
    assert (startup["periodSeconds"], ready["periodSeconds"]) == (1, 10)
    assert startup["failureThreshold"] >= 3600, "it would end an install that takes its time"


@pytest.mark.parametrize("made", [lambda: kustomized("base"), lambda: kustomized("uninstall"), charted])
def test_every_variable_in_it_is_one_of_ours(made: Callable[[], list[Manifest]]) -> None:
    known = set(re.findall(rf"{PREFIX}\w+", (PROJECT / "docs/reference.md").read_text()))

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
    assert f"AppArmor `{security['appArmorProfile']['type'].lower()}`" in asked
    assert len(asked.strip().splitlines()) == 13, "a row for each, and no other"


@pytest.mark.parametrize(
    "made",
    [
        *(
            lambda name=name: kustomized(name)
            for name in ("base", "plan-node", "uninstall", "uninstall-node")
        ),
        charted,
    ],
)
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


def test_what_the_uninstall_may_do_is_what_the_daemon_set_may_do() -> None:
    ours = container_of(kustomized("base"))

    for directory in ("plan-node", "uninstall", "uninstall-node"):
        theirs = container_of(kustomized(directory))
        assert theirs["securityContext"] == ours["securityContext"]
        assert theirs["volumeMounts"] == ours["volumeMounts"]
        assert theirs["terminationMessagePolicy"] == ours["terminationMessagePolicy"]


def test_every_directory_of_kustomize_is_looked_at() -> None:
    known = {*DIRECTORIES, *(f"components/{path.name}" for path in (KUSTOMIZE / "components").iterdir())}

    found = {str(Path(file).relative_to(KUSTOMIZE).parent) for file in KUSTOMIZE.rglob("kustomization.yaml")}
    assert found == known
