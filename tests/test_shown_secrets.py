"""What ``plan`` shows of a config may be pasted into a ticket: secrets are mask, also in the lines between ours."""

import json
import os
import time
from difflib import unified_diff
from pathlib import PurePosixPath

import click
import pytest
from hypothesis import given

from installer.cli.output import diff
from installer.config_text import Syntax
from installer.config_text.masked import MASK, mask
from installer.model.files import File
from tests.config_text.texts import json_texts, toml_texts
from tests.support.site import CONTAINERD, DAEMON_JSON, Site

S = "hunter2"  # nobody's

JSON_TEXTS = [
    pytest.param(f'{{"auths": {{"r.example.com": {{"auth": "{S}", "n": ["{S}", 7]}}}}}}', id="auths, nested"),
    pytest.param(f'{{"log-opts": {{"splunk-token":\n"{S}"}}}}', id="a token in the next line"),
    pytest.param(f'{{"registry-mirrors": ["https://me:{S}/x@y@mirror"]}}', id="a mirror's address"),
    pytest.param(f'{{"clientSecret": {{"deep": [{{"er": "{S}"}}]}}}}', id="all below a secret"),
    pytest.param(f'{{"a": 1 }} ] , "x" {{ ] "auth": "{S}"', id="brackets that do not match"),
    pytest.param(f'{{"runtimes": {{"x": {{"path": "/x", "runtimeArgs": ["{S}"]}}}}}}', id="of a runtime"),
    pytest.param(f'{{"https://u:{S}@h": {{"path": "/x"}}}}', id="an address for a key"),
    pytest.param(f'{{"https:\\u002f\\u002fu:{S}\\u0040h": 1}}', id="the same in escapes"),
]
TOML_TEXTS = [
    pytest.param(
        f'[plugins."x".registry.configs."r".auth]\n  username = "{S}"\n  password = "{S}"\n', id="auth"
    ),
    pytest.param(f"a.identitytoken = '{S}'\n", id="a dotted key"),
    pytest.param(f'[x]\nprivate_key = """\n-----BEGIN\n{S}\n"""\nb = 1\n', id="key material in lines"),
    pytest.param(f'# password = "{S}"\nb = 1\n', id="commented out"),
    pytest.param(f"imports = [\n  '/x', # {S}\n]\n", id="behind a value that is shown"),
    pytest.param(f'x = "{S}" {S}\n', id="what cannot be read"),
    pytest.param(f'[registry.mirrors."https://u:{S}@h"]\n', id="an address in a header"),
    pytest.param(f'[[env]]\nvalue = "{S}"\nname = "DB_PASSWORD"\n', id="an array of tables"),
    pytest.param(f'a = {{ b = {{ token = "{S}" }} }}\n', id="an inline table"),
]
KEPT = [
    pytest.param('{"registry-mirrors": true, "data": null, "default-runtime": "runc"}', Syntax.JSON),
    pytest.param('{"runtimes": {"x": {"path": "/usr/bin/x", "args": [], "runtimeType": "y"}}}', Syntax.JSON),
    pytest.param(
        'version = 2\nimports = [\n  "/etc/x.toml",\n]\n[plugins.x.runtimes.nvidia]\n'
        '  runtime_type = "io.containerd.runc.v2"\n  [plugins.x.runtimes.nvidia.options]\n'
        '    BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"\n    SystemdCgroup = true\n',
        Syntax.TOML,
    ),
]


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_secrets_in_json_are_masked_and_lines_stay(text: str) -> None:
    is_masked(text, Syntax.JSON)


@pytest.mark.parametrize("text", TOML_TEXTS)
def test_secrets_in_toml_are_masked_and_lines_stay(text: str) -> None:
    is_masked(text, Syntax.TOML)


def is_masked(text: str, syntax: Syntax) -> None:
    """Assert that a text is shown without its secret."""
    shown = mask(text, syntax)
    assert S not in shown
    assert MASK in shown
    assert shown.count("\n") == text.count("\n")


@pytest.mark.parametrize(("text", "syntax"), KEPT)
def test_what_is_about_runtimes_is_shown(text: str, syntax: Syntax) -> None:
    assert mask(text, syntax) == text


@pytest.mark.parametrize("syntax", Syntax)
def test_a_megabyte_is_masked_in_seconds(syntax: Syntax) -> None:
    if syntax is Syntax.JSON:
        text = json.dumps(
            {f"k{n}": {"a": [1, "b:c", "u:x@h"], "pass\\u0077ord": "\\/x"} for n in range(20_000)}
        )
        text = text.replace("\\\\", "\\")
    else:
        text = "".join(f'[plugins.k{n}]\n a = [1, "b:c"]\n "b.c" = {{d = "u:x@h"}}\n' for n in range(20_000))
    began = time.process_time()

    mask(text, syntax)

    assert time.process_time() - began < 15.0


@given(json_texts(), toml_texts())
def test_any_text_keeps_its_lines(in_json: str, in_toml: str) -> None:
    for text, syntax in ((in_json, Syntax.JSON), (in_toml, Syntax.TOML)):
        assert mask(text, syntax).count("\n") == text.count("\n")


@given(toml_texts(), toml_texts())
def test_the_diff_is_the_one_that_everybody_knows(old: str, new: str) -> None:
    path = PurePosixPath("/x.toml")
    texts = [[f"{line}\n" for line in text.split("\n")] for text in (old, new)]

    files = [File("".join(lines).encode()) for lines in texts]

    told = [click.unstyle(line) for line in diff(path, files[0], files[1], show_secrets=True)]

    known = list(unified_diff(texts[0], texts[1], "a/x.toml", "b/x.toml"))
    assert told == [click.unstyle(line.rstrip("\r\n")) for line in known]


def test_plan_masks_secrets_and_shows_them_when_asked(site: Site) -> None:
    words = ["--password", S, f"native.x=1&token={S}", f"Authorization: Bearer {S}"]
    site.write(DAEMON_JSON, json.dumps({"auths": {"r": {"auth": S}}, "exec-opts": words}))
    auth = f'[plugins."x".registry.configs."r".auth]\n  password = "{S}"\n'
    site.write(CONTAINERD, site.read(CONTAINERD) + auth)

    shown = site.call("plan")
    asked = site.call("plan", "--show-secrets")
    by_variable = site.call("plan", env={"TOOLKIT_INSTALLER_SHOW_SECRETS": "1", "PATH": os.defpath})

    assert [done.returncode for done in (shown, asked, by_variable)] == [10, 10, 10]
    assert S not in shown.stdout + shown.stderr
    assert f'"auth": {MASK}' in shown.stdout
    assert f"password = {MASK}" in shown.stdout
    assert f'"exec-opts": {MASK}' in shown.stdout
    assert asked.stdout.count(S) == by_variable.stdout.count(S) > 4
