{{/* Every component uses Kafka except the Job that registers schemas, and the registry except the Job that creates topics. */}}
{{- define "streamward.asksKafka" -}}{{ if ne .component "schemas" }}yes{{ end }}{{- end -}}
{{- define "streamward.asksRegistry" -}}
{{- if and .root.Values.schemas.registryUrl (ne .component "topics") }}yes{{ end -}}
{{- end -}}

{{- define "streamward.registrySecret" -}}
{{- $own := .root.Values.schemas -}}
{{- if include "streamward.asksRegistry" . -}}
{{- ternary (default $own.secret $own.registerSecret) $own.secret (eq .component "schemas") -}}
{{- end -}}
{{- end -}}

{{/* Whether the registry's files are mounted: its credentials, its CA certificate, or both. */}}
{{- define "streamward.registryFiles" -}}
{{- if and (include "streamward.asksRegistry" .) (or (include "streamward.registrySecret" .) .root.Values.schemas.caSecret) }}yes{{ end -}}
{{- end -}}
