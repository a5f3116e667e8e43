{{/* Outgoing traffic that the network policies allow: DNS, and the port of every address in the values. */}}

{{- define "streamward.port" -}}
{{- regexFind ":[0-9]+$" (urlParse .).host | default (ternary ":443" ":80" (hasPrefix "https" .)) | trimPrefix ":" -}}
{{- end -}}

{{- define "streamward.egress" -}}
{{- $ports := .Values.networkPolicy.egressPorts }}
{{- range splitList "," .Values.kafka.bootstrap }}
{{- $ports = append $ports (. | trim | splitList ":" | last | int) }}
{{- end }}
{{- if and .Values.serve.enabled (include "streamward.severalServers" .) }}
{{- $ports = append $ports (int .Values.serve.port) }}
{{- end }}
{{- $urls := splitList "," .Values.schemas.registryUrl }}
{{- if include "streamward.asksServers" . }}
{{- $urls = concat $urls (splitList "," (include "streamward.servers" .)) }}
{{- end }}
{{- range $component := include "streamward.components" . | splitList " " }}
{{- $own := default dict (include "streamward.own" (dict "root" $ "component" $component) | fromJson).settings }}
{{- range $section, $key := dict "tracing" "otlp_endpoint" "scoring" "judge_url" "people" "oidc_issuer" }}
{{- $urls = append $urls (get (default dict (get $.Values.settings $section)) $key) }}
{{- $urls = append $urls (get (default dict (get $own $section)) $key) }}
{{- end }}
{{- end }}
{{- range compact $urls }}
{{- $ports = append $ports (include "streamward.port" . | int) }}
{{- end -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
    {{- range $ports | uniq }}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
{{- end -}}
