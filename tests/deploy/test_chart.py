"""The chart as people expect of one: checked, documented, and refusing what makes no sense."""

import json
import re
import subprocess
import sys
from itertools import product

import pytest
import yaml

from tests.deploy.helm import CHART, NAMESPACE
from tests.deploy.rendered import DEPLOY, SCHEMAS, charted, container_of, helm, objects, pod_of, validate
from tests.deploy.values import START, rows, table
from tests.support.entry import PROJECT
from tests.support.golden import golden

SHA = "sha256:" + "ab" * 32
TERM = (
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    ".matchExpressions[0]"
)
VOLUMES = (
    *("extraVolumes[0].name=more", "extraVolumes[0].hostPath.path=/opt"),
    *("extraVolumeMounts[0].name=more", "extraVolumeMounts[0].mountPath=/opt"),
)
OF_A_NODE = pytest.mark.parametrize("value", ["planNode", "uninstallNode"])
ALL = (
    *VOLUMES,
    *("image.repository=registry.example.com/mine", f"image.digest={SHA}", "image.pullPolicy=Always"),
    *("imagePullSecrets[0].name=password", "nameOverride=mine", "runtime=docker", "runtimeName=gpu"),
    *(
        "metricsTextfile=/var/lib/n/t.prom",
        "metricsListen=[::]:9401",
        "nfdFeatures=/etc/f.d/t",
        "onExit=keep",
        "extraEnv[0].name=TOOLKIT_INSTALLER_INSTALL_DIR",
        "extraEnv[0].value=/opt/nvidia",
    ),
    *(f"{TERM}.key=a", f"{TERM}.operator=Exists"),
    *("maxUnavailable=10%", "priorityClassName=mine", "resourceQuota=true", "resources.limits.cpu=1"),
    *("labels.team=gpu", "annotations.a=b", "podLabels.c=d", "podAnnotations.e=f", "uninstallNode=gpu-7"),
    "startupTaint=true",
)


def _extra(name: str, value: str) -> tuple[str, str]:
    return f"extraEnv[0].name=TOOLKIT_INSTALLER_{name}", f"extraEnv[0].value={value}"


def _refused(*settings: str, verb: str = "template") -> str:
    done = subprocess.run(
        helm(verb, *settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=CHART.parents[2],
    )
    assert done.returncode == 1, done.stdout
    return done.stderr


def _lint(*settings: str) -> list[object]:
    (report,) = objects(*helm("lint", *settings))
    return list(report["bad"])


@pytest.mark.parametrize(
    "settings", [(), ALL, ("uninstall=true",), ("openshift=true", "runtimeClasses=false")]
)
def test_helms_strict_linter_is_content(settings: tuple[str, ...]) -> None:
    assert _lint(*settings) == []


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize(
    "settings", [(), ALL, ("uninstall=true",), ("resourceQuota=true", "nodeSelector=null")]
)
def test_what_the_chart_makes_holds_to_the_schemas(settings: tuple[str, ...], version: str) -> None:
    validate(charted(*settings), version)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param("onExit=kepp", "onExit", id="a misspelt policy"),
        pytest.param("onexit=keep", "onexit", id="a misspelt value"),
        pytest.param("runtime=podman", "runtime", id="an engine that we do not know"),
        pytest.param("runtimeName=runc", "runtimeName", id="the name of the runtime that ours wraps"),
        pytest.param("image.pullPolicy=always", "pullPolicy", id="a policy in lower case"),
        pytest.param("image.digest=sha256:12", "digest", id="half a digest"),
        pytest.param("maxUnavailable=0", "maxUnavailable", id="no node at a time"),
        pytest.param("maxUnavailable=many", "maxUnavailable", id="no number"),
        pytest.param("metricsTextfile=/var/lib/n", "metricsTextfile", id="a directory for metrics"),
        pytest.param("nfdFeatures=/etc/f.d/.t", "nfdFeatures", id="a file that NFD ignores"),
        pytest.param("imagePullSecrets[0]=password", "imagePullSecrets", id="a secret without name:"),
        pytest.param("uninstallNode=a b", "uninstallNode", id="no name of a node"),
        pytest.param("planNode=A", "planNode", id="no name of a node to plan for"),
        pytest.param("metricsListen=9400", "metricsListen", id="a port without an address"),
        pytest.param("podMonitor=true", "podMonitor needs metricsListen", id="a monitor of nothing"),
        pytest.param("startupTaint=NoSchedule", "startupTaint", id="a taint of one's own"),
        pytest.param("mode=csi", "mode", id="a misspelt mode"),
        pytest.param("mode=nri", "the NRI plugin needs nri.allow", id="NRI for nobody"),
        pytest.param("nri.enabled=true", "the NRI plugin needs nri.allow", id="a plugin for nobody"),
        *(
            pytest.param(
                f"nri.allow[0]={value}",
                f'nri.allow has "{value}": write NAMESPACE=VENDOR/CLASS, such as gpu-operator=nvidia.com/gpu; '
                "there is no wildcard",
                id=f"allowed: {value}",
            )
            for value in ("*=nvidia.com/gpu", "gpu-operator", "a=nvidia.com", "A=b.c/d", "a=b.c/d ")
        ),
        pytest.param("nri.allow[0]=a=b.c/d", "nri.allow needs mode: nri", id="allowed, and nobody asks"),
        pytest.param("runtimeClasses=yes please", "runtimeClasses", id="neither true nor false"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(setting: str, said: str) -> None:
    assert said in _refused(setting)


MOUNTS = "acceptNvidiaVisibleDevices.asVolumeMounts=true"
ALLOW = "nri.allow[0]=gpu-operator=nvidia.com/gpu"


@pytest.mark.parametrize("mode", [("mode=cdi",), ("mode=nri", ALLOW)])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("runtimeName=gpu",), "leave runtimeName"),
        ((MOUNTS,), "leave acceptNvidiaVisibleDevices.asVolumeMounts as it is"),
        (_extra("SET_AS_DEFAULT", "True"), "leave TOOLKIT_INSTALLER_SET_AS_DEFAULT of extraEnv as it is"),
        (_extra("RUNTIME_NAME", "gpu"), "leave TOOLKIT_INSTALLER_RUNTIME_NAME of extraEnv as it is"),
        (_extra("CRIO_HOOK", "/etc/h.json"), "leave TOOLKIT_INSTALLER_CRIO_HOOK of extraEnv as it is"),
        (
            _extra("ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS", "true"),
            "leave TOOLKIT_INSTALLER_ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS of extraEnv as it is",
        ),
        ((MOUNTS, "runtimeName=gpu"), "leave runtimeName and acceptNvidiaVisibleDevices.asVolumeMounts as"),
    ],
)
def test_what_needs_a_runtime_is_refused_where_there_is_none(
    settings: tuple[str, ...], said: str, mode: tuple[str, ...]
) -> None:
    assert f"{mode[0].replace('=', ' ')} has no runtime: {said}" in _refused(*mode, *settings)
    assert charted(*settings)
    assert charted(*mode, *settings, "uninstall=true"), "nothing keeps anybody from an uninstall"


@pytest.mark.parametrize(
    ("name", "value"), [("SET_AS_DEFAULT", "false"), ("RUNTIME_NAME", "nvidia"), ("CRIO_HOOK", "")]
)
def test_what_says_that_no_runtime_is_asked_for_is_let_through(name: str, value: str) -> None:
    assert charted("mode=cdi", *_extra(name, value))


def taken(flag: str) -> list[str]:
    """Return what a flag takes, as the program's help says it; of the engines the first stands for all."""
    command = [sys.executable, "-m", "installer", "run", "--help"]
    said = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    (choices,) = re.findall(rf"^  {flag} \[([a-z0-9|-]+)\]", said, re.MULTILINE)
    return str(choices).split("|")


@pytest.mark.parametrize("asked", ["mode=nri", "nri.enabled=true"])
def test_nri_is_refused_for_just_the_engines_that_have_none(asked: str) -> None:
    for name in taken("--runtime")[1:]:
        if name == "docker":
            assert f"{name} has no NRI: choose another mode" in _refused(asked, ALLOW, f"runtime={name}")
        else:
            assert charted(asked, ALLOW, f"runtime={name}")


@pytest.mark.parametrize(
    ("variable", "value"), [("MODE", "mode"), ("NRI", "nri.enabled"), ("NRI_ALLOW", "nri.allow")]
)
def test_a_mode_that_the_chart_would_not_see_is_refused(variable: str, value: str) -> None:
    said = _refused(*_extra(variable, "cdi"))

    assert f"extraEnv has TOOLKIT_INSTALLER_{variable}: use the value {value}" in said


SINCE_0_1_0 = ("mode=null", "nri=null", "planNode=null")


@pytest.mark.parametrize(
    ("settings", "verb"),
    [
        *product([(), ("uninstall=true",)], ["template", "upgrade"]),
        (("planNode=null", "uninstallNode=gpu-7"), "template"),
    ],
)
def test_the_values_of_an_older_chart_do_what_they_did(settings: tuple[str, ...], verb: str) -> None:
    """``helm upgrade --reuse-values`` brings the defaults of the old chart, without what came later."""
    old = objects(*helm(verb, *SINCE_0_1_0, *settings))

    assert old == objects(*helm(verb, *settings))
    assert "TOOLKIT_INSTALLER_MODE" not in json.dumps(old)


def test_nri_with_the_values_of_an_older_chart_has_no_empty_mode() -> None:
    assert charted("mode=null", "nri.enabled=true", ALLOW) == charted("nri.enabled=true", ALLOW)
    assert charted("nri.enabled=null", "nri.allow=null", "mode=cdi") == charted("mode=cdi")


@pytest.mark.parametrize("name", sorted(yaml.safe_load((CHART / "values.yaml").read_text())))
def test_a_value_that_is_taken_away_is_refused_by_its_name_or_renders(name: str) -> None:
    if name in json.loads((CHART / "values.schema.json").read_text())["required"]:
        assert f"missing property '{name}'" in _refused(f"{name}=null")
    else:
        validate(charted(f"{name}=null"), SCHEMAS[-1])


@OF_A_NODE
def test_an_upgrade_refuses_the_job_of_a_node_which_the_api_would_not_let_change(value: str) -> None:
    assert f"{value} is for helm template alone" in _refused(f"{value}=gpu-7", verb="upgrade")


@OF_A_NODE
def test_the_job_of_a_node_with_a_long_name_has_a_name_that_its_pods_can_have(value: str) -> None:
    nodes = [f"gpu-{'x' * 80}.{each}.example.com" for each in ("a", "b")]
    nodes += [f"gpu-{'x' * length}" for length in (40, 41, 42, 45, 46, 47)]

    jobs = [next(each for each in charted(f"{value}={node}") if each["kind"] == "Job") for node in nodes]
    names = [each["metadata"]["name"] for each in jobs]
    assert len({*names}) == len(nodes)
    assert all(len(name) <= 63 and name[-1].isalnum() for name in names)
    for node, job in zip(nodes, jobs, strict=True):
        assert node in json.dumps(job["spec"]["template"]["spec"]["affinity"])


@OF_A_NODE
def test_the_job_of_a_node_sees_what_the_daemon_set_sees_and_openshift_admits_it(value: str) -> None:
    manifests = charted(f"{value}=gpu-7", *VOLUMES, "openshift=true")
    job, daemon_set, (constraints,) = (
        [each for each in manifests if each["kind"] == kind]
        for kind in ("Job", "DaemonSet", "SecurityContextConstraints")
    )

    validate(job, SCHEMAS[-1])
    assert pod_of(job)["volumes"] == pod_of(daemon_set)["volumes"]
    assert len(container_of(job)["volumeMounts"]) == 2
    assert container_of(job)["volumeMounts"] == container_of(daemon_set)["volumeMounts"]
    assert constraints["users"] == [f"system:serviceaccount:{NAMESPACE}:{pod_of(job)['serviceAccountName']}"]
    assert pod_of(job)["automountServiceAccountToken"] is False
    (plain,) = (each for each in charted(f"{value}=gpu-7") if each["kind"] == "Job")
    assert "serviceAccountName" not in pod_of([plain])


def test_each_value_is_where_it_belongs() -> None:
    manifests = charted(*ALL)
    (daemon_set,) = (each for each in manifests if each["kind"] == "DaemonSet")
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    (job,) = (each for each in manifests if each["kind"] == "Job")
    pod, container = pod_of([daemon_set]), container_of([daemon_set])

    for made in (container, container_of([job]), container_of([deployment])):
        assert made["image"] == f"registry.example.com/mine@{SHA}"
        assert made["imagePullPolicy"] == "Always"
    for made in (container, container_of([job])):
        assert {"name": "TOOLKIT_INSTALLER_INSTALL_DIR", "value": "/opt/nvidia"} in made["env"]
    assert {"name": "TOOLKIT_INSTALLER_METRICS_TEXTFILE", "value": "/var/lib/n/t.prom"} in container["env"]
    assert {"name": "TOOLKIT_INSTALLER_METRICS_LISTEN", "value": "[::]:9401"} in container["env"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9401}]
    assert {"name": "TOOLKIT_INSTALLER_NFD_FEATURES", "value": "/etc/f.d/t"} in container["env"]
    assert {each["metadata"]["labels"]["team"] for each in manifests} == {"gpu"}
    for each in (pod, pod_of([job]), pod_of([deployment])):
        assert each["imagePullSecrets"] == [{"name": "password"}]
        assert each["priorityClassName"] == "mine"
    assert container_of([deployment])["args"] == ["untaint", "mine"]
    assert pod["serviceAccountName"] == daemon_set["metadata"]["name"] == "mine"
    assert "nodeAffinity" in pod["affinity"]
    assert {each["name"] for each in pod["volumes"]} == {"host", "more"}
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/host", "/opt"}
    assert container["resources"]["limits"] == {"cpu": 1, "memory": "128Mi"}
    template = daemon_set["spec"]["template"]["metadata"]
    assert daemon_set["metadata"]["annotations"] == {"a": "b"}
    assert template["annotations"] == {"e": "f"}
    assert template["labels"]["c"] == "d"
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}


def test_the_labels_that_select_pods_are_never_others() -> None:
    (daemon_set,) = (each for each in charted("labels.a=b", "podLabels.c=d") if each["kind"] == "DaemonSet")

    # A selector cannot be changed: with a version in it no upgrade would be possible.
    assert daemon_set["spec"]["selector"] == {
        "matchLabels": {"app.kubernetes.io/name": "node-toolkit-installer"}
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ("nodeSelector.gpu=yes",),
            [
                "kubectl label node NODE gpu=yes",
                "rollout status daemonset/node-toolkit-installer",
                "--set runtimeClassName=nvidia",
                "runtimeClassName: nvidia",
                # Helm's own --wait waits for no pod where all may be unavailable at once.
                "--set uninstall=true\n  kubectl --namespace node-toolkit-installer rollout status daemonset/",
            ],
        ),
        (("nameOverride=mine", "runtimeName=gpu"), ["daemonset/mine", "runtimeClassName: gpu"]),
        (("mode=auto",), ["or found to take devices by CDI:", "The plan of a node says"]),
        (("mode=cdi",), ["were found to take devices by CDI:", "\nTo uninstall from all nodes"]),
        (
            ("mode=nri", "nri.allow[0]=a=b.c/d", "nri.allow[1]=e=b.c/f"),
            ["Pods of a, e may ask the NRI plugin"],
        ),
        (
            ("uninstall=true",),
            ["rollout status", "helm --namespace node-toolkit-installer uninstall release"],
        ),
    ],
)
def test_the_notes_tell_the_next_steps(settings: tuple[str, ...], words: list[str]) -> None:
    (notes,) = (each["notes"] for each in objects(*helm("template", *settings)) if "notes" in each)

    assert [word for word in words if word not in notes] == []


def test_the_pod_of_the_notes_is_the_one_of_the_documents() -> None:
    (notes,) = (each["notes"] for each in objects(*helm("template")) if "notes" in each)
    text = notes.partition("<<END\n")[2].partition("  END")[0]

    pod = yaml.safe_load(text)
    assert pod == yaml.safe_load((DEPLOY / "gpu-test.yaml").read_text())
    validate([pod], SCHEMAS[-1])
    classes = {each["handler"] for each in charted() if each["kind"] == "RuntimeClass"}
    assert pod["spec"]["runtimeClassName"] in classes


def test_every_value_has_a_comment_a_type_and_a_row_in_the_readme() -> None:
    readme = CHART / "README.md"
    text = readme.read_text()
    before, _, rest = text.partition(START)
    after = rest.partition("\n\n")[2]
    whole = f"{before}{table()}\n{after}" if after else before + table()

    assert table() in golden(readme, whole)
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    told = {path for path, _, _ in rows()}
    nested = {"image", "acceptNvidiaVisibleDevices", "nri"}
    typed = {f"{name}.{inner}" for name in nested for inner in schema[name]["properties"]}
    assert told == typed | (schema.keys() - nested - {"global"})


@pytest.mark.parametrize(
    ("value", "flag"), [("onExit", "--on-exit"), ("runtime", "--runtime"), ("mode", "--mode")]
)
def test_a_value_takes_what_its_flag_takes(value: str, flag: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]

    assert schema[value]["enum"] == taken(flag)
