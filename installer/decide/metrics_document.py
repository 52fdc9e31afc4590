"""docs/metrics.md, made of the table of metrics."""

from typing import Final

from installer.decide.metrics import METRICS, NAMESPACE, PREFIX, Metric

HEAD: Final = """\
# Metrics, labels, last words

Nothing of this needs a right in the API, and but for `--metrics-listen` nothing runs while `run` waits and no port is opened: files are
written at the end of an install or a repair, at a failure, and when `run` has looked at the node after a change; the uninstall removes them. What cannot be written is told in the log
(`figures not written`) and stops nothing.

## Metrics

`--metrics-textfile FILE.prom` writes them for the textfile collector of [node_exporter](https://github.com/prometheus/node_exporter), in one
rename and with mode 0644. It is the file that is named, not its directory: what is written is what was said, and node_exporter reads no other
name than `*.prom`. The directory has to exist; it is never made or removed, for a collector loses a directory that comes anew.
A file of that name that is not from us is refused before anything is changed.

```text
prometheus-node-exporter --collector.textfile.directory=/var/lib/node_exporter/textfile_collector
toolkit-installer run --metrics-textfile /var/lib/node_exporter/textfile_collector/toolkit-installer.prom
```

On a cluster: `components/metrics-textfile`, or `--set metricsTextfile=/var/lib/node_exporter/textfile_collector/toolkit-installer.prom`. The
pod has the host's root, so there is nothing to mount for it; node_exporter's own pod needs that directory of the host.

| metric | type | labels | what it tells |
|---|---|---|---|
"""

REST: Final = f"""
Counters survive restarts of the pod and reboots: they are kept beside the ledger (`counts`). A lost or damaged file means that they begin anew,
as Prometheus expects of counters; a complete uninstall removes them. `{PREFIX}failures_total` has the codes that have occurred; they are listed
under [codes for alerts](troubleshooting.md#codes-for-alerts). A failure is counted once the ledger can be opened: wrong options, and a second
instance that finds it locked, are not.

What the file says holds until the next look: a pod that was killed has changed nothing on its node. With an install that failed the file stays, with
`{PREFIX}ready` 0, until `uninstall`. `--on-exit keep` and a shutdown of the node keep it with everything else.

| what happens while `run` waits | `{PREFIX}ready` | besides |
|---|---|---|
| drift that is repaired | 1 | `{PREFIX}repairs_total` counts it |
| drift that is not repaired: a restart would be needed, `--drift report`, or five repairs in an hour | 0 until it is repaired | `{PREFIX}failures_total` counts it, with the code `drifted` or `drift-repeats` |
| an engine does not answer, or does not run | 0 until it serves again | its code in `{PREFIX}failures_total` |
| nothing | stays as it is, and the file is not written: an old file is no bad sign | |
| drift, with `--drift ignore` | 1 while the engines serve | `{PREFIX}config_drifted` stays 0 |

Two expressions to begin with. The first has each node that is not ready, for whatever reason; the second each node that node_exporter tells of and
we do not (nothing was ever installed there, it was uninstalled, or the file is lost):

```promql
{PREFIX}ready == 0
node_uname_info unless on (instance) {PREFIX}info
```

Do not alert on the age of the file or of `{PREFIX}last_look_timestamp_seconds` alone: on a node where nothing changes both are old. The rule
`ToolkitNotLookedAtSinceBoot` compares with the boot, and so finds a node that no `run` has looked at since.

### On request

`--metrics-listen ADDRESS:PORT`, or `unix:/run/toolkit-installer.sock`, has `run` answer while it waits, with the same metrics as OpenMetrics, to
whatever path is asked for. A process beside `run` does so: it hands out a file beside the ledger, one connection at a time and a second at most for each, also
while an install or a repair is at work (503 before the first install has ended). Who connects and says nothing delays others who ask, and no repair. There is no
TLS and no password: whoever reaches the address, or the socket (mode 0666), can read them. An address that is taken is told in the log, and
stops nothing; somebody else's socket of that name is refused, as is a directory where others than root could exchange the
socket.

A container has to listen on an address of its pod, such as `0.0.0.0:9400`: `components/metrics-listen`, or `--set metricsListen=0.0.0.0:9400`. Where the
Prometheus Operator runs, `components/pod-monitor`, or `podMonitor=true` besides, has it ask each pod; `instance` is the node's name then. The service of
`deploy/systemd` has no network, and can listen on a unix socket alone. Where a node_exporter runs anyway the textfile is the simpler way, for it
also tells of a node whose pod is gone.

The alerts for the Prometheus Operator (its `ruleSelector` may ask for a label: add it below `metadata`):

```console
sed -e 's/^/  /' -e '1i apiVersion: monitoring.coreos.com/v1\\nkind: PrometheusRule\\nmetadata:\\n  name: toolkit-installer\\nspec:' deploy/monitoring/prometheus-rules.yaml | kubectl --namespace monitoring apply --filename -
```

In `deploy/monitoring`:

| file | what it is |
|---|---|
| `prometheus.yaml` | a scrape of node_exporter, and the rules |
| `prometheus-rules.yaml` | alerts; `prometheus-rules.test.yaml` tests them with `promtool test rules` |
| `grafana-dashboard.json` | a table of all nodes: ready, versions, drift, restarts, failures |

## Labels of the node

`--nfd-features /etc/kubernetes/node-feature-discovery/features.d/toolkit-installer` writes what the worker of
[Node Feature Discovery](https://kubernetes-sigs.github.io/node-feature-discovery/) makes labels of (its source `local`); only that has rights in the API, and we
need none. On a cluster: `components/nfd-features`, or `--set nfdFeatures=` with that path. As with the textfile the directory has to exist, and
somebody else's file is refused.

| label | value |
|---|---|
| `{NAMESPACE}/ready` | `true` if the toolkit is in place and each engine was proven to serve it, else `false` |
| `{NAMESPACE}/ready-since` | since when, as `20261122T083000Z` |
| `{NAMESPACE}/version` | of this program |
| `{NAMESPACE}/toolkit-version` | of the toolkit, if it tells |
| `{NAMESPACE}/engine-containerd` (and so on) | `true` if that engine was proven to serve it, `pending` while its restart waits until it is idle, else `false` |

The namespace is a sub-namespace of NFD's own; nothing is written under `nvidia.com`, whose labels belong to NVIDIA's programs. There is no
expiry time: a pod that was killed has not uninstalled anything, so what the label says is still so. To keep GPU pods away until a node is ready,
let them have `nodeSelector: {{"{NAMESPACE}/ready": "true"}}`.

## Last words

The last sentence of `run`, `install` and `uninstall` is left where Kubernetes looks why a container has ended (`terminationMessagePath`, by
default `/dev/termination-log`; the manifests leave it at that), with the error and its remedy, or how it went. At most 4096 bytes are left,
and nothing where there is no such file, as on a host. The program ends before it can say anything there if it is killed; then
`terminationMessagePolicy: FallbackToLogsOnError` of the manifests has the last lines of its log.

```text
kubectl get pod POD --output jsonpath='{{.status.containerStatuses[0].lastState.terminated.message}}'
```

After the pod is gone with what it said, the node tells how its uninstall ended:

| what is found | how it ended |
|---|---|
| `status` exits 3: nothing is installed; neither textfile nor label is there | complete |
| `status` says `last undo` and why (the ledger's `left`) | incomplete: containers run on the toolkit, or something still names it |
| `status` says `unfinished` | it was killed in the middle; `uninstall` goes on from there |
| `{PREFIX}ready` is 0, with the code in `{PREFIX}failures_total` (such as `in-use`) | incomplete, as above, for those who see metrics alone |
| `journalctl -u toolkit-installer-undo` on the node | [on CRI-O](deploy.md#on-cri-o), where systemd carries the undo on after the pod's end |

No event is made in the API: that needs a right that we do not ask for. To see each node's outcome, uninstall [as a DaemonSet](deploy.md#uninstall), whose
pods stay.

This page is generated from the table in `installer/decide/metrics.py`.
"""


def document() -> str:
    """Return the page."""
    return HEAD + "".join(map(_row, METRICS)) + REST


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`" for name in metric.labels) or "-"
    return f"| `{PREFIX}{metric.name}` | {metric.type} | {labels} | {metric.help} |\n"
