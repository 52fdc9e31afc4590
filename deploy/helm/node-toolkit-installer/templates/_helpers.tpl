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

{{/* The runtime of that name takes the place of nvidia, unless it is one of the other two. */}}
{{- define "toolkit.runtimes" -}}
{{- $standard := list "nvidia" "nvidia-cdi" "nvidia-legacy" -}}
{{- ternary $standard (concat (list .Values.runtimeName) (rest $standard)) (has .Values.runtimeName $standard) | join " " -}}
{{- end }}

{{/* What the container may do: the same for the DaemonSet and the Job. */}}
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
