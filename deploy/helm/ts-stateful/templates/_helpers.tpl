{{- define "ts.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* 40 characters leave room for suffixes in names of 63. */ -}}
{{- define "ts.fullname" -}}
{{- $name := include "ts.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "ts.selector" -}}
app.kubernetes.io/name: {{ include "ts.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "ts.labels" -}}
{{ include "ts.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "ts.metadata" -}}
name: {{ include "ts.fullname" .root }}{{ with .suffix }}-{{ . }}{{ end }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "ts.labels" . | nindent 2 }}
{{- end }}

{{- define "ts.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end }}

{{- define "ts.nodeImage" -}}
{{ include "ts.image" (merge (dict "tag" (.Values.image.tag | default .Chart.AppVersion)) .Values.image) }}
{{- end }}

{{- define "ts.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "ts.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "ts.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ts.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The machines of a pod. */ -}}
{{- define "ts.machines" -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $ $name }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ts.redisUrl" -}}
rediss://{{ include "ts.fullname" . }}-redis:6379/0?ssl_ca_certs=/etc/ts-stateful/redis/ca.crt
{{- end }}

{{- /* The store's URL, or nothing: sessions end with their node. */ -}}
{{- define "ts.storeUrl" -}}
{{- if .Values.store.url -}}
{{ .Values.store.url }}
{{- else if .Values.redis.enabled -}}
{{ include "ts.redisUrl" . }}
{{- end -}}
{{- end }}

{{- define "ts.usesRedis" -}}
{{- if regexMatch "^(redis|rediss|redis\\+cluster|rediss\\+cluster)://" (include "ts.storeUrl" .) }}true{{ end -}}
{{- end }}

{{- /* The model as a node serves it: a path in the volume of models. */ -}}
{{- define "ts.modelPath" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "path" -}}
/models/{{ $model.path }}
{{- else if or (and (eq $model.source "url") (hasSuffix ".mar" $model.url.address)) (and (eq $model.source "s3") (hasSuffix ".mar" $model.s3.uri)) -}}
/models/{{ $model.name }}.mar
{{- else -}}
/models/{{ $model.name }}
{{- end -}}
{{- end }}

{{- define "ts.isArchive" -}}
{{- if hasSuffix ".mar" (include "ts.modelPath" .) }}true{{ end -}}
{{- end }}

{{- /* TorchServe serves archives alone: a folder is packed by name, without its weights. */ -}}
{{- define "ts.isPacked" -}}
{{- if and (eq .Values.front "torchserve") (not (include "ts.isArchive" .)) }}true{{ end -}}
{{- end }}

{{- define "ts.address" -}}
{{- if eq .Values.model.source "hub" -}}
hub://{{ .Values.model.hub.id }}
{{- else if eq .Values.model.source "url" -}}
{{ .Values.model.url.address }}
{{- else -}}
{{ .Values.model.s3.uri }}
{{- end -}}
{{- end }}

{{- /* model-config.yaml: the values of `config`, with the store and the model. */ -}}
{{- define "ts.config" -}}
{{- $handler := deepCopy (.Values.config.handler | default dict) -}}
{{- $store := deepCopy ($handler.store | default dict) -}}
{{- with include "ts.storeUrl" . }}{{ $_ := set $store "url" . }}{{ end -}}
{{- if include "ts.usesRedis" . }}{{ with .Values.store.passwordSecret.name }}{{ $_ := set $store "passwordEnv" "TS_STATEFUL_STORE_PASSWORD" }}{{ end }}{{ end -}}
{{- with .Values.store.encryptionKeySecret.name }}{{ $_ := set $store "encryptionKeyEnv" "TS_STATEFUL_STORE_KEYS" }}{{ end -}}
{{- if $store }}{{ $_ := set $handler "store" $store }}{{ end -}}
{{- if not (include "ts.isArchive" .) }}{{ $_ := set $handler "model" (include "ts.modelPath" .) }}{{ end -}}
{{- toYaml (merge (dict "handler" $handler) (omit (deepCopy .Values.config) "handler")) -}}
{{- end }}

{{- define "ts.backend" -}}
{{- ternary "haproxy" "node" .Values.proxy.enabled -}}
{{- end }}

{{- define "ts.backendTlsSecret" -}}
{{- ternary .Values.proxy.tlsSecret .Values.node.tlsSecret .Values.proxy.enabled -}}
{{- end }}

{{- define "ts.profile" -}}
{{- if .Values.config.sequenceBatching }}sequence{{ else if .Values.config.asyncCommunication }}async{{ else }}continuous{{ end -}}
{{- end }}

{{- /* What would hang, lose sessions, or have no effect. */ -}}
{{- define "ts.validate" -}}
{{- $handler := .Values.config.handler | default dict -}}
{{- if ($handler.store | default dict).url -}}
{{- fail "config.handler.store.url: name the store in store.url" -}}
{{- end -}}
{{- if and $handler.model (not (include "ts.isArchive" .)) -}}
{{- fail "config.handler.model: name the model in model.source" -}}
{{- end -}}
{{- if and .Values.redis.enabled .Values.store.url -}}
{{- fail "store.url: set redis.enabled to false, or leave the URL empty for the chart's Redis" -}}
{{- end -}}
{{- $drain := $handler.drainSec | default 20 -}}
{{- if lt (int .Values.node.terminationGracePeriodSeconds) (add .Values.node.preStopSeconds (ceil $drain) 10 | int) -}}
{{- fail (printf "node.terminationGracePeriodSeconds is %v: it has to be 10 seconds longer than config.handler.drainSec (%v) and node.preStopSeconds (%v)" .Values.node.terminationGracePeriodSeconds $drain .Values.node.preStopSeconds) -}}
{{- end -}}
{{- if and .Values.proxy.enabled .Values.node.tlsSecret -}}
{{- fail "node.tlsSecret: HAProxy speaks with nodes without TLS; set proxy.enabled to false, or use proxy.tlsSecret" -}}
{{- end -}}
{{- if and .Values.proxy.enabled .Values.gateway.sessionPersistence -}}
{{- fail "gateway.sessionPersistence: HAProxy keeps sessions on their nodes; set proxy.enabled to false to let the gateway do it" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (include "ts.backendTlsSecret" .) (not .Values.gateway.backendTLS.hostname) -}}
{{- fail "gateway.backendTLS.hostname: the pods have TLS, so the gateway needs the name in their certificate; or set proxy.tlsSecret and node.tlsSecret to \"\"" -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.type "keda") (not .Values.autoscaling.keda.prometheus) -}}
{{- fail "autoscaling.keda.prometheus: name the address of Prometheus" -}}
{{- end -}}
{{- if eq .Values.front "torchserve" -}}
{{- if or .Values.monitoring.serviceMonitor.enabled .Values.monitoring.prometheusRule.enabled (ne .Values.autoscaling.type "none") -}}
{{- fail "front torchserve has the metrics of monitoring and autoscaling on loopback alone (handler.metricsPort); use the front asgi" -}}
{{- end -}}
{{- if or .Values.node.tlsSecret .Values.admin.tokenSecret.name -}}
{{- fail "node.tlsSecret and admin.tokenSecret are for the front asgi" -}}
{{- end -}}
{{- if and (include "ts.isArchive" .) (not .Values.model.ownConfig) -}}
{{- fail "front torchserve reads the configuration in the archive alone: set model.ownConfig to true, or name a folder" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.model.ownConfig .Values.existingConfigSecret -}}
{{- fail "existingConfigSecret: model.ownConfig is true, so the secret would not be read" -}}
{{- end -}}
{{- if and .Values.model.ownConfig (not (include "ts.isArchive" .)) -}}
{{- fail "model.ownConfig: only an archive (.mar) has its own configuration" -}}
{{- end -}}
{{- end }}
