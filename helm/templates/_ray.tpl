{{/* What runs the trainer on Ray. Each Pod of `ranks` has one rank, or one for each of its GPUs, and a CPU for each thread. */}}

{{- define "streamward.rayJob" -}}
{{- $own := .Values.trainer -}}
{{- $at := dict "root" . "component" "trainer" -}}
{{- $settings := include "streamward.settings" $at | fromJson -}}
{{- $threads := max 1 (default 1 (default dict $settings.trainer).threads | int) -}}
entrypoint: streamward {{ include "streamward.args" $at | replace "," "" }} --launcher ray
submissionMode: HTTPMode
shutdownAfterJobFinishes: true
backoffLimit: {{ $own.ray.retries }}
rayClusterSpec:
  rayVersion: {{ $own.ray.version | quote }}
  headGroupSpec:
    rayStartParams: {num-cpus: "0", num-gpus: "0", object-store-memory: "100000000"}
    template: {{- include "streamward.rayPod" (dict "root" . "component" "trainer" "resources" (toYaml $own.ray.headResources)) | nindent 6 }}
  workerGroupSpecs:
    - groupName: ranks
      replicas: {{ $own.ray.workers }}
      minReplicas: {{ $own.ray.workers }}
      maxReplicas: {{ $own.ray.workers }}
      rayStartParams:
        num-cpus: {{ mul $threads (max 1 (int $own.gpus)) | quote }}
        num-gpus: {{ int $own.gpus | quote }}
        object-store-memory: "100000000"
      template: {{- include "streamward.rayPod" (dict "root" . "component" "trainer" "resources" (include "streamward.resources" $at)) | nindent 8 }}
{{- end -}}

{{- define "streamward.rayPod" -}}
metadata:
  labels: {{- include "streamward.labels" . | nindent 4 }}
spec:
  serviceAccountName: {{ include "streamward.fullname" .root }}-trainer
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 120
  securityContext: {{- include "streamward.podSecurity" . | nindent 4 }}
  {{- with .root.Values.images.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  containers:
    - name: trainer
      image: {{ include "streamward.image" . }}
      imagePullPolicy: {{ .root.Values.images.pullPolicy }}
      env: {{- include "streamward.env" . | nindent 8 }}
        - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
      {{- if int .root.Values.metrics.port }}
      ports:
        - {name: metrics, containerPort: {{ .root.Values.metrics.port }}}
      {{- end }}
      resources: {{- .resources | nindent 8 }}
      securityContext: {{- include "streamward.containerSecurity" . | nindent 8 }}
      volumeMounts: {{- include "streamward.mounts" . | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
  volumes: {{- include "streamward.volumes" . | nindent 4 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: 256Mi}
  {{- include "streamward.placement" . | nindent 2 }}
{{- end -}}
