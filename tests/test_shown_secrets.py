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
    pytest.param(f'{{"a": {{"identitytoken": "{S}"}}, "b": 1}}', id="identitytoken"),
    pytest.param(f'{{"log-opts": {{"splunk-token":\n"{S}"}}}}', id="a token in the next line"),
    pytest.param(f'{{"proxies": {{"http-proxy": "http://me:{S}@proxy:3128/"}}}}', id="a proxy's address"),
    pytest.param(f'{{"registry-mirrors": ["https://me:{S}/x@y@mirror"]}}', id="a mirror's address"),
    pytest.param(f'{{"clientSecret": {{"deep": [{{"er": "{S}"}}]}}}}', id="all below a secret"),
    pytest.param(f'{{"a": 1 }} ] , "x" {{ ] "auth": "{S}"', id="brackets that do not match"),
    pytest.param(f'{{"args": ["-v", "--password", "{S}", "x"]}}', id="an argument after its flag"),
    pytest.param(f'{{"cmd": "login --password {S} --v"}}', id="a command line"),
    pytest.param(f'{{"env": ["REGISTRY_PASSWORD={S}"]}}', id="an environment variable"),
    pytest.param(f'{{"m": "https://r/x?a=b&token={S}&c=d"}}', id="a query"),
    pytest.param(
        f'{{"m": "https://r/x?a=b\\u0026X-Amz-Signature={S}"}}', id="a signed address, as Go writes it"
    ),
    pytest.param(f'{{"m": "https://r/x?sv=1&sig={S}%3D"}}', id="a shared access signature"),
    pytest.param(f'{{"h": ["Authorization: Bearer {S}"]}}', id="a header"),
    pytest.param(f'{{"h": "Bearer {S}"}}', id="a scheme alone"),
    pytest.param(
        f'{{"k": "-----BEGIN RSA PRIVATE KEY-----\\n{S}\\n-----END RSA PRIVATE KEY-----"}}', id="PEM"
    ),
    pytest.param(f'{{"j": "{{\\"password\\": \\"{S}\\"}}"}}', id="JSON in a string"),
    pytest.param(f'{{"j": "eyJhbGciOiJI.{S}.{S}"}}', id="a JWT"),
    pytest.param(f'{{"pass\\u0077ord": "{S}"}}', id="an escape in a key"),
    pytest.param(f'{{"mirror": "https:\\/\\/u:{S}@h\\/"}}', id="an address, as PHP writes it"),
    pytest.param(f'{{"m": "https\\u003A//u:{S}\\u0040h"}}', id="an address in other escapes"),
    pytest.param(f'{{"env": ["DB_PASSWORD\\u003d{S}"]}}', id="an environment variable, as Gson writes it"),
    pytest.param(
        f'{{"j": "{{\\"a\\":\\"{{\\\\\\"pass\\\\u0077ord\\\\\\":\\\\\\"{S}\\\\\\"}}\\"}}"}}',
        id="JSON in JSON in a string",
    ),
    pytest.param(f'{{"j": "a\\npwd={S}"}}', id="a line of a string"),
    pytest.param(f'{{"env": ["DB_PASS={S}", "REG_PASS={S}", "MYSQL_PWD={S}"]}}', id="short names"),
    *(
        pytest.param(f'{{"{key}": "{S}"}}', id=f"the key {key}")
        for key in ("pass", "pwd", "pw", "github_pat", "X-Auth-Key", "kv.key", "dbPass", "rootPw")
    ),
    pytest.param(f'{{"name": "DB_PASSWORD", "value": "{S}"}}', id="a name and its value"),
    pytest.param(f'{{"dsn": "root:{S}@tcp(h)"}}', id="a database's address"),
    pytest.param(f'{{"cmd": "curl -u me:{S} https://r"}}', id="curl"),
    pytest.param(f'{{"a": "ghp_{S * 5}"}}', id="GitHub's token"),
    pytest.param(f'{{"a": "AKIA{S.upper() * 2}xx{S}"}}', id="AWS's key"),
    pytest.param(f'{{"a": "https://hooks.slack.com/services/T0/B0/{S}"}}', id="Slack's address"),
]
TOML_TEXTS = [
    pytest.param(f'[plugins."x".registry.configs."r".auth]\n  username = "{S}"\n  password = "{S}"\n', id="auth"),
    pytest.param(f"a.identitytoken = '{S}'\n", id="a dotted key"),
    pytest.param(f'[x]\nprivate_key = """\n-----BEGIN\n{S}\n"""\nb = 1\n', id="key material in lines"),
    pytest.param(f'[x.header]\n  Authorization = ["Basic {S}"]\n', id="a header of a registry"),
    pytest.param(f'# password = "{S}"\nb = 1\n', id="commented out"),
    pytest.param(f"b = 1 # token: {S}\n", id="behind a value"),
    pytest.param(f'proxy = "https://me:{S}@proxy"\n', id="a proxy"),
    pytest.param(f'x = "{S}" {S}\n', id="what cannot be read"),
    pytest.param(f"args = [\n  '--secret', # what comes\n  '{S}',\n]\n", id="an argument in the next line"),
    pytest.param(f'm = "https://r/x?X-Amz-Credential={S}/1&b=c"\n', id="a signed address"),
    pytest.param(f'x = """\na\n  token: {S}\n  b\n"""\n', id="a line of a multi-line string"),
    pytest.param(f"x = '''\n-----BEGIN PRIVATE KEY-----\n{S}\n-----END PRIVATE KEY-----\n'''\n", id="PEM"),
    pytest.param(f"# -----BEGIN PRIVATE KEY-----\n# {S}\n# -----END PRIVATE KEY-----\n", id="PEM commented out"),
    pytest.param(f"# https://me:{S}@r/ and https://r/?token={S}\n", id="addresses commented out"),
    pytest.param(f'# curl -H "Authorization: Bearer {S}"\n', id="a header commented out"),
    pytest.param(f'm = "https:\\u002f\\u002fu:{S}@h"\n', id="an address in escapes"),
    pytest.param(f'"pass\\u0077ord" = "{S}"\n', id="an escape in a key"),
    pytest.param(f'[x]\ngithub_pat = "{S}"\n', id="a short name"),
    pytest.param(f'[[env]]\nvalue = "{S}"\nname = "DB_PASSWORD"\n', id="a value and its name"),
    pytest.param(f'dsn = "root:{S}@tcp(h)" # or me:{S}@h\n', id="addresses without a scheme"),
    pytest.param(f"# curl -u me:{S} https://r\n", id="curl"),
]  # fmt: skip
KEPT = [
    pytest.param('{"registry-mirrors": ["https://mirror.example.com/a"], "debug": true}', Syntax.JSON),
    pytest.param('{"auth": true, "tlskey": "/etc/key.pem", "authorization-plugins": ["x"]}', Syntax.JSON),
    pytest.param('key_file = "/etc/k.pem"\nsandbox_image = "r:5000/pause:3@sha256:0"\n', Syntax.TOML),
    pytest.param('[plugins."io.containerd.grpc.v1.cri"]\n  SystemdCgroup = true # keyless\n', Syntax.TOML),
    pytest.param('{"args": ["--tlskey", "/etc/k.pem", "--log-level=debug"], "x": "a: b"}', Syntax.JSON),
    pytest.param(
        'args = ["--config=/etc/x.toml", "--v", "2"]\nx = "https://r/?ns=docker.io&a=b"\n', Syntax.TOML
    ),
    pytest.param(
        "# Basic settings: the bearer of the news\ntimeout = '30s' # --address /run/x\n", Syntax.TOML
    ),
    pytest.param('{"args": ["--password-file", "/etc/p", "--token-stdin", "x"]}', Syntax.JSON),
    pytest.param(
        '{"image": "busybox:1.36@sha256:0", "m": "https:\\/\\/mirror\\/a", "x": "a\\u0026b"}', Syntax.JSON
    ),
    pytest.param(
        '{"env": ["PWD=/root", "BYPASS=1"], "cmd": "docker run -u 1000:1000 x", "bypass": "y"}', Syntax.JSON
    ),
    pytest.param(
        '{"binds": ["/etc/ca.key:/etc/ca.key:ro"], "name": "runc", "value": "/usr/bin/runc"}', Syntax.JSON
    ),
    pytest.param(
        '[plugins.x.runtimes.nvidia]\n  runtime_type = "io.containerd.runc.v2"\n  [plugins.x.runtimes.nvidia.options]\n'
        '    BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime" # git@h:a/b\n',
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
def test_what_is_no_secret_is_shown(text: str, syntax: Syntax) -> None:
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
    mask('{"a": "' + "a:" * 500_000 + '@"}', Syntax.JSON)

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
    assert f'"auth": "{MASK}"' in shown.stdout
    assert f'password = "{MASK}"' in shown.stdout
    assert f'"--password", "{MASK}", "native.x=1&token={MASK}", "Authorization: {MASK}"' in shown.stdout
    assert asked.stdout.count(S) == by_variable.stdout.count(S) > 4
