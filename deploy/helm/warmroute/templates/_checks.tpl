{{- /* Values that do not go together. Each would give objects that Kubernetes refuses, or routers that do not start. */}}
{{- define "warmroute.check" -}}
{{- include "warmroute.checkPorts" . }}
{{- include "warmroute.checkPools" . }}
{{- include "warmroute.checkScaling" . }}
{{- include "warmroute.checkExtraArgs" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "warmroute.name" .)) }}
{{- fail (printf "the release's name gives the Service %s: names of Services begin with a letter, and have no dots" (include "warmroute.name" .)) }}
{{- end }}
{{- if not (or .Values.service.enabled .Values.picker.enabled) }}
{{- fail "service.enabled and picker.enabled are both false: neither clients nor proxies could reach the routers" }}
{{- end }}
{{- range .Values.extraVolumes }}
{{- if has .name (list "config" "sharing" "api-keys" "worker-api-key" "admin-token" "tls") }}
{{- fail (printf "extraVolumes: the chart has a volume named %s itself; use another name" .name) }}
{{- end }}
{{- end }}
{{- if and .Values.discovery.allNamespaces .Values.discovery.namespaces }}
{{- fail "discovery: set namespaces or allNamespaces, not both" }}
{{- end }}
{{- if and .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled }}
{{- fail "monitoring: enable podMonitor or serviceMonitor; with both, Prometheus counts every router twice" }}
{{- end }}
{{- end }}

{{- /* Ports of one container. */}}
{{- define "warmroute.checkPorts" -}}
{{- $used := dict "30000" "the client listener" "29000" "the admin listener" }}
{{- if .Values.sharing.existingSecret }}{{ $_ := set $used "7946" "the mesh" }}{{ end }}
{{- range include "warmroute.pickerPorts" . | fromYamlArray }}
{{- $port := toString (int .port) }}
{{- if hasKey $used $port }}
{{- fail (printf "picker: port %s is used twice: by %s and by the picker's port %s" $port (get $used $port) .name) }}
{{- end }}
{{- $_ := set $used $port (printf "the picker's port %s" .name) }}
{{- end }}
{{- end }}

{{- define "warmroute.checkPools" -}}
{{- $names := list }}
{{- range .Values.picker.pools }}
{{- if has .name $names }}{{ fail (printf "picker.pools: the pool %s is there twice" .name) }}{{ end }}
{{- $names = append $names .name }}
{{- end }}
{{- if and $names (not .Values.picker.enabled) }}
{{- fail "picker.pools has no effect without picker.enabled" }}
{{- end }}
{{- if and $names (not .Values.discovery.enabled) }}
{{- fail "picker.pools: their pods are found by discovery; set discovery.enabled" }}
{{- end }}
{{- end }}

{{- define "warmroute.checkScaling" -}}
{{- range $name, $scaler := dict "autoscaling" .Values.autoscaling "engineScaler" .Values.engineScaler }}
{{- if and $scaler.enabled (gt (int $scaler.minReplicas) (int $scaler.maxReplicas)) }}
{{- fail (printf "%s: minReplicas is %d and maxReplicas %d" $name (int $scaler.minReplicas) (int $scaler.maxReplicas)) }}
{{- end }}
{{- end }}
{{- with .Values.engineScaler }}
{{- if and .enabled (eq (int .minReplicas) 0) }}
{{- if eq .kind "HPA" }}
{{- fail "engineScaler.minReplicas: an HPA does not scale to zero; set 1, or kind KEDA" }}
{{- end }}
{{- if eq (int $.Values.wakeTimeoutSeconds) 0 }}
{{- fail "engineScaler.minReplicas is 0 and wakeTimeoutSeconds too: requests would get 503, and no request would wait for which KEDA starts an engine; set wakeTimeoutSeconds to longer than an engine's start" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A flag that the chart sets would be there twice, and the router would refuse it. */}}
{{- define "warmroute.checkExtraArgs" -}}
{{- $own := list }}
{{- range (include "warmroute.ownArgs" . | fromYamlArray) }}{{ $own = append $own (regexFind "^--[a-z0-9-]+" .) }}{{ end }}
{{- range .Values.extraArgs }}
{{- $flag := regexFind "^--[a-z0-9-]+" . }}
{{- if and $flag (has $flag $own) }}{{ fail (printf "extraArgs: the chart sets %s itself; use its value" $flag) }}{{ end }}
{{- end }}
{{- end }}
