"""The manifests: each overlay and the chart hold to Kubernetes' schemas, and say the same."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from installer.fleet import leases
from installer.fleet.turn_rules import Settings, name_settings, name_turn
from installer.host.kubernetes import STARTUP_TAINTS
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
    kubectl,
    kustomized,
    objects,
    of_kind,
    pod_of,
    validate,
)
from tests.support.entry import CHART_VERSION, PROJECT

PREFIX = "TOOLKIT_INSTALLER_"
READY = "/dev/shm/untaint.ready"  # noqa: S108 - in the pod
TAINT = "node-toolkit-installer-taint"
NRI_ALLOW = "nri.allow[0]=gpu-operator=nvidia.com/gpu"
TEXTFILE = "/var/lib/node_exporter/textfile_collector/toolkit-installer.prom"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/toolkit-installer"
DOCUMENT = (PROJECT / "docs/deploy.md").read_text()
README = (PROJECT / "README.md").read_text()
JOBS = {"plan-node": "planNode", "uninstall-node": "uninstallNode"}
DIRECTORIES = (
    *(f"overlays/{name}" for name in OVERLAYS),
    *("base", "namespace", "plan-all", "plan-node", "uninstall", "uninstall-node"),
)
HELMS = {
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": f"node-toolkit-installer-{CHART_VERSION}",
}


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    """Return a layer over the manifests, as an operator writes it."""
    return Layer(tmp_path)


def _of_chart(*settings: str, kind: str = "") -> dict[tuple[str, str], Manifest]:
    """Return what the chart makes without Helm's labels; of one ``kind`` where that is said."""
    found = [each for each in charted(*settings) if kind in each["kind"]]
    for each in found:
        for name, value in HELMS.items():
            assert each["metadata"]["labels"].pop(name) == value
    return by_name(found)


def _env(manifests: list[Manifest]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container_of(manifests)["env"]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_what_kustomize_makes_holds_to_the_schemas(directory: str, version: str) -> None:
    validate(kustomized(directory), version)


def _accepting(mounts: str) -> tuple[str, str]:
    prefix = "acceptNvidiaVisibleDevices"
    return f"{prefix}.envvarWhenUnprivileged=false", f"{prefix}.asVolumeMounts={mounts}"


OLD = "kubeVersion=v1.29.0"
PLAN = ("planNode=name-of-the-node",)
# The components that change the plan of a node as well.
OF_THE_JOB = {
    "devices-by-cdi": _accepting("false"),
    "devices-by-volume-mounts": _accepting("true"),
    "mode-auto": ("mode=auto",),
    "mode-cdi": ("mode=cdi",),
    "mode-nri": ("mode=nri", NRI_ALLOW),
    "nri-plugin": ("nri.enabled=true", NRI_ALLOW),
    "runtime-name": ("runtimeName=gpu",),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("place", "settings"),
    [
        *(
            (
                f"overlays/{name}",
                (f"runtime={name}", f"runtimeClasses={'false' if name in {'k3s', 'rke2'} else 'true'}"),
            )
            for name in OVERLAYS
        ),
        ("uninstall", ("uninstall=true", "runtimeClasses=false")),
        ("plan-all", ("planAll=true",)),
        *(
            (f"overlays/auto {each} plan-all", ("planAll=true", *settings))
            for each, settings in OF_THE_JOB.items()
        ),
        ("base apparmor-annotation", (OLD,)),
        *((job, (f"{value}=name-of-the-node",)) for job, value in JOBS.items()),
        *((f"{job} apparmor-annotation", (f"{value}=name-of-the-node", OLD)) for job, value in JOBS.items()),
        *(
            (f"{job} openshift", (f"{value}=name-of-the-node", "openshift=true"))
            for job, value in JOBS.items()
        ),
        *((f"overlays/auto {each}", settings) for each, settings in OF_THE_JOB.items()),
        *((f"plan-node {each}", (*PLAN, *settings)) for each, settings in OF_THE_JOB.items()),
        ("overlays/auto metrics-textfile", (f"metricsTextfile={TEXTFILE}",)),
        ("overlays/auto metrics-listen", ("metricsListen=0.0.0.0:9400",)),
        ("overlays/auto nfd-features", (f"nfdFeatures={FEATURES}",)),
        ("overlays/auto pod-monitor", ("metricsListen=0.0.0.0:9400", "podMonitor=true")),
        ("overlays/auto startup-taint", ("startupTaint=true",)),
        ("overlays/auto auto", ("onExit=auto",)),
        ("overlays/auto turns", ("onExit=auto", "turns.maxRestarting=1")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_chart_says_what_a_directory_and_its_component_say(
    place: str, settings: tuple[str, ...], layer: Layer
) -> None:
    directory, *components = place.split()
    told = layer(directory, *(f"components/{each}" for each in components))

    others = {"PodMonitor", "SecurityContextConstraints"}  # their schemas are of somebody else
    validate(
        [each for each in told if each["kind"] not in others], OLDEST if OLD in settings else SCHEMAS[-1]
    )
    kind = "Job" if directory in JOBS else ""
    assert _of_chart(*settings, kind=kind) == by_name([each for each in told if kind in each["kind"]])


def test_the_chart_and_kustomize_have_the_same_quota_and_constraints(layer: Layer) -> None:
    chart = _of_chart("resourceQuota=true", "openshift=true")

    quota = by_name(kustomized("namespace"))["ResourceQuota", NAMESPACE]
    assert chart["ResourceQuota", NAMESPACE] == quota
    ours = by_name(layer("base", "components/openshift"))["SecurityContextConstraints", NAMESPACE]
    del chart["SecurityContextConstraints", NAMESPACE]["metadata"]["labels"]
    assert chart["SecurityContextConstraints", NAMESPACE] == ours


def test_the_plan_of_a_node_is_asked_for_what_the_daemon_set_asks_for() -> None:
    settings = ("runtime=docker", "runtimeName=gpu", "extraEnv[0].name=TOOLKIT_INSTALLER_RESTART_MODE")
    manifests = charted("planNode=gpu-7", *settings, "extraEnv[0].value=when-idle")
    job, daemon_set = (container_of([each]) for each in of_kind(manifests, "Job", "DaemonSet"))

    assert [each for each in daemon_set["env"] if not each["name"].endswith("ON_EXIT")] == job["env"]
    assert job["volumeMounts"] == daemon_set["volumeMounts"]
    assert job["securityContext"] == daemon_set["securityContext"]
    (plan,) = kustomized("plan-node")
    assert (plan["spec"]["ttlSecondsAfterFinished"], "priorityClassName" in pod_of([plan])) == (3600, False)
    once = (plan["spec"]["backoffLimit"], pod_of([plan])["restartPolicy"])
    assert once == (0, "Never"), "a plan is printed once"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("directory", JOBS)
def test_openshift_admits_the_job_of_a_node_by_an_account_that_is_always_there(
    directory: str, layer: Layer
) -> None:
    told = by_name(layer(directory, "components/openshift"))
    (job,) = of_kind([*told.values()], "Job")

    (user,) = told["SecurityContextConstraints", NAMESPACE]["users"]
    assert user == f"system:serviceaccount:{NAMESPACE}:{pod_of([job])['serviceAccountName']}"
    assert pod_of([job])["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod_of(kustomized(directory))


def test_openshift_admits_what_the_pod_asks_for(layer: Layer) -> None:
    (constraints,) = of_kind(layer("base", "components/openshift"), "SecurityContextConstraints")
    security = container_of(kustomized("base"))["securityContext"]

    assert constraints["allowedCapabilities"] == security["capabilities"]["add"]
    assert constraints["users"] == [f"system:serviceaccount:{NAMESPACE}:{NAMESPACE}"]
    allowed = ["allowHostDirVolumePlugin", "readOnlyRootFilesystem"]
    assert [name for name, value in constraints.items() if value is True] == allowed


@pytest.mark.sampled(4)
@pytest.mark.parametrize("directory", [name for name in DIRECTORIES if name != "namespace"])
def test_who_deletes_the_toolkit_keeps_the_namespace_that_the_uninstall_needs(directory: str) -> None:
    assert not {"Namespace", "ResourceQuota"} & {each["kind"] for each in kustomized(directory)}


def test_a_quota_admits_pods_of_our_priority() -> None:
    (quota,) = of_kind(kustomized("namespace"), "ResourceQuota")
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]

    priority = pod_of(kustomized("base"))["priorityClassName"]
    assert (scope["scopeName"], scope["values"]) == ("PriorityClass", [priority])


def test_the_image_is_named_in_one_place(layer: Layer) -> None:
    mine = {"name": "node-toolkit-installer", "newName": "registry.example.com/mine", "newTag": "7"}
    layer.copy()
    file = layer.tree / "components/image/kustomization.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "images": [mine]}))

    images = {
        container_of(layer(directory))["image"]
        for directory in ("overlays/auto", "plan-all", "plan-node", "uninstall", "uninstall-node")
    }

    assert images == {"registry.example.com/mine:7"}


def test_an_uninstall_keeps_how_a_layer_has_changed_the_daemon_set(layer: Layer) -> None:
    layer.patch("spec.template.spec", {"nodeSelector": {"gpu": "yes"}})

    pod = pod_of(layer("overlays/auto", "components/uninstall"))

    assert pod["nodeSelector"]["gpu"] == "yes"
    assert "toolkit-installer uninstall" in pod["containers"][0]["args"][0]


def test_an_uninstall_with_turns_has_the_pace_of_an_uninstall(layer: Layer) -> None:
    told = layer("overlays/auto", "components/turns", "components/uninstall")

    daemon_set = by_name(told)["DaemonSet", NAMESPACE]
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "100%"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["undo", "keep", "auto"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_and_a_policy_set_their_variable(layer: Layer, name: str, overlay: str) -> None:
    values = _env(layer(f"overlays/{overlay}", f"components/{name}"))

    assert (values[f"{PREFIX}ON_EXIT"], values[f"{PREFIX}RUNTIME"]) == (name, overlay)


def test_the_prometheus_operator_is_told_which_port_to_ask(layer: Layer) -> None:
    told = by_name(layer("overlays/auto", "components/pod-monitor"))

    monitor = told["PodMonitor", NAMESPACE]["spec"]
    template = told["DaemonSet", NAMESPACE]["spec"]["template"]
    (port,), (endpoint,) = template["spec"]["containers"][0]["ports"], monitor["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    assert monitor["selector"]["matchLabels"] == template["metadata"]["labels"]


def test_a_startup_taint_is_off_by_default_and_who_removes_it_may_do_nothing_else(layer: Layer) -> None:
    told = by_name(layer("overlays/auto", "components/startup-taint"))
    plain = by_name(kustomized("overlays/auto"))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Deployment")
    (of_nodes,), (of_pods,) = told["ClusterRole", TAINT]["rules"], told["Role", TAINT]["rules"]
    pod = told["Deployment", TAINT]["spec"]["template"]["spec"]

    assert told.keys() - plain.keys() == {(kind, TAINT) for kind in kinds}
    assert plain.items() <= told.items()
    assert of_nodes == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    assert of_pods == {"apiGroups": [""], "resources": ["pods"], "verbs": ["watch"]}
    assert not {"volumes", "hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    security = pod["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is security["privileged"] is False


ON_EXIT = "node-toolkit-installer-on-exit"


@pytest.mark.parametrize("name", ["kustomize", "chart"])
def test_the_policy_auto_may_read_its_daemon_set_and_nodes_and_nothing_else(layer: Layer, name: str) -> None:
    if name == "chart":
        told = _of_chart("onExit=auto")
        plain = _of_chart("onExit=keep")
    else:
        told = by_name(layer("overlays/auto", "components/auto"))
        plain = by_name(kustomized("overlays/auto"))
    (of_daemon_sets,), (of_nodes,) = told["Role", ON_EXIT]["rules"], told["ClusterRole", ON_EXIT]["rules"]
    pod = told["DaemonSet", NAMESPACE]["spec"]["template"]["spec"]
    env = {each["name"]: each for each in pod["containers"][0]["env"]}

    kinds = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    assert told.keys() - plain.keys() == {(kind, ON_EXIT) for kind in kinds}
    names = [NAMESPACE]
    resource = {"apiGroups": ["apps"], "resources": ["daemonsets"], "resourceNames": names, "verbs": ["get"]}
    assert of_daemon_sets == resource
    assert of_nodes == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        account = {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": NAMESPACE}
        assert told[kind, ON_EXIT]["subjects"] == [account]
    assert env[f"{PREFIX}DAEMONSET"]["value"] == NAMESPACE
    assert env[f"{PREFIX}NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert pod["automountServiceAccountToken"] is True
    assert told["ServiceAccount", NAMESPACE]["automountServiceAccountToken"] is False


def test_the_policy_auto_is_admitted_on_openshift_with_its_token(layer: Layer) -> None:
    components = ("components/openshift", "components/auto")
    told = by_name(layer("overlays/auto", *components))["SecurityContextConstraints", NAMESPACE]
    chart = _of_chart("openshift=true", "onExit=auto")["SecurityContextConstraints", NAMESPACE]

    assert told["volumes"] == chart["volumes"] == ["hostPath", "projected"]


TURNS = "node-toolkit-installer-turns"


def test_nodes_with_turns_may_change_their_leases_and_read_nodes_and_nothing_else() -> None:
    told = _of_chart("onExit=keep", "turns.maxRestarting=12", "turns.stopAfter=3", "turns.canary=pool=canary")
    plain = _of_chart("onExit=keep")
    (of_all, of_named), (of_nodes,) = told["Role", TURNS]["rules"], told["ClusterRole", TURNS]["rules"]
    pod = told["DaemonSet", NAMESPACE]["spec"]["template"]["spec"]
    env = {each["name"]: each for each in pod["containers"][0]["env"]}
    lease = told["Lease", TURNS]

    kinds = ("Lease", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    assert told.keys() - plain.keys() == {(kind, TURNS) for kind in kinds}
    group = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    names = [TURNS, *(f"{NAMESPACE}-turn-{number}" for number in range(12))]
    assert of_all == {**group, "verbs": ["list", "create"]}
    assert of_named == {**group, "resourceNames": names, "verbs": ["get", "update"]}
    assert of_nodes == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    account = {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": NAMESPACE}
    assert (
        told["RoleBinding", TURNS]["subjects"] == told["ClusterRoleBinding", TURNS]["subjects"] == [account]
    )
    assert pod["automountServiceAccountToken"] is True
    assert env[f"{PREFIX}RELEASE"]["value"] == NAMESPACE
    assert env[f"{PREFIX}NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert leases.read_settings(lease, NAMESPACE) == Settings(NAMESPACE, 12, 3, "pool=canary")
    assert lease["metadata"]["name"] == name_settings(NAMESPACE)
    assert lease["metadata"]["labels"][leases.RELEASE] == NAMESPACE


def test_the_limit_of_turns_can_be_lowered_while_nodes_hold_some() -> None:
    rules = _of_chart("onExit=keep", "turns.maxRestarting=1")["Role", TURNS]["rules"]

    assert rules[1]["resourceNames"][-1] == f"{NAMESPACE}-turn-9"


def test_the_component_for_turns_and_the_program_name_the_same_leases(layer: Layer) -> None:
    told = by_name(layer("overlays/auto", "components/turns"))

    assert leases.read_settings(told["Lease", TURNS], NAMESPACE) == Settings(NAMESPACE)
    assert told["Role", TURNS]["rules"][1]["resourceNames"][1] == name_turn(NAMESPACE, 0)


@pytest.mark.parametrize(
    "settings",
    [
        *(("onExit=auto", "uninstall=true"), ("onExit=keep",), ()),
        ("onExit=keep", "turns.maxRestarting=3", "uninstall=true"),
    ],
)
def test_pods_that_ask_nothing_get_no_token_and_no_right(settings: tuple[str, ...]) -> None:
    manifests = charted(*settings)

    assert pod_of(manifests)["automountServiceAccountToken"] is False
    assert not [each["kind"] for each in manifests if "Role" in each["kind"]]


@pytest.mark.parametrize("settings", [("planAll=true",), ("planAll=true", "openshift=true", "onExit=auto")])
def test_a_plan_of_all_nodes_brings_nothing_that_installs(settings: tuple[str, ...]) -> None:
    told = _of_chart(*settings)

    assert ("DaemonSet", f"{NAMESPACE}-plan") in told
    assert {kind for kind, _ in told} <= {"DaemonSet", "ServiceAccount", "SecurityContextConstraints"}
    assert told["DaemonSet", f"{NAMESPACE}-plan"]["spec"]["selector"] != {
        "matchLabels": {"app.kubernetes.io/name": NAMESPACE}
    }


def test_openshift_admits_the_plan_of_all_nodes(layer: Layer) -> None:
    components = ("components/plan-all", "components/openshift")
    pod = by_name(layer("overlays/auto", *components))["DaemonSet", f"{NAMESPACE}-plan"]["spec"]["template"][
        "spec"
    ]

    assert pod["serviceAccountName"] == NAMESPACE


def test_the_pod_that_removes_the_taint_is_not_kept_away_by_it_and_ready_while_it_may_watch(
    layer: Layer,
) -> None:
    told = by_name(layer("overlays/auto", "components/startup-taint"))
    pod = told["Deployment", TAINT]["spec"]["template"]["spec"]

    tolerated = {each["key"] for each in pod["tolerations"]}
    assert tolerated >= {*STARTUP_TAINTS}
    assert "node.kubernetes.io/unreachable" not in tolerated, "it would stay on a node that is gone"
    (name,) = pod["containers"][0]["args"][1:]
    labels = told["DaemonSet", NAMESPACE]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == name
    assert pod["containers"][0]["readinessProbe"]["exec"]["command"] == ["test", "-e", READY]
    assert f"--register-with-taints={STARTUP_TAINTS[0]}:NoSchedule" in DOCUMENT


def test_the_runtime_classes_have_the_names_of_the_runtimes_and_go_where_the_daemon_set_goes(
    layer: Layer,
) -> None:
    selector = pod_of(kustomized("base"))["nodeSelector"]

    renamed = layer("overlays/auto", "components/runtime-name")
    for base, name in ((kustomized("base"), "nvidia"), (renamed, "gpu")):
        classes = [each for each in base if each["kind"] == "RuntimeClass"]
        names = {(each["metadata"]["name"], each["handler"]) for each in classes}
        assert names == {(each, each) for each in (name, "nvidia-cdi", "nvidia-legacy")}
        assert all(each["scheduling"] == {"nodeSelector": selector} for each in classes)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), 1),
        (("onExit=auto",), 1),
        # Kubernetes counts a node that is down as unavailable. Turns bound the restarts, so a node that is
        # down need not keep the others from the update.
        (("onExit=auto", "turns.maxRestarting=1"), "10%"),
        (("onExit=auto", "turns.maxRestarting=1", "maxUnavailable=3"), 3),
    ],
)
def test_with_turns_a_node_that_is_down_does_not_stop_the_update_of_the_others(
    settings: tuple[str, ...], expected: int | str
) -> None:
    (daemon_set,) = of_kind(charted(*settings), "DaemonSet")

    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == expected


@pytest.mark.parametrize(
    ("components", "expected"), [((), 1), (("components/auto",), 1), (("components/turns",), "10%")], ids=str
)
def test_the_component_for_turns_lets_an_update_pass_nodes_that_are_down(
    layer: Layer, components: tuple[str, ...], expected: int | str
) -> None:
    daemon_set = by_name(layer("overlays/auto", *components))["DaemonSet", NAMESPACE]

    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == expected


@pytest.mark.parametrize(("settings", "expected"), [((), "100%"), (("uninstallMaxUnavailable=5%",), "5%")])
def test_an_uninstall_of_all_nodes_has_a_pace_of_its_own(settings: tuple[str, ...], expected: str) -> None:
    (daemon_set,) = of_kind(charted("uninstall=true", "maxUnavailable=3", *settings), "DaemonSet")

    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == expected


def test_a_pod_is_looked_at_every_five_seconds_until_it_has_checked_its_node_for_the_first_time() -> None:
    container = container_of(kustomized("base"))
    startup, ready = container["startupProbe"], container["readinessProbe"]

    commands = [each["exec"]["command"] for each in (startup, ready)]
    assert commands == [["toolkit-probe", "--started"], ["toolkit-probe", "--ready"]]
    assert (startup["periodSeconds"], ready["periodSeconds"]) == (5, 10)
    longest_s = startup["failureThreshold"] * startup["periodSeconds"]
    assert longest_s >= 3600, "it would end an install that takes its time"


def _made(name: str) -> list[Manifest]:
    return charted(*name.split()[1:]) if name.startswith("chart") else kustomized(name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["base", "plan-all", "uninstall", "chart"])
def test_every_variable_in_it_is_one_of_ours(name: str) -> None:
    known = {*re.findall(rf"{PREFIX}\w+", (PROJECT / "docs/reference.md").read_text())}

    assert _env(_made(name)).keys() <= known


def test_the_table_of_what_we_ask_for_is_what_the_manifests_ask_for() -> None:
    asked = DOCUMENT.partition("| we ask for | why |")[2].partition("\n\n")[0]
    pod, container = pod_of(kustomized("base")), container_of(kustomized("base"))
    security, limits = container["securityContext"], container["resources"]

    assert re.findall(r"capability `(\w+)`", asked) == security["capabilities"]["add"]
    assert f"host directory `{pod['volumes'][0]['hostPath']['path']}` at `/host`" in asked
    assert f"SELinux type `{security['seLinuxOptions']['type']}`" in asked
    assert f"priority class `{pod['priorityClassName']}`" in asked
    assert f"grace of {pod['terminationGracePeriodSeconds']} s" in asked
    memory, most = (limits[each]["memory"][:-2] for each in ("requests", "limits"))
    assert f"memory: {memory} MiB asked for, {most} MiB" in asked
    assert f"CPU: {limits['requests']['cpu']} asked for" in asked
    assert "cpu" not in limits["limits"]
    assert f"AppArmor `{security['appArmorProfile']['type'].lower()}`" in asked
    assert len(asked.strip().splitlines()) == 14, "a row for each, and no other"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        *("base", "plan-all", "plan-node", "uninstall", "uninstall-node"),
        *(
            "chart planAll=true",
            "chart",
            "chart mode=cdi",
            f"chart mode=nri {NRI_ALLOW}",
            "chart onExit=keep",
        ),
    ],
)
def test_nothing_is_asked_for_that_is_not_needed(name: str) -> None:
    manifests = _made(name)
    pod, security = pod_of(manifests), container_of(manifests)["securityContext"]

    assert security["privileged"] is security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "hostPID"} & pod.keys()
    assert all(volume["hostPath"]["type"] == "Directory" for volume in pod["volumes"])
    assert not [each["kind"] for each in manifests if "Role" in each["kind"]]


def test_what_the_uninstall_may_do_is_what_the_daemon_set_may_do() -> None:
    ours = container_of(kustomized("base"))

    for directory in ("plan-all", "plan-node", "uninstall", "uninstall-node"):
        theirs = container_of(kustomized(directory))
        for right in ("securityContext", "volumeMounts", "terminationMessagePolicy"):
            assert theirs[right] == ours[right]


def test_every_directory_of_kustomize_is_looked_at() -> None:
    known = {*DIRECTORIES, *(f"components/{path.name}" for path in (KUSTOMIZE / "components").iterdir())}

    found = {str(Path(file).relative_to(KUSTOMIZE).parent) for file in KUSTOMIZE.rglob("kustomization.yaml")}
    assert found == known


def test_the_overlay_of_a_fleet_in_the_document_builds(tmp_path: Path) -> None:
    shutil.copytree(KUSTOMIZE, tmp_path / "kustomize")
    (overlay,) = re.findall(
        r"^```yaml\n(.*?resources:\n  - \.\./\.\./base\n.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL
    )
    (image,) = re.findall(r"^```yaml\n(images:\n.*?)^```$", README, re.MULTILINE | re.DOTALL)
    component = tmp_path / "kustomize/components/image/kustomization.yaml"
    component.write_text(f"{component.read_text().partition('images:')[0]}{image}")
    directory = tmp_path / "kustomize/overlays/fleet"
    directory.mkdir()
    (directory / "kustomization.yaml").write_text(overlay)

    made = objects(kubectl(), "kustomize", str(directory))

    lease = by_name(made)["Lease", "node-toolkit-installer-turns"]
    assert lease["metadata"]["annotations"] == {
        "node-toolkit-installer/at-most": "5",
        "node-toolkit-installer/canary": "gpu-pool=canary",
        "node-toolkit-installer/stop-after": "1",
    }
    assert container_of(made)["image"].startswith("registry.example.com/node-toolkit-installer:")
    for each in ("plan-all", "plan-node", "uninstall", "uninstall-node"):
        other = objects(kubectl(), "kustomize", str(tmp_path / "kustomize" / each))
        assert container_of(other)["image"] == container_of(made)["image"]
    assert _env(made)[f"{PREFIX}ON_EXIT"] == "auto"


def test_a_digest_of_the_image_wins_over_a_tag() -> None:
    digest = f"sha256:{'0' * 64}"

    assert container_of(charted(f"image.digest={digest}", "image.tag=0.3.1"))["image"].endswith(f"@{digest}")
    assert container_of(charted("image.digest=", "image.tag=0.3.1"))["image"].endswith(":0.3.1")
