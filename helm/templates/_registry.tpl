{{/* All ask Kafka, but for the Job that registers schemas; and all but the one that makes topics need their ids. */}}
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

{{/* Whether files of the registry are mounted: user and password, its authority, or both. */}}
{{- define "streamward.registryFiles" -}}
{{- if and (include "streamward.asksRegistry" .) (or (include "streamward.registrySecret" .) .root.Values.schemas.caSecret) }}yes{{ end -}}
{{- end -}}
