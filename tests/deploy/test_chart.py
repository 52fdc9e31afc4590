"""The chart as people expect of one: checked, documented, and refusing what makes no sense."""

import json
import subprocess

import pytest
import yaml

from installer.flags import FLAGS
from tests.deploy.helm import CHART
from tests.deploy.rendered import DEPLOY, SCHEMAS, charted, container_of, helm, objects, pod_of, validate
from tests.deploy.values import START, rows, table
from tests.support.golden import golden

SHA = "sha256:" + "ab" * 32
TERM = (
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    ".matchExpressions[0]"
)
ALL = (
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
    *("extraVolumes[0].name=more", "extraVolumes[0].hostPath.path=/opt"),
    *("extraVolumeMounts[0].name=more", "extraVolumeMounts[0].mountPath=/opt"),
    *(f"{TERM}.key=a", f"{TERM}.operator=Exists"),
    *("maxUnavailable=10%", "priorityClassName=mine", "resourceQuota=true", "resources.limits.cpu=1"),
    *("labels.team=gpu", "annotations.a=b", "podLabels.c=d", "podAnnotations.e=f", "uninstallNode=gpu-7"),
    "startupTaint=true",
)


def _refused(*settings: str) -> str:
    done = subprocess.run(
        helm("template", *settings),
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


def test_the_linter_would_see_a_wrong_value() -> None:
    assert _lint("onExit=kepp") != []


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
        pytest.param("metricsListen=9400", "metricsListen", id="a port without an address"),
        pytest.param("podMonitor=true", "podMonitor needs metricsListen", id="a monitor of nothing"),
        pytest.param("startupTaint=NoSchedule", "startupTaint", id="a taint of one's own"),
        pytest.param("runtimeClasses=yes please", "runtimeClasses", id="neither true nor false"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(setting: str, said: str) -> None:
    assert said in _refused(setting)


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
    nested = {"image", "acceptNvidiaVisibleDevices"}
    typed = {f"{name}.{inner}" for name in nested for inner in schema[name]["properties"]}
    assert told == typed | (schema.keys() - nested - {"global"})


@pytest.mark.parametrize(("value", "flag"), [("onExit", "--on-exit"), ("runtime", "--runtime")])
def test_a_value_takes_what_its_flag_takes(value: str, flag: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]

    choices = next(each.choices for each in FLAGS if each.name == flag)
    assert schema[value]["enum"] == list(choices)
