{{/* The name of every object. */}}
{{- define "toolkit.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{/* Labels of every object; the first alone selects pods, for a selector can never be changed. */}}
{{- define "toolkit.labels" -}}
app.kubernetes.io/name: {{ include "toolkit.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A digest wins over a tag; without either it is the version that this chart was made for. */}}
{{- define "toolkit.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Kubernetes 1.30 has a field for AppArmor's profile, older ones know an annotation only. */}}
{{- define "toolkit.appArmorField" -}}
{{- if semverCompare ">=1.30.0-0" (.Values.kubeVersion | default .Capabilities.KubeVersion.Version) -}}yes{{- end -}}
{{- end }}

{{/* helm upgrade --reuse-values brings the values of the old chart, which may have neither mode nor nri. */}}
{{- define "toolkit.mode" -}}
{{- .Values.mode | default "runtime" -}}
{{- end }}

{{/* Whether the NRI plugin runs. */}}
{{- define "toolkit.nri" -}}
{{- if or (.Values.nri).enabled (eq (include "toolkit.mode" .) "nri") -}}yes{{- end -}}
{{- end }}

{{/* Whether the pods of the DaemonSet ask the Kubernetes API; one that uninstalls asks nothing. */}}
{{- define "toolkit.asksApi" -}}
{{- if or (include "toolkit.asksAtExit" .) (include "toolkit.turns" .) -}}yes{{- end -}}
{{- end }}

{{/* Whether a stopped pod asks whether another one comes. */}}
{{- define "toolkit.asksAtExit" -}}
{{- if and (eq .Values.onExit "auto") (not .Values.uninstall) (not .Values.planAll) -}}yes{{- end -}}
{{- end }}

{{/* Whether nodes restart their engines by turns. */}}
{{- define "toolkit.turns" -}}
{{- if and (.Values.turns).maxRestarting (not .Values.uninstall) (not .Values.planAll) -}}yes{{- end -}}
{{- end }}

{{/* By CDI alone no engine has a runtime of ours. */}}
{{- define "toolkit.byCdi" -}}
{{- if has (include "toolkit.mode" .) (list "cdi" "nri") -}}yes{{- end -}}
{{- end }}

{{/* The runtime of that name takes the place of nvidia, unless it is one of the other two. */}}
{{- define "toolkit.runtimes" -}}
{{- $standard := list "nvidia" "nvidia-cdi" "nvidia-legacy" -}}
{{- ternary $standard (concat (list .Values.runtimeName) (rest $standard)) (has .Values.runtimeName $standard) | join " " -}}
{{- end }}

{{/* A Job's name ends as a label of its pods, which takes 63 characters: that of a longer one is told apart by a hash. */}}
{{- define "toolkit.jobName" -}}
{{- if le (len .) 63 -}}
{{ . }}
{{- else -}}
{{ trunc 54 . | trimAll "-." }}-{{ sha256sum . | trunc 8 }}
{{- end -}}
{{- end }}

{{/* What the container may do: the same for the DaemonSet and the Jobs. */}}
{{- define "toolkit.securityContext" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [CHOWN, DAC_OVERRIDE, FOWNER, SYS_CHROOT]
seccompProfile:
  type: RuntimeDefault
{{- if include "toolkit.appArmorField" . }}
# The engines' own profiles keep a container from the system bus (Ubuntu mediates it).
appArmorProfile:
  type: Unconfined
{{- end }}
# What lets a container write the host's /etc and speak to its systemd where SELinux is enforced.
seLinuxOptions:
  type: spc_t
{{- end }}

{{/* What is asked for: the same for an install and for its plan. */}}
{{- define "toolkit.asked" -}}
- name: TOOLKIT_INSTALLER_RUNTIME
  value: {{ .Values.runtime | quote }}
- name: TOOLKIT_INSTALLER_RUNTIME_NAME
  value: {{ .Values.runtimeName | quote }}
- name: TOOLKIT_INSTALLER_ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED
  value: {{ .Values.acceptNvidiaVisibleDevices.envvarWhenUnprivileged | quote }}
- name: TOOLKIT_INSTALLER_ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS
  value: {{ .Values.acceptNvidiaVisibleDevices.asVolumeMounts | quote }}
{{- if .Values.acceptPending }}
- name: TOOLKIT_INSTALLER_ACCEPT_PENDING
  value: "true"
{{- end }}
{{- with include "toolkit.mode" . }}
{{- if ne . "runtime" }}
- name: TOOLKIT_INSTALLER_MODE
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- if (.Values.nri).enabled }}
- name: TOOLKIT_INSTALLER_NRI
  value: "true"
{{- end }}
{{- with (.Values.nri).allow }}
- name: TOOLKIT_INSTALLER_NRI_ALLOW
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
