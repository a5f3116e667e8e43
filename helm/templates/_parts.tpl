{{/* Shared by all templates. A component is one of streams, scoring, policy, trainer, jobs, tuner, calls, serve, audit,
     archive, topics, schemas, the parts of improve, and vllm, which has no settings. */}}

{{- define "streamward.components" -}}
{{- $found := list "streams" "scoring" "policy" "trainer" -}}
{{- range $component := list "jobs" "tuner" "calls" "serve" "audit" "archive" -}}
{{- if (index $.Values $component).enabled -}}{{- $found = append $found $component -}}{{- end -}}
{{- end -}}
{{- range $component := include "streamward.improvers" . | splitList " " -}}
{{- if (index $.Values.improve $component).enabled -}}{{- $found = append $found $component -}}{{- end -}}
{{- end -}}
{{- join " " $found -}}
{{- end -}}

{{/* The parts of `improve`. */}}
{{- define "streamward.improvers" -}}
curate datasets retrain selfplay
{{- end -}}

{{/* The values of a component as JSON: a part of `improve` has its own, and those of all parts; `calls` those of `tuner`. */}}
{{- define "streamward.own" -}}
{{- $parts := include "streamward.improvers" . | splitList " " -}}
{{- $improve := .root.Values.improve -}}
{{- if has .component $parts -}}
{{- toJson (merge (deepCopy (index $improve .component)) (omit $improve "curate" "datasets" "retrain" "selfplay")) -}}
{{- else if eq .component "calls" -}}
{{- toJson (merge (deepCopy .root.Values.calls) (omit .root.Values.tuner "enabled" "replicas" "saslSecret")) -}}
{{- else -}}
{{- toJson (index .root.Values .component) -}}
{{- end -}}
{{- end -}}

{{- define "streamward.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "streamward.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "streamward.labels" -}}
{{ include "streamward.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Archive and data sets need packages of the model image; they take the CPU image if policy or trainer does. */}}
{{- define "streamward.image" -}}
{{- $pinned := .root.Values.vllm.image -}}
{{- if eq .component "vllm" -}}
{{- ternary (printf "%s@%s" $pinned.repository $pinned.digest) (printf "%s:%s" $pinned.repository $pinned.tag) (ne $pinned.digest "") -}}
{{- else -}}
{{- $kind := ternary "model" "streams" (has .component (list "policy" "trainer" "tuner" "calls" "serve" "archive" "datasets")) -}}
{{- $image := index .root.Values.images $kind -}}
{{- $suffix := "" -}}
{{- if eq $kind "model" -}}
{{- $gpus := list (include "streamward.own" . | fromJson).gpus -}}
{{- if has .component (list "archive" "datasets") -}}{{- $gpus = list .root.Values.policy.gpus .root.Values.trainer.gpus -}}{{- end -}}
{{- $suffix = "-cuda" -}}
{{- range $gpus -}}{{- if eq (int .) 0 -}}{{- $suffix = "-cpu" -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (printf "%s%s" .root.Chart.AppVersion $suffix) $image.tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "streamward.autoscaled" -}}
{{- with (include "streamward.own" . | fromJson).autoscaling }}{{ ternary "" "yes" (eq .kind "none") }}{{ end -}}
{{- end -}}

{{/* Whether several servers answer for the log: each then tells the others its address (serve.peer_url). */}}
{{- define "streamward.severalServers" -}}
{{- if or (gt (int .Values.serve.replicas) 1) (include "streamward.autoscaled" (dict "root" . "component" "serve")) }}yes{{ end -}}
{{- end -}}

{{/* Whether policy and serve use vLLM servers, the chart's or existing ones. */}}
{{- define "streamward.asksServers" -}}
{{- if and .Values.vllm.enabled .Values.vllm.servers -}}
{{- fail "vllm.enabled and vllm.servers are mutually exclusive: remove one" -}}
{{- end -}}
{{- if and .Values.vllm.servers (not .Values.vllm.shared.existingClaim) -}}
{{- fail "vllm.servers needs vllm.shared.existingClaim: the volume that those servers mount" -}}
{{- end -}}
{{- if or .Values.vllm.enabled .Values.vllm.servers -}}
yes
{{- end -}}
{{- end -}}

{{/* Arguments of a component's process, which is one of many in a fleet. Those of `improve` have a text of the values as a
     file, or arguments of the user's. */}}
{{- define "streamward.args" -}}
{{- $own := include "streamward.own" . | fromJson -}}
{{- $commands := dict "policy" "policy" "trainer" "train" "serve" "serve" "jobs" "jobs, run" "tuner" "tune, --jobs" "calls" "calls" "archive" "admin, archive, sync, --follow" -}}
{{- if eq .component "curate" -}}
improve, curate, follow
{{- range $own.args }}, {{ toJson . }}{{ end -}}
{{- else if eq .component "datasets" -}}
improve, datasets, follow, {{ required "improve.datasets.enabled is true and improve.datasets.name is not set: name the data set" $own.name | toJson }}
{{- range $own.args }}, {{ toJson . }}{{ end -}}
{{- else if eq .component "retrain" -}}
improve, retrain, follow, --rule, /etc/streamward/files/{{ include "streamward.fileName" . }}
{{- else if eq .component "selfplay" -}}
improve, selfplay, run, /etc/streamward/files/{{ include "streamward.fileName" . }}, --every, {{ toJson $own.every }}
{{- else if eq .component "audit" -}}
audit, --follow, --listen, "0.0.0.0:{{ .root.Values.metrics.port }}", --every, "{{ $own.everySeconds }}"
{{- else -}}
{{ get $commands .component | default .component }}
{{- if and .root.Values.fleet.enabled (has .component (list "policy" "trainer" "serve")) }}, --fleet
{{- with (include "streamward.settings" . | fromJson).policy -}}
{{- if .name -}}
{{- fail (printf "settings: policy.name is %s and fleet.enabled true: a fleet serves every policy; remove one, and name policies in settings.fleet.policies" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The file that a component reads, if it reads one: its name, its text, and the ConfigMap that holds it. That is named by
     the text, so a Pod of an older revision that restarts finds no newer one. */}}
{{- define "streamward.fileName" -}}
{{- get (dict "retrain" "retrain.toml" "selfplay" "catalogue.yaml") .component -}}
{{- end -}}

{{- define "streamward.fileText" -}}
{{- $own := include "streamward.own" . | fromJson -}}
{{- $key := get (dict "retrain" "rule" "selfplay" "catalogue") .component -}}
{{- $path := printf "improve.%s.%s" .component $key -}}
{{- required (printf "improve.%s.enabled is true and %s is empty: give the text, e.g. --set-file %s=%s" .component $path $path (include "streamward.fileName" .)) (get $own $key) -}}
{{- end -}}

{{- define "streamward.fileConfigMap" -}}
{{- printf "%s-%s-%s" (include "streamward.fullname" .root) .component (include "streamward.fileText" . | sha256sum | trunc 8) -}}
{{- end -}}

{{/* URLs of the servers, one each: an adapter is loaded into a single server. */}}
{{- define "streamward.servers" -}}
{{- $urls := list -}}
{{- $name := printf "%s-vllm" (include "streamward.fullname" .) -}}
{{- range $number := until (int .Values.vllm.replicas) -}}
{{- $urls = append $urls (printf "http://%s-%d.%s:%d" $name $number $name (int $.Values.vllm.port)) -}}
{{- end -}}
{{- default (join "," $urls) .Values.vllm.servers -}}
{{- end -}}

{{- define "streamward.saslSecret" -}}
{{- $own := include "streamward.own" . | fromJson -}}
{{- default .root.Values.kafka.sasl.secret $own.saslSecret -}}
{{- end -}}

{{/* The settings of one component as JSON: `settings`, overridden by its own, and those that other values determine, which
     `settings` may not give. */}}
{{- define "streamward.settings" -}}
{{- $values := .root.Values -}}
{{- $own := include "streamward.own" . | fromJson -}}
{{- $kafka := dict "bootstrap" (required "kafka.bootstrap is not set; give host:port of a broker" $values.kafka.bootstrap) -}}
{{- $_ := set $kafka "security_protocol" $values.kafka.securityProtocol -}}
{{- $sasl := hasPrefix "SASL" $values.kafka.securityProtocol -}}
{{- if $sasl -}}
{{- $_ := set $kafka "sasl_mechanism" (required "kafka.sasl.mechanism is not set, and kafka.securityProtocol needs it" $values.kafka.sasl.mechanism) -}}
{{- $_ := ternary "-" (include "streamward.saslSecret" .) (eq .component "schemas") | required (printf "no Secret for %s: set kafka.sasl.secret or %s.saslSecret" .component .component) -}}
{{- else if or $values.kafka.sasl.mechanism (include "streamward.saslSecret" .) -}}
{{- fail (printf "kafka.sasl has no effect with kafka.securityProtocol %s; set SASL_SSL" $values.kafka.securityProtocol) -}}
{{- end -}}
{{- if hasSuffix "SSL" $values.kafka.securityProtocol -}}
{{- if $values.kafka.tls.caSecret -}}{{- $_ := set $kafka "ssl_ca_location" "/etc/streamward/ca/ca.crt" -}}{{- end -}}
{{- if $values.kafka.tls.clientSecret -}}
{{- $_ := set $kafka "ssl_certificate_location" "/etc/streamward/client/tls.crt" -}}
{{- $_ := set $kafka "ssl_key_location" "/etc/streamward/client/tls.key" -}}
{{- end -}}
{{- else if or $values.kafka.tls.caSecret $values.kafka.tls.clientSecret -}}
{{- fail (printf "kafka.tls has no effect with kafka.securityProtocol %s; set SSL or SASL_SSL" $values.kafka.securityProtocol) -}}
{{- end -}}
{{- $said := mustMergeOverwrite (deepCopy $values.settings) (deepCopy (default dict $own.settings)) -}}
{{- $registry := $values.schemas -}}
{{- if not $registry.registryUrl -}}
{{- if or $registry.secret $registry.registerSecret $registry.caSecret $said.schemas -}}
{{- fail "schemas: the Secrets and settings.schemas have no effect without schemas.registryUrl; set it, or remove them" -}}
{{- end -}}
{{- else if and $registry.caSecret (not (contains "https://" $registry.registryUrl)) -}}
{{- fail "schemas.caSecret has no effect on a schemas.registryUrl that begins with http://; remove it, or use https://" -}}
{{- end -}}
{{- $derived := dict "kafka" $kafka
    "adapters" (dict "store" (default "/var/lib/streamward/adapters" $values.adapterStore.url))
    "trainer" (dict "checkpoints" "/var/lib/streamward/checkpoints") -}}
{{- if $registry.registryUrl -}}
{{- $_ := set $derived "schemas" (dict "registry_url" $registry.registryUrl) -}}
{{- if $registry.caSecret -}}{{- $_ := set $derived.schemas "registry_ca_location" "/etc/streamward/registry/ca.crt" -}}{{- end -}}
{{- end -}}
{{- $processes := 1 -}}
{{- if eq .component "trainer" -}}{{- $processes = mul (max 1 (int $own.gpus)) (max 1 (int $own.ray.workers)) -}}{{- end -}}
{{- if gt $processes 1 -}}{{- $_ := set $derived.trainer "processes" $processes -}}{{- end -}}
{{- if and .root.Values.signing.privateSecret (has .component (list "trainer" "tuner" "calls")) -}}
{{- $_ := set $derived.adapters "signing_key" "/etc/streamward/signing/adapters.key" -}}
{{- end -}}
{{- if has .component (list "policy" "serve") -}}
{{- if .root.Values.signing.publicSecret -}}
{{- $_ := set $derived.adapters "verify_key" "/etc/streamward/signing/adapters.pub" -}}
{{- end -}}
{{- if include "streamward.asksServers" .root -}}
{{- $_ := set $derived "policy" (dict "engine" "vllm" "servers" (include "streamward.servers" .root) "server_folder" "/var/lib/streamward/served") -}}
{{- end -}}
{{- end -}}
{{- if eq .component "serve" -}}
{{- $_ := set $derived "serve" (dict "host" "0.0.0.0" "port" (int $own.port) "auth" "keys") -}}
{{- if include "streamward.severalServers" .root -}}{{- $_ := set $derived.serve "peer_url" (printf "http://$(POD_IP):%d" (int $own.port)) -}}{{- end -}}
{{- $login := dict -}}
{{- if $own.loginSecret -}}{{- $_ := set $login "signing_key" "/etc/streamward/login/signing.pem" -}}{{- end -}}
{{- if $own.ingress.enabled -}}
{{- $_ := set $login "public_url" (required "serve.ingress.enabled is true and serve.ingress.host is not set" $own.ingress.host | printf "https://%s") -}}
{{- end -}}
{{- if $login -}}{{- $_ := set $derived "people" $login -}}{{- end -}}
{{- end -}}
{{- if eq .component "archive" -}}
{{- $_ := set $derived "archive" (dict "store" (default "/var/lib/streamward/archive" $own.url)) -}}
{{- end -}}
{{- if and (eq .component "datasets") $own.existingClaim -}}
{{- $_ := set $derived "improve" (dict "datasets" "/var/lib/streamward/data/autoretrain") -}}
{{- end -}}
{{- if and $values.metrics.port (has .component (list "streams" "scoring" "policy" "trainer" "jobs" "tuner" "calls" "serve" "archive" "curate" "datasets" "retrain" "selfplay")) -}}
{{- $_ := set $derived "metrics" (dict "host" "0.0.0.0" "port" (int $values.metrics.port)) -}}
{{- end -}}
{{- range $section, $keys := $derived -}}
{{- range $key, $_ := $keys -}}
{{- if hasKey (default dict (get $said $section)) $key -}}
{{- fail (printf "settings: %s.%s is determined by other values (kafka, schemas, adapterStore, signing, metrics, vllm, trainer, serve, archive, improve.datasets); remove it from settings" $section $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $device := ternary (dict "model" (dict "device" "cuda")) dict (gt (int (default 0 $own.gpus)) 0) -}}
{{- $patience := dict -}}
{{- if and (eq .component "trainer") (int $own.ray.workers) -}}{{- $patience = dict "distributed" (dict "wait_s" 3600) -}}{{- end -}}
{{- if and (eq .component "serve") (include "streamward.severalServers" .root) -}}
{{- $patience = dict "serve" (dict "address_connections" 0) -}}{{/* the others have one address each for all clients */}}
{{- end -}}
{{- $tree := mustMergeOverwrite (dict) $device $patience $said $derived -}}
{{- if eq .component "schemas" -}}{{- $tree = pick $tree "topics" "schemas" -}}{{- end -}}
{{- if eq .component "topics" -}}{{- $tree = omit $tree "schemas" -}}{{- end -}}
{{- toJson $tree -}}
{{- end -}}

{{- define "streamward.signingSecret" -}}
{{- if has .component (list "trainer" "tuner" "calls") }}{{ .root.Values.signing.privateSecret }}{{ end -}}
{{- if has .component (list "policy" "serve") }}{{ .root.Values.signing.publicSecret }}{{ end -}}
{{- end -}}

{{/* Credentials for the object store of the adapters, or of the archive. */}}
{{- define "streamward.storeSecret" -}}
{{- $store := get (dict "policy" .root.Values.adapterStore "trainer" .root.Values.adapterStore "tuner" .root.Values.adapterStore "calls" .root.Values.adapterStore "serve" .root.Values.adapterStore "archive" .root.Values.archive) .component -}}
{{- with $store }}{{ if .url }}{{ .credentialsSecret }}{{ end }}{{ end -}}
{{- end -}}

{{- define "streamward.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "streamward.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Settings are variables of the Pod template, so a Pod of an older revision that restarts has the settings it was rendered
     with. Kubernetes reads $(NAME) in a value as a reference, and $$ as $. A setting from a Secret takes precedence. */}}
{{- define "streamward.env" -}}
{{- if and (eq .component "serve") (include "streamward.severalServers" .root) }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- $secret := default dict (include "streamward.own" . | fromJson).secretSettings }}
{{- range $section, $keys := include "streamward.settings" . | fromJson }}
{{- range $key, $value := $keys }}
{{- if not (hasKey $secret (printf "%s.%s" $section $key)) }}
- name: STREAMWARD_{{ printf "%s__%s" $section $key | upper }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | replace "$" "$$" | replace "$$(POD_IP)" "$(POD_IP)" | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (include "streamward.asksKafka" .) (hasPrefix "SASL" .root.Values.kafka.securityProtocol) }}
- name: STREAMWARD_KAFKA__SASL_USERNAME_FILE
  value: /etc/streamward/sasl/username
- name: STREAMWARD_KAFKA__SASL_PASSWORD_FILE
  value: /etc/streamward/sasl/password
{{- end }}
{{- if include "streamward.registrySecret" . }}
- name: STREAMWARD_SCHEMAS__REGISTRY_USERNAME_FILE
  value: /etc/streamward/registry/username
- name: STREAMWARD_SCHEMAS__REGISTRY_PASSWORD_FILE
  value: /etc/streamward/registry/password
{{- end }}
{{- range $setting, $from := $secret }}
- name: STREAMWARD_{{ $setting | replace "." "__" | upper }}_FILE
  value: /etc/streamward/secrets/{{ $setting }}
{{- end }}
{{- if include "streamward.storeSecret" . }}
- name: AWS_SHARED_CREDENTIALS_FILE
  value: /etc/streamward/store/credentials
{{- end }}
{{- end -}}

{{- define "streamward.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: work, mountPath: /var/lib/streamward}
{{- if include "streamward.asksKafka" . }}
{{- if hasPrefix "SASL" .root.Values.kafka.securityProtocol }}
- {name: sasl, mountPath: /etc/streamward/sasl, readOnly: true}
{{- end }}
{{- if .root.Values.kafka.tls.caSecret }}
- {name: ca, mountPath: /etc/streamward/ca, readOnly: true}
{{- end }}
{{- if .root.Values.kafka.tls.clientSecret }}
- {name: client, mountPath: /etc/streamward/client, readOnly: true}
{{- end }}
{{- end }}
{{- if include "streamward.registryFiles" . }}
- {name: registry, mountPath: /etc/streamward/registry, readOnly: true}
{{- end }}
{{- if (include "streamward.own" . | fromJson).secretSettings }}
- {name: secrets, mountPath: /etc/streamward/secrets, readOnly: true}
{{- end }}
{{- if has .component (list "policy" "trainer" "tuner" "calls" "serve") }}
- {name: cache, mountPath: /var/lib/streamward/cache}
{{- if not .root.Values.adapterStore.url }}
- {name: adapters, mountPath: /var/lib/streamward/adapters}
{{- end }}
{{- end }}
{{- if include "streamward.storeSecret" . }}
- {name: store, mountPath: /etc/streamward/store, readOnly: true}
{{- end }}
{{- if and (eq .component "archive") (not .root.Values.archive.url) }}
- {name: archive, mountPath: /var/lib/streamward/archive}
{{- end }}
{{- if has .component (list "trainer" "calls") }}
- {name: checkpoints, mountPath: /var/lib/streamward/checkpoints}
{{- end }}
{{- if include "streamward.fileName" . }}
- {name: files, mountPath: /etc/streamward/files, readOnly: true}
{{- end }}
{{- if and (eq .component "datasets") .root.Values.improve.datasets.existingClaim }}
- {name: data, mountPath: /var/lib/streamward/data}
{{- end }}
{{- if include "streamward.signingSecret" . }}
- {name: signing, mountPath: /etc/streamward/signing, readOnly: true}
{{- end }}
{{- if and (eq .component "serve") .root.Values.serve.loginSecret }}
- {name: login, mountPath: /etc/streamward/login, readOnly: true}
{{- end }}
{{- if and (has .component (list "policy" "serve")) (include "streamward.asksServers" .root) }}
- {name: served, mountPath: /var/lib/streamward/served}
{{- end }}
{{- end -}}

{{- define "streamward.volumes" -}}
{{- $name := include "streamward.fullname" .root -}}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: work
  emptyDir: {sizeLimit: 1Gi}
{{- if include "streamward.asksKafka" . }}
{{- if hasPrefix "SASL" .root.Values.kafka.securityProtocol }}
- name: sasl
  secret:
    secretName: {{ include "streamward.saslSecret" . }}
    defaultMode: 0440
    items: [{key: username, path: username}, {key: password, path: password}]
{{- end }}
{{- with .root.Values.kafka.tls.caSecret }}
- name: ca
  secret:
    secretName: {{ . }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- with .root.Values.kafka.tls.clientSecret }}
- name: client
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}
{{- end }}
{{- if include "streamward.registryFiles" . }}
- name: registry
  projected:
    defaultMode: 0440
    sources:
    {{- with include "streamward.registrySecret" . }}
      - secret:
          name: {{ . }}
          items: [{key: username, path: username}, {key: password, path: password}]
    {{- end }}
    {{- with .root.Values.schemas.caSecret }}
      - secret:
          name: {{ . }}
          items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
{{- end }}
{{- with (include "streamward.own" . | fromJson).secretSettings }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
    {{- range $setting, $from := . }}
      - secret:
          name: {{ $from.secret }}
          items: [{key: {{ $from.key }}, path: {{ $setting }}}]
    {{- end }}
{{- end }}
{{- if has .component (list "policy" "trainer" "tuner" "calls" "serve") }}
- name: cache
  emptyDir: {sizeLimit: {{ (include "streamward.own" . | fromJson).cache.size }}}
{{- if not .root.Values.adapterStore.url }}
- name: adapters
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-adapters" $name) .root.Values.adapterStore.existingClaim }}
{{- end }}
{{- end }}
{{- with include "streamward.storeSecret" . }}
- name: store
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: credentials, path: credentials}]
{{- end }}
{{- if and (eq .component "archive") (not .root.Values.archive.url) }}
- name: archive
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-archive" $name) .root.Values.archive.existingClaim }}
{{- end }}
{{- if has .component (list "trainer" "calls") }}
- name: checkpoints
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-checkpoints" $name) .root.Values.trainer.checkpoints.existingClaim }}
{{- end }}
{{- if include "streamward.fileName" . }}
- name: files
  configMap: {name: {{ include "streamward.fileConfigMap" . }}}
{{- end }}
{{- if and (eq .component "datasets") .root.Values.improve.datasets.existingClaim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .root.Values.improve.datasets.existingClaim }}
{{- end }}
{{- with include "streamward.signingSecret" . }}
{{- $key := ternary "adapters.key" "adapters.pub" (has $.component (list "trainer" "tuner" "calls")) }}
- name: signing
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: {{ $key }}, path: {{ $key }}}]
{{- end }}
{{- if and (eq .component "serve") .root.Values.serve.loginSecret }}
- name: login
  secret:
    secretName: {{ .root.Values.serve.loginSecret }}
    defaultMode: 0440
    items: [{key: signing.pem, path: signing.pem}]
{{- end }}
{{- if and (has .component (list "policy" "serve")) (include "streamward.asksServers" .root) }}
- name: served
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-served" $name) .root.Values.vllm.shared.existingClaim }}
{{- end }}
{{- end -}}

{{/* Live: the process makes progress, whatever the broker does. Ready: it has reached the broker, and a policy has loaded
     its engine. The audit's /healthz depends on the broker, so only readiness uses it. */}}
{{- define "streamward.probes" -}}
{{- $mode := .root.Values.probes.mode -}}
{{- if and (eq $mode "http") (not .root.Values.metrics.port) -}}
{{- fail "probes.mode is http and metrics.port 0: nothing would answer; set metrics.port, or probes.mode=exec" -}}
{{- end -}}
{{- if and (eq $mode "http") (eq .component "audit") }}
livenessProbe:
  tcpSocket: {port: metrics}
  periodSeconds: 30
readinessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 5
{{- else if eq $mode "http" }}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 90
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 30
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 5
{{- else if eq $mode "exec" }}
livenessProbe:
  exec:
    command: [sh, -c, kill -0 1]
  periodSeconds: 60
readinessProbe:
  exec:
    command: [streamward, admin, topics, list, --output, jsonl]
  periodSeconds: 60
  timeoutSeconds: 30
  failureThreshold: 2
{{- end }}
{{- end -}}

{{- define "streamward.resources" -}}
{{- $own := include "streamward.own" . | fromJson -}}
{{- $gpus := dict -}}
{{- if gt (int (default 0 $own.gpus)) 0 -}}
{{- $_ := set $gpus "limits" (dict $own.gpuResource (int $own.gpus)) -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite (deepCopy $own.resources) $gpus) -}}
{{- end -}}


{{- define "streamward.placement" -}}
{{- $own := include "streamward.own" . | fromJson -}}
{{- with $own.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
