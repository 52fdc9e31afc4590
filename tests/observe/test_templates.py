"""Which template of its owner's k3s and RKE2 take, and whether that defines our runtime."""

import re
import time
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.engines.k3s import PROGRAM, may_define_ours
from installer.engines.observe import with_start
from installer.engines.templates import digest_inputs, find_template_flaw
from installer.model.engine import EngineState, Started
from tests.support.files import put

RKE2 = EngineState.usual(ENGINES["rke2"])
V3, V2 = (RKE2.config.with_name(name) for name in ("config-v3.toml.tmpl", "config.toml.tmpl"))
PLAIN = 'version = 2\n[plugins."x".containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
INCLUDES = '{{ template "base" . }}'
LISTS = "{{ range $k, $v := .ExtraRuntimes }}\n[x.'{{$k}}']\n{{ end }}"
MANY_BYTES = 4 << 20  # a text of 16 MiB is read by test_long_texts
LITERAL = f'[x.runtimes.nvidia.options]\n  BinaryName = "{PROGRAM}"\n'


@pytest.mark.parametrize(
    ("text", "defines"),
    [
        (PLAIN, False),
        ("", False),
        (INCLUDES, True),
        ("{{- template `base` . -}}", True),
        (LISTS, True),
        (PLAIN + LITERAL, True),
        ('imports = ["/srv/*.toml"]\n' + PLAIN, True),  # what these define is not known
        ("# imports are not used\n" + PLAIN, False),
        (f"{{{{/* {INCLUDES} */}}}}\n{PLAIN}", False),
        (f"{{{{- /* {LISTS} */ -}}}}\n{PLAIN}", False),
        (PLAIN + re.sub("(?m)^", "# ", LITERAL), False),
        (PLAIN + LITERAL.replace(str(PROGRAM), "/usr/bin/other"), False),
        (f"{{{{/* why */}}}}\n{INCLUDES}", True),
        (f"{{{{/* never ends {INCLUDES}", True),  # such a template is not valid at all
    ],
)
def test_a_template_defines_our_runtime_by_its_base_by_a_list_or_by_a_table(
    text: str, *, defines: bool
) -> None:
    assert may_define_ours(text) is defines


@pytest.mark.parametrize(
    ("files", "version", "path", "plugin"),
    [
        ({}, (2, 1, 9), None, ""),
        ({V2: PLAIN}, (2, 1, 9), V2, V2_PLUGIN),
        ({V3: PLAIN, V2: INCLUDES}, (2, 1, 9), V3, V3_PLUGIN),
        ({V3: INCLUDES, V2: PLAIN}, (2, 1, 9), None, ""),
        ({V3: INCLUDES, V2: PLAIN}, (1, 7, 23), V2, V2_PLUGIN),
        ({V3: PLAIN}, (1, 7, 23), None, ""),
        ({V3: PLAIN}, None, V3, V3_PLUGIN),
    ],
)
def test_the_template_that_the_next_start_takes_is_judged(
    tmp_path: Path,
    files: dict[PurePosixPath, str],
    version: tuple[int, ...] | None,
    path: PurePosixPath | None,
    plugin: str,
) -> None:
    host = put(tmp_path, {"etc/x": "", **{str(path): text for path, text in files.items()}})

    flaw = find_template_flaw(host, RKE2.kind, RKE2.config, version)

    assert (flaw is not None) == (path is not None)
    if flaw is not None:
        assert flaw.reason == f"its template {path} defines no runtime nvidia that starts {PROGRAM}"
        assert f'[plugins."{plugin}".containerd.runtimes.nvidia.options]' in flaw.remedy


def test_an_engine_whose_template_lacks_our_runtime_is_not_restarted(tmp_path: Path) -> None:
    host = put(tmp_path, {V3: PLAIN})

    reason = with_start(host, RKE2).not_restarted

    assert reason is not None
    assert reason.code == "engine-generates-config"
    host.remove(V3)
    assert with_start(host, RKE2).not_restarted is None


def test_a_mended_template_or_list_of_registries_is_another_plan(tmp_path: Path) -> None:
    host = put(tmp_path, {V3: PLAIN})
    digests = [digest_inputs(host, RKE2)]

    for path in (V3, V2, PurePosixPath("/etc/rancher/rke2/registries.yaml")):
        put(tmp_path, {path: INCLUDES})
        digests.append(digest_inputs(host, RKE2))

    assert len({*digests}) == len(digests)
    assert with_start(host, RKE2).inputs == digests[-1]


REGISTRIES = PurePosixPath("/etc/rancher/rke2/registries.yaml")
BROKEN = "mirrors:\n\tdocker.io: {}\n"


@pytest.mark.parametrize(
    ("text", "after_s", "said"),
    [
        (BROKEN, 1.0, "/etc/rancher/rke2/registries.yaml is no YAML, line 2"),
        (BROKEN, None, "/etc/rancher/rke2/registries.yaml is no YAML, line 2"),
        (BROKEN, -1.0, ""),  # it has started with that
        ("mirrors: {}\n", 1.0, ""),
        ("", 1.0, ""),
    ],
)
def test_settings_that_no_start_has_read_and_that_are_no_yaml_keep_it_from_a_restart(
    tmp_path: Path, text: str, after_s: float | None, said: str
) -> None:
    host = put(tmp_path, {REGISTRIES: text})
    began_s = None if after_s is None else host.changed_s(REGISTRIES) - after_s
    engine = replace(RKE2, started=Started(began_s=began_s))

    found = with_start(host, engine)

    assert said in (found.not_restarted.problem if found.not_restarted else "")
    assert (found.not_restarted is not None) == bool(said)
    assert found.edited_inputs == ((REGISTRIES,) if after_s == 1.0 else ())


@pytest.mark.parametrize("filler", ["\n", " ", "{", "{{", "{{/*", "*/}}", "#", "imports ", '{{ template "'])
def test_a_template_of_megabytes_is_read_in_linear_time(filler: str) -> None:
    template = filler * (MANY_BYTES // len(filler))
    began = time.process_time()

    may_define_ours(template)

    assert time.process_time() - began < 10
