"""The chart as people expect of one: checked, documented, and refusing what makes no sense."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import pytest
import yaml

from tests.deploy.helm import CHART, NAMESPACE
from tests.deploy.rendered import SCHEMAS, charted, container_of, helm, objects, of_kind, pod_of, validate
from tests.support import preloaded
from tests.support.entry import PROJECT
from tests.support.golden import golden

SHA = "sha256:" + "ab" * 32
TERM = (
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    ".matchExpressions[0]"
)
OF_A_NODE = pytest.mark.parametrize("value", ["planNode", "uninstallNode"])
ALL = (
    *("extraVolumes[0].name=more", "extraVolumes[0].hostPath.path=/opt"),
    *("extraVolumeMounts[0].name=more", "extraVolumeMounts[0].mountPath=/opt"),
    *("image.repository=registry.example.com/mine", f"image.digest={SHA}", "image.pullPolicy=Always"),
    *("imagePullSecrets[0].name=password", "nameOverride=mine", "runtime=docker", "runtimeName=gpu"),
    *(
        "metricsTextfile=/var/lib/n/t.prom",
        "metricsListen=[::]:9401",
        "nfdFeatures=/etc/f.d/t",
        "onExit=keep",
    ),
    *("extraEnv[0].name=TOOLKIT_INSTALLER_INSTALL_DIR", "extraEnv[0].value=/opt/nvidia"),
    *(f"{TERM}.key=a", f"{TERM}.operator=Exists", "startupTaint=true"),
    *("maxUnavailable=10%", "priorityClassName=mine", "resourceQuota=true", "resources.limits.cpu=1"),
    *("labels.team=gpu", "annotations.a=b", "podLabels.c=d", "podAnnotations.e=f", "uninstallNode=gpu-7"),
)
TURNS = ("turns.maxRestarting=12", "turns.canary=gpu-pool=canary", "turns.soakSeconds=0", "onExit=keep")
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
START = "| value | default | what it is |\n|---|---|---|\n"
_KEY = re.compile(r"^( *)(\w+):(.*)$")


def _extra(name: str, value: str) -> tuple[str, str]:
    return f"extraEnv[0].name=TOOLKIT_INSTALLER_{name}", f"extraEnv[0].value={value}"


def _refused(*settings: str, verb: str = "template") -> str:
    done = subprocess.run(helm(verb, *settings), capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 1, done.stdout
    return done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize(
    "settings",
    [(), ALL, ("uninstall=true",), ("resourceQuota=true", "nodeSelector=null"), ("onExit=auto",), TURNS],
)
def test_what_the_chart_makes_holds_to_the_schemas(settings: tuple[str, ...], version: str) -> None:
    validate(charted(*settings), version)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("onExit=kepp", "onExit"),
        ("onexit=keep", "onexit"),
        ("runtime=podman", "runtime"),
        ("runtimeName=runc", "runtimeName"),
        ("image.digest=sha256:12", "digest"),
        ("maxUnavailable=0", "maxUnavailable"),
        ("uninstallMaxUnavailable=0", "uninstallMaxUnavailable"),
        ("metricsTextfile=/var/lib/n", "metricsTextfile"),
        ("nfdFeatures=/etc/f.d/.t", "nfdFeatures"),
        ("imagePullSecrets[0]=password", "imagePullSecrets"),
        ("uninstallNode=a b", "uninstallNode"),
        ("planNode=A", "planNode"),
        ("metricsListen=9400", "metricsListen"),
        ("podMonitor=true", "podMonitor needs metricsListen"),
        ("planAll=yes", "planAll"),
        ("mode=csi", "mode"),
        ("turns.maxRestarting=2", "turns.maxRestarting needs onExit: auto, or keep"),
        ("turns.maxRestarting=-1", "maxRestarting"),
        ("turns.stopAfter=0", "stopAfter"),
        ("turns.canary=a b", "canary"),
        ("mode=nri", "the NRI plugin needs nri.allow"),
        ("nri.enabled=true", "the NRI plugin needs nri.allow"),
        ("nri.allow[0]=a=b.c/d", "nri.allow needs mode: nri"),
        *(
            (f"nri.allow[0]={value}", f'nri.allow has "{value}": write NAMESPACE=VENDOR/CLASS, such as')
            for value in ("*=nvidia.com/gpu", "a=nvidia.com", "a=b.c/d ")
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(setting: str, said: str) -> None:
    assert said in _refused(setting)


ALLOW = "nri.allow[0]=gpu-operator=nvidia.com/gpu"


def taken(flag: str) -> list[str]:
    """Return what a flag takes, as the program's help says it; of the engines the first stands for all."""
    said = preloaded.run([sys.executable, "-m", "installer", "run", "--help"]).stdout
    (choices,) = re.findall(rf"^  {flag} \[([a-z0-9|-]+)\]", said, re.MULTILINE)
    return str(choices).split("|")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("variable", "value"), [("MODE", "mode"), ("NRI", "nri.enabled"), ("NRI_ALLOW", "nri.allow")]
)
def test_a_mode_that_the_chart_would_not_see_is_refused(variable: str, value: str) -> None:
    said = _refused(*_extra(variable, "cdi"))

    assert f"extraEnv has TOOLKIT_INSTALLER_{variable}: use the value {value}" in said


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("RELEASE", "turns.maxRestarting"), ("MAX_RESTARTING", "turns.maxRestarting")),
        *(("STOP_AFTER", "turns.stopAfter"), ("CANARY", "turns.canary")),
    ],
)
def test_a_setting_of_turns_that_the_chart_would_not_see_is_refused(variable: str, value: str) -> None:
    said = _refused(*_extra(variable, "some"))

    assert f"extraEnv has TOOLKIT_INSTALLER_{variable}: use the value {value}" in said


def test_a_value_of_extra_env_that_is_no_text_is_refused_before_the_api_refuses_it() -> None:
    said = _refused("extraEnv[0].name=TOOLKIT_INSTALLER_DRIFT", "extraEnv[0].value=true")

    assert "extraEnv" in said
    assert "string" in said


SINCE_0_1_0 = ("mode=null", "nri=null", "planNode=null", "turns=null")


@pytest.mark.sampled(4)
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
    assert charted("mode=null", "nri.enabled=true", ALLOW) == charted("nri.enabled=true", ALLOW)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(yaml.safe_load((CHART / "values.yaml").read_text())))
def test_a_value_that_is_taken_away_is_refused_by_its_name_or_renders(name: str) -> None:
    if name in SCHEMA["required"]:
        assert f"missing property '{name}'" in _refused(f"{name}=null")
    else:
        validate(charted(f"{name}=null"), SCHEMAS[-1])


@pytest.mark.sampled(4)
@OF_A_NODE
def test_an_upgrade_refuses_the_job_of_a_node_which_the_api_would_not_let_change(value: str) -> None:
    assert f"{value} is for helm template alone" in _refused(f"{value}=gpu-7", verb="upgrade")


@pytest.mark.sampled(4)
@OF_A_NODE
def test_the_job_of_a_node_with_a_long_name_has_a_name_that_its_pods_can_have(value: str) -> None:
    nodes = [f"gpu-{'x' * 80}.{each}.example.com" for each in ("a", "b")]
    nodes += [f"gpu-{'x' * length}" for length in (40, 41, 42, 45, 46, 47)]

    jobs = [of_kind(charted(f"{value}={node}"), "Job")[0] for node in nodes]
    names = [each["metadata"]["name"] for each in jobs]
    assert len({*names}) == len(nodes)
    assert all(len(name) <= 63 and name[-1].isalnum() for name in names)
    for node, job in zip(nodes, jobs, strict=True):
        pod = job["spec"]["template"]["spec"]
        selector = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        named = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        assert selector["nodeSelectorTerms"] == [{"matchFields": named}]
        assert "nodeName" not in pod, "the scheduler places it"


def test_each_value_is_where_it_belongs() -> None:
    manifests = charted(*ALL)
    daemon_set, deployment, job = of_kind(manifests, "DaemonSet", "Deployment", "Job")
    pod, container = pod_of([daemon_set]), container_of([daemon_set])

    for made in (container, container_of([job]), container_of([deployment])):
        assert (made["image"], made["imagePullPolicy"]) == (f"registry.example.com/mine@{SHA}", "Always")
    for each in (pod, pod_of([job]), pod_of([deployment])):
        assert (each["imagePullSecrets"], each["priorityClassName"]) == ([{"name": "password"}], "mine")
    assert {"name": "TOOLKIT_INSTALLER_INSTALL_DIR", "value": "/opt/nvidia"} in container_of([job])["env"]
    env = {each["name"].removeprefix("TOOLKIT_INSTALLER_"): each.get("value") for each in container["env"]}
    assert (env["INSTALL_DIR"], env["METRICS_TEXTFILE"]) == ("/opt/nvidia", "/var/lib/n/t.prom")
    assert (env["METRICS_LISTEN"], env["NFD_FEATURES"]) == ("[::]:9401", "/etc/f.d/t")
    assert container["ports"] == [{"name": "metrics", "containerPort": 9401}]
    assert {each["metadata"]["labels"]["team"] for each in manifests} == {"gpu"}
    assert container_of([deployment])["args"] == ["untaint", "mine"]
    assert pod["serviceAccountName"] == daemon_set["metadata"]["name"] == "mine"
    assert "nodeAffinity" in pod["affinity"]
    assert {each["name"] for each in pod["volumes"]} == {"host", "more"}
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/host", "/opt"}
    assert pod_of([job])["volumes"] == pod["volumes"]
    assert container_of([job])["volumeMounts"] == container["volumeMounts"]
    assert container["resources"]["limits"] == {"cpu": 1, "memory": "128Mi"}
    template = daemon_set["spec"]["template"]["metadata"]
    assert (daemon_set["metadata"]["annotations"], template["annotations"]) == ({"a": "b"}, {"e": "f"})
    assert template["labels"]["c"] == "d"
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}


def test_the_labels_that_select_pods_are_never_others() -> None:
    (daemon_set,) = of_kind(charted("labels.a=b", "podLabels.c=d"), "DaemonSet")

    # A selector cannot be changed: with a version in it no upgrade would be possible.
    assert daemon_set["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": NAMESPACE}


def rows() -> list[tuple[str, str, str]]:
    """Return path, default and meaning of each value that has a comment."""
    text = (CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    return [(path, json.dumps(_at(defaults, path)), told) for path, told in _commented(text)]


def table() -> str:
    """Return the table of the README."""
    return START + "".join(f"| `{path}` | `{default}` | {told} |\n" for path, default, told in rows())


def _commented(text: str) -> Iterator[tuple[str, str]]:
    above, told = "", ""
    for line in text.splitlines():
        found = _KEY.match(line)
        if line.strip().startswith("# "):
            told = f"{told} {line.strip()[2:]}".strip()
        elif found and told:
            yield (f"{above}.{found[2]}" if found[1] else found[2]), told
            told = ""
        if found and not found[1]:
            above = found[2]


def _at(values: object, path: str) -> object:
    for name in path.split("."):
        assert isinstance(values, dict)
        values = values[name]
    return values


def test_every_value_has_a_comment_a_type_and_a_row_in_the_readme() -> None:
    readme = CHART / "README.md"
    text = readme.read_text()
    before, _, rest = text.partition(START)
    after = rest.partition("\n\n")[2]
    whole = f"{before}{table()}\n{after}" if after else before + table()

    assert table() in golden(readme, whole)
    schema, told = SCHEMA["properties"], {path for path, _, _ in rows()}
    nested = {"image", "acceptNvidiaVisibleDevices", "nri", "turns"}
    typed = {f"{name}.{inner}" for name in nested for inner in schema[name]["properties"]}
    assert told == typed | (schema.keys() - nested - {"global"})


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("value", "flag"), [("onExit", "--on-exit"), ("runtime", "--runtime"), ("mode", "--mode")]
)
def test_a_value_takes_what_its_flag_takes(value: str, flag: str) -> None:
    assert SCHEMA["properties"][value]["enum"] == taken(flag)
