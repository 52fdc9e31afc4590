"""Every command that a document has people type is run, read from the document; links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from installer.cli.demo import demo
from tests.deploy.helm import NAMESPACE
from tests.deploy.rendered import by_name, charted, kubectl, kustomized
from tests.documents import CHART, DOCUMENTS, PROJECT, Command, anchors, commands, starting
from tests.support.site import CONTAINERD, LEDGER, Site
from tests.support.stand_in import stand_in_payload

# Run somewhere else, by a test that reads them from the document as well.
ELSEWHERE = {
    "apt-get install": "tests/fresh/__main__.py",
    "python3 -m venv": "tests/fresh/__main__.py",
    "/opt/toolkit-installer/bin/pip": "tests/fresh/__main__.py",
    "ln --symbolic": "tests/fresh/__main__.py",
    "docker run": "tests/engines/test_documents.py",
    "ctr run": "tests/engines/test_documents.py",
    "mv /usr/local": "tests/test_documents.py",
    "grep --after-context": "tests/test_documents.py",
    "cp /usr/local": "tests/test_documents.py",
    "cp deploy/systemd": "tests/engines/test_documents.py",
    "systemctl enable": "tests/engines/test_documents.py",
    "systemctl reload": "tests/engines/test_documents.py",
    "toolkit-installer verify": "tests/engines/test_documents.py",
    "toolkit-installer doctor": "tests/engines/test_documents.py",
    "rm -r /opt": "tests/fresh/__main__.py",
    "ctr --namespace": "tests/engines/node/conftest.py",
    "docker load": "tests/engines/node/conftest.py",
}
# Run by no test that reads them: for want of the program, of a registry, or because another test says the same.
UNREAD = {
    "images/build": "tests/image/builder.py runs the script with variables of its own",
    "images/fetch-payload": "tests/engines/node/test_payload.py runs it, with an archive of its own",
    "PAYLOAD=local images/build": "as above",
    "journalctl -u toolkit-installer-undo": "tests/engines/test_crio.py reads that journal",
    "docker save": "the images of make image come from buildah",
    "helm upgrade gpu-operator": "for want of the chart of the GPU Operator",
    "docker tag": "for want of a registry",
    "docker push": "as above",
    "python3 -m pip wheel": "it asks the package index for what `pip install .` of tests/fresh asks it for",
    "k3s ctr": "k3s is in no package registry",
    "skopeo copy": "CRI-O is in no Debian",
}
CHART_DIRECTORY = str(Path(CHART).parent)
PROGRAMS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
HERE = ("kubectl", "helm", "sed", "make", "toolkit-installer")


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which a command finds kubectl, but no cluster."""
    (tmp_path / "kubectl").symlink_to(kubectl())
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: none\ncontexts: [{name: none, context: {cluster: none}}]\n"
        'clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]\n'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {"PATH": path, "KUBECONFIG": str(config), "HOME": str(tmp_path)}


def _run(command: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", "-c", command], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", starting("kubectl", "sed"), ids=str)
def test_a_command_for_a_cluster_fails_only_for_want_of_one(command: Command, shell: dict[str, str]) -> None:
    done = _run(command.text, shell)

    if "kubectl" in command.text:
        assert re.search(r"127\.0\.0\.1:9\b.*refused", done.stderr), done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command", [each for each in starting("helm") if CHART_DIRECTORY in each.text], ids=str
)
def test_helm_is_told_templates_and_values_that_the_chart_has(command: Command) -> None:
    words = shlex.split(command.text)
    values = [value for before, word in pairwise(words) if before == "--set" for value in word.split(",")]

    assert charted(*values)
    templates = [word for word in words if word.startswith("templates/")]
    assert [word for word in templates if not (PROJECT / CHART_DIRECTORY / word).exists()] == []


def test_what_the_commands_name_is_in_the_manifests() -> None:
    words = {word for each in commands() for word in each.text.split()}
    chart = charted("uninstallNode=gpu-node-7", "planNode=gpu-node-7")
    manifests = by_name([*kustomized("base"), *kustomized("namespace"), *kustomized("plan-all"), *chart])
    known = {f"{kind.lower()}/{name}" for kind, name in manifests} | {"pod/gpu-test"}

    named = {word for word in words if re.fullmatch(r"(daemonset|job|pod)/[\w-]+", word)}
    assert "daemonset/node-toolkit-installer" in named
    assert named <= known


@pytest.mark.parametrize("command", starting("make"), ids=str)
def test_make_has_the_target(command: Command) -> None:
    done = _run(f"{command.text} --dry-run", {"PATH": os.environ["PATH"]})

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", ["README.md", "docs/host.md", "docs/gpu-operator.md"])
def test_the_commands_of_a_document_work_in_their_order(document: str, site: Site) -> None:
    environment = {
        "PATH": PROGRAMS,
        "TOOLKIT_INSTALLER_HOST_ROOT": str(site.root),
        "TOOLKIT_INSTALLER_RUNTIME": "docker",
        "TOOLKIT_INSTALLER_RESTART_MODE": "none",
    }
    here = (each for each in starting("toolkit-installer") if each.document == document)
    typed = [each.text for each in here if each not in starting(*ELSEWHERE)]

    assert typed
    for text in typed:
        command = text.removeprefix("sudo ").replace("/opt/nvidia-toolkit", str(site.source))
        done = _run(command, environment)
        assert done.returncode == (10 if " plan " in command else 0), done.stderr


def test_the_command_for_a_node_image_works_where_no_engine_runs(tmp_path: Path) -> None:
    text = (PROJECT / "docs/host.md").read_text().partition("## In a node image")[2]
    command = " ".join(re.findall(r"`(toolkit-installer [^`]+)`", text)[0].split())
    root, source = tmp_path / "node", tmp_path / "toolkit"
    (root / "etc").mkdir(parents=True)
    stand_in_payload(source)
    environment = {"PATH": PROGRAMS, "TOOLKIT_INSTALLER_HOST_ROOT": str(root)}
    command = command.replace("/opt/nvidia-toolkit", str(source))

    asked = _run(command.replace("--restart-mode none", ""), environment)
    done = _run(command, environment)

    assert (asked.returncode, done.returncode) == (1, 0), done.stderr
    assert "nvidia-container-runtime" in (root / "etc/containerd/config.toml").read_text()


def test_a_ledger_without_a_form_number_is_given_up_as_the_document_says(site: Site) -> None:
    before = site.tree()
    site.install()
    ledger = site.root / LEDGER
    ledger.write_text(re.sub(r' "form": 1,\n', "", ledger.read_text()))
    (site.root / "root").mkdir()
    move, uninstall = [each.text for each in commands() if each.document == "docs/upgrade.md"][-2:]

    refused = site.call("uninstall")
    moved = _run(re.sub(r" /", f" {site.root}/", move), {"PATH": PROGRAMS})
    done = site.call(uninstall.split()[1])

    assert refused.returncode == 1
    assert "it has no form number" in refused.stderr
    assert (moved.returncode, done.returncode) == (0, 0), done.stderr
    assert {path: site.tree().get(path) for path in before} == before, "each config as it was"


def test_a_config_is_restored_by_hand_as_the_document_says(site: Site) -> None:
    config = site.root / CONTAINERD
    before = config.read_bytes()
    site.install()
    installed = config.read_bytes()
    search, copy = (
        re.sub(r" /", f" {site.root}/", each.text.removeprefix("sudo "))
        for each in starting("grep --after-context", "cp /usr/local")
    )

    entry = _run(search, {"PATH": PROGRAMS}).stdout
    (digest,) = re.findall(r'"original": \{\s*"digest": "(\w+)"', entry)
    copied = _run(copy.replace("DIGEST", digest), {"PATH": PROGRAMS})

    assert copied.returncode == 0, copied.stderr
    assert before != installed
    assert config.read_bytes() == before


class _Cluster(BaseHTTPRequestHandler):
    """An API server with a Job that was created a moment ago, and has ended when it is looked at again."""

    conditions: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        job: dict[str, object] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "toolkit-plan-gpu-node-7", "namespace": NAMESPACE, "resourceVersion": "1"},
            "status": {},
        }
        ended = [{"type": each, "status": "True"} for each in self.conditions]
        group = {"groupVersion": "batch/v1", "version": "v1"}
        resource = {"name": "jobs", "namespaced": True, "kind": "Job", "verbs": ["get", "list", "watch"]}
        answers: dict[str, dict[str, object]] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": [{"name": "batch", "versions": [group]}]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "/apis/batch/v1": {
                "kind": "APIResourceList",
                "groupVersion": "batch/v1",
                "resources": [resource],
            },
        }
        path, _, query = self.path.partition("?")
        answer = answers.get(path)
        if "watch=" in query:
            changed = {**job, "status": {"conditions": ended}}
            answer = {"type": "MODIFIED", "object": changed}
        elif answer is None and path.endswith("/jobs"):
            answer = {
                "apiVersion": "batch/v1",
                "kind": "JobList",
                "metadata": {"resourceVersion": "1"},
                "items": [job],
            }
        elif answer is None:
            answer = job
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Print nothing."""


# Kubernetes since 1.31, and before.
@pytest.mark.parametrize(
    "conditions",
    [["SuccessCriteriaMet", "Complete"], ["FailureTarget", "Failed"], ["Complete"], ["Failed"]],
    ids=" ".join,
)
def test_the_wait_for_a_plan_ends_with_its_job_completed_or_failed(
    conditions: list[str], shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (wait,) = (each for each in starting("kubectl") if " wait " in each.text and "toolkit-plan" in each.text)
    monkeypatch.setattr(_Cluster, "conditions", conditions)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Cluster) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config = Path(shell["KUBECONFIG"])
        config.write_text(config.read_text().replace("127.0.0.1:9", f"127.0.0.1:{server.server_port}"))
        done = _run(wait.text.replace("--timeout=5m", "--timeout=20s"), shell)
        server.shutdown()

    assert done.returncode == 0, done.stderr
    assert "condition met" in done.stdout


def test_every_command_is_run_by_a_test() -> None:
    known = starting(*HERE, *ELSEWHERE, *UNREAD)

    assert [each for each in commands() if each not in known] == []
    assert [file for file in ELSEWHERE.values() if "starting(" not in (PROJECT / file).read_text()] == []


def test_no_exception_is_kept_for_a_command_that_is_gone() -> None:
    typed = [each.text.removeprefix("sudo ") for each in commands()]

    assert [word for word in (*ELSEWHERE, *UNREAD) if not any(text.startswith(word) for text in typed)] == []


def test_pip_takes_the_constraints_or_no_package_of_an_index() -> None:
    missing = []
    count = 0
    for document in (*DOCUMENTS, CHART):
        text = (PROJECT / document).read_text()
        # A command of a block ends with its line, a command between backquotes ends there.
        for command in re.findall(r"\bpip3? (?:install|wheel) [^`\n]+", text):
            count += 1
            if "--constraint constraints.txt" not in command and "--no-index" not in command:
                missing.append(f"{document}: {command}")

    assert count
    assert missing == []


def test_the_lines_of_the_demo_in_the_readme_are_the_demos(capfd: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"^```text\n(.*?)^```$", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)

    assert demo() == 0
    said = capfd.readouterr()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said.out + said.err).splitlines()
    assert len(shown) == 1
    assert [line for line in shown[0].splitlines() if line not in lines] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, "CONTRIBUTING.md", CHART])
def test_a_link_leads_somewhere(document: str) -> None:
    text = (PROJECT / document).read_text()

    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            file = (PROJECT / document).parent / path if path else PROJECT / document
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target
