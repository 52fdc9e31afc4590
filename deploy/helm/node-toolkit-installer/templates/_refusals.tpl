{{/* What the program on the nodes would refuse is refused here: each pod would end at once, again and again. */}}
{{- define "toolkit.refuse" -}}
{{- $nri := include "toolkit.nri" . }}
{{- range (.Values.nri).allow }}
{{- if not (regexMatch "^[a-z0-9]([a-z0-9-]*[a-z0-9])?=[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?$" .) }}
{{- fail (printf "nri.allow has %q: write NAMESPACE=VENDOR/CLASS, such as gpu-operator=nvidia.com/gpu; there is no wildcard" .) }}
{{- end }}
{{- end }}
{{- if and $nri (not (.Values.nri).allow) }}
{{- fail "the NRI plugin needs nri.allow, such as {gpu-operator=nvidia.com/gpu}: what is not allowed is refused" }}
{{- end }}
{{- if and (.Values.nri).allow (not $nri) }}
{{- fail "nri.allow needs mode: nri, or nri.enabled: true" }}
{{- end }}
{{- if and (include "toolkit.turns" .) (not (has .Values.onExit (list "auto" "keep"))) }}
{{- fail "turns.maxRestarting needs onExit: auto, or keep: under undo an update undoes every node at once, and their installs would wait for turns" }}
{{- end }}
{{- range .Values.extraEnv }}
{{- $value := get (dict "TOOLKIT_INSTALLER_RELEASE" "turns.maxRestarting" "TOOLKIT_INSTALLER_MAX_RESTARTING" "turns.maxRestarting" "TOOLKIT_INSTALLER_STOP_AFTER" "turns.stopAfter" "TOOLKIT_INSTALLER_CANARY" "turns.canary") .name }}
{{- if $value }}
{{- fail (printf "extraEnv has %s: use the value %s, for a Lease and rights follow it" .name $value) }}
{{- end }}
{{- end }}
{{- if .Release.IsUpgrade }}
{{- if .Values.planAll }}
{{- fail "planAll would delete the DaemonSet that installs, in an upgrade: use it with helm install before the first install, or with helm template" }}
{{- end }}
{{- range $value := list "planNode" "uninstallNode" }}
{{- if get $.Values $value }}
{{- printf "%s is for helm template alone: a Job of a release cannot be changed; leave it out of an upgrade" $value | fail }}
{{- end }}
{{- end }}
{{- end }}
{{- if not .Values.uninstall }}
{{- if and $nri (eq .Values.runtime "docker") }}
{{- fail "docker has no NRI: choose another mode, leave nri.enabled out, or choose another runtime" }}
{{- end }}
{{- include "toolkit.refuseOfCdi" . }}
{{- range .Values.extraEnv }}
{{- $value := get (dict "TOOLKIT_INSTALLER_MODE" "mode" "TOOLKIT_INSTALLER_NRI" "nri.enabled" "TOOLKIT_INSTALLER_NRI_ALLOW" "nri.allow") .name }}
{{- if $value }}
{{- fail (printf "extraEnv has %s: use the value %s, for the RuntimeClasses follow it" .name $value) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Who gives one of these relies on a runtime of ours, and by CDI alone there is none. */}}
{{- define "toolkit.refuseOfCdi" -}}
{{- if include "toolkit.byCdi" . }}
{{- $asked := list }}
{{- if ne .Values.runtimeName "nvidia" }}
{{- $asked = append $asked "runtimeName" }}
{{- end }}
{{- if .Values.acceptNvidiaVisibleDevices.asVolumeMounts }}
{{- $asked = append $asked "acceptNvidiaVisibleDevices.asVolumeMounts" }}
{{- end }}
{{- range .Values.extraEnv }}
{{- $value := .value | default "" | toString }}
{{- $yes := has (lower $value) (list "1" "true" "t" "yes" "y" "on") }}
{{- $name := trimPrefix "TOOLKIT_INSTALLER_" .name }}
{{- if or (and $yes (has $name (list "SET_AS_DEFAULT" "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS"))) (and $value (eq $name "CRIO_HOOK")) (and $value (eq $name "RUNTIME_NAME") (ne $value "nvidia")) }}
{{- $asked = append $asked (printf "%s of extraEnv" .name) }}
{{- end }}
{{- end }}
{{- if $asked }}
{{- fail (printf "mode %s has no runtime: leave %s as it is by default, or choose mode: runtime" (include "toolkit.mode" .) (join " and " $asked)) }}
{{- end }}
{{- end }}
{{- end }}
