{{- define "purgatory.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- if hasKey . "shard" }}-{{ .shard }}{{ end }}
{{- end }}

{{- define "purgatory.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- if hasKey . "shard" }}
purgatory-shard: {{ .shard | quote }}
{{- end }}
{{- end }}

{{- /* Renders `template` once, or for each of several shards with its number as `shard`: a text, as `merge` replaces 0. */ -}}
{{- define "purgatory.shards" -}}
{{- $shards := int .root.Values.fleet.shards }}
{{- range $shard := until $shards }}
---
{{ include $.template (gt $shards 1 | ternary (merge (dict "shard" (toString $shard)) $.root) $.root) }}
{{- end }}
{{- end }}

{{- define "purgatory.metadata" -}}
name: {{ include "purgatory.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "purgatory.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
