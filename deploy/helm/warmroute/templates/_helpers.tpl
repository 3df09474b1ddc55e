{{- define "warmroute.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "warmroute.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "warmroute.labels" -}}
{{ include "warmroute.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "warmroute.serviceAccount" -}}
{{ .Values.serviceAccount.existing | default (include "warmroute.name" .) }}
{{- end }}

{{- /* What lists the workers: selector, service or pool. Exactly one may be set; picker.pools are pools, too. */}}
{{- define "warmroute.discovery" -}}
{{- $d := .Values.discovery }}
{{- $set := list }}
{{- if $d.selector }}{{ $set = append $set "selector" }}{{ end }}
{{- if $d.service }}{{ $set = append $set "service" }}{{ end }}
{{- if include "warmroute.pools" . }}{{ $set = append $set "pool" }}{{ end }}
{{- if ne (len $set) 1 }}
{{- fail (printf "discovery: set exactly one of selector, service and pool; set are: %s" (join ", " $set | default "none")) }}
{{- end }}
{{- if and (or $d.allNamespaces (gt (len $d.namespaces) 1)) (eq (first $set) "pool") }}
{{- fail "discovery: several namespaces may have a pool of one name; set the pools' one namespace in discovery.namespaces, and use a release for each namespace" }}
{{- end }}
{{- if and $d.port (eq (first $set) "pool") }}
{{- fail "discovery.port has no effect with pools: workers listen on the targetPorts of their pool" }}
{{- end }}
{{- first $set }}
{{- end }}

{{- /* Names of all pools, separated by commas. */}}
{{- define "warmroute.pools" -}}
{{- $pools := list }}
{{- with .Values.discovery.pool }}{{ $pools = append $pools . }}{{ end }}
{{- if .Values.picker.enabled }}{{ range .Values.picker.pools }}{{ $pools = append $pools .name }}{{ end }}{{ end }}
{{- join "," ($pools | uniq) }}
{{- end }}

{{- /* Ports of the endpoint picker: the common one, and that of each pool. A name has at most 15 characters. */}}
{{- define "warmroute.pickerPorts" -}}
{{- if .Values.picker.enabled }}
- { name: grpc, port: {{ .Values.picker.port }} }
{{- range $i, $pool := .Values.picker.pools }}
{{- if $pool.port }}
- { name: grpc-pool-{{ $i }}, port: {{ $pool.port }} }
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The port of the picker that a pool uses. */}}
{{- define "warmroute.poolPort" -}}
{{ .pool.port | default .picker.port }}
{{- end }}

{{- /* The rights that discovery needs, and no others. */}}
{{- define "warmroute.rules" -}}
{{- $what := include "warmroute.discovery" . }}
{{- if ne $what "service" }}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- else }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- end }}
{{- if eq $what "pool" }}
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  resourceNames: {{ include "warmroute.pools" . | splitList "," | toJson }}
  verbs: [list, watch]
{{- end }}
{{- end }}

{{- define "warmroute.args" -}}
{{- include "warmroute.ownArgs" . }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* An address is quoted: `::` ends like a key. */}}
{{- define "warmroute.ownArgs" -}}
- serve
- "--host={{ if .Values.service.enabled }}{{ .Values.listenAddress }}{{ else }}127.0.0.1{{ end }}"
- --port=30000
- "--admin-host={{ .Values.listenAddress }}"
- --admin-port=29000
- --drain-timeout-secs={{ int .Values.drainTimeoutSeconds }}
- --wake-timeout-secs={{ int .Values.wakeTimeoutSeconds }}
- --log-format=json
{{- if .Values.config }}
- --config=/etc/warmroute/config/warmroute.toml
{{- end }}
{{- with .Values.discovery }}
{{- if .enabled }}
- --service-discovery
{{- $what := include "warmroute.discovery" $ }}
{{- if eq $what "selector" }}
{{- range $key, $value := .selector }}
- {{ printf "--selector=%s=%s" $key $value | quote }}
{{- end }}
{{- else if eq $what "service" }}
- --service-discovery-service={{ .service }}
{{- else }}
- --service-discovery-pool={{ include "warmroute.pools" $ }}
{{- end }}
{{- if .port }}
- --service-discovery-port={{ .port }}
{{- end }}
{{- if .allNamespaces }}
- --service-discovery-namespace=*
{{- else if .namespaces }}
- --service-discovery-namespace={{ join "," .namespaces }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.picker }}{{ if .enabled }}
- "--picker-host={{ $.Values.listenAddress }}"
- --picker-port={{ .port }}
- --picker-feedback={{ .feedback }}
- --picker-fallbacks={{ .fallbacks }}
{{- range .pools }}{{ if .port }}
- --picker-pools={{ .name }}={{ .port }}
{{- end }}{{ end }}
{{- end }}{{ end }}
{{- if .Values.sharing.existingSecret }}
- --share=mesh
- --share-secret-file=/etc/warmroute/sharing/secret
- --mesh-listen={{ if contains ":" .Values.listenAddress }}[{{ .Values.listenAddress }}]{{ else }}{{ .Values.listenAddress }}{{ end }}:7946
- --mesh-advertise=$(POD_IP):7946
- --mesh-peers={{ include "warmroute.name" . }}-mesh:7946
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- --api-keys-file=/etc/warmroute/api-keys/keys
{{- end }}
{{- if .Values.workerApiKey.existingSecret }}
- --worker-api-key-file=/etc/warmroute/worker-api-key/key
{{- end }}
{{- if .Values.adminToken.existingSecret }}
- --admin-token-file=/etc/warmroute/admin-token/token
{{- end }}
{{- if .Values.tls.existingSecret }}
- --tls-cert=/etc/warmroute/tls/tls.crt
- --tls-key=/etc/warmroute/tls/tls.key
{{- end }}
{{- end }}

{{- /* Name of the volume and of the Secret behind it. */}}
{{- define "warmroute.secrets" -}}
{{- $secrets := dict "sharing" .Values.sharing "api-keys" .Values.apiKeys "worker-api-key" .Values.workerApiKey "admin-token" .Values.adminToken "tls" .Values.tls }}
{{- range $name, $value := $secrets }}{{ if $value.existingSecret }}
{{ $name }}: {{ $value.existingSecret | quote }}
{{- end }}{{ end }}
{{- end }}

{{- /* Labels of this release's series in Prometheus: another release of the namespace may serve another model. The names of
its pods have two more parts than the Deployment's, one more than the DaemonSet's, and one if they were cut to length. */}}
{{- define "warmroute.ownSeries" -}}
namespace={{ .Release.Namespace | quote }},pod=~"{{ include "warmroute.name" . }}-[a-z0-9]+(-[a-z0-9]+)?"
{{- end }}

{{- /* Requests in flight on all workers. Routers that share report the requests of all of them. */}}
{{- define "warmroute.inFlight" -}}
{{- $series := printf "warmroute_worker_requests_active{%s}" (include "warmroute.ownSeries" .) }}
{{- if .Values.sharing.existingSecret }}sum(max by (worker) ({{ $series }})){{ else }}sum({{ $series }}){{ end }}
{{- end }}
