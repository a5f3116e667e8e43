{{/* A Job before install and upgrade, with its own account and network policy: those of the release do not exist yet, or are
     the previous ones. Helm runs hooks in the order of `weight`; a failure stops the upgrade before it changes a process.
     Exit codes 2, 3 and 4 are final: the Job is not retried. */}}
{{- define "streamward.hook" -}}
{{- $at := dict "root" .root "component" .component }}
{{- $name := printf "%s-%s" (include "streamward.fullname" .root) .component }}
{{- $own := index .root.Values .component -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  labels: {{- include "streamward.labels" $at | nindent 4 }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-weight: "-10"
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
    {{- with $own.serviceAccountAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
automountServiceAccountToken: false
---
{{- if .root.Values.networkPolicy.enabled }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  labels: {{- include "streamward.labels" $at | nindent 4 }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-weight: "-10"
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  podSelector:
    matchLabels: {{- include "streamward.selector" $at | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress: []
  egress: {{- include "streamward.egress" .root | nindent 4 }}
---
{{- end }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  labels: {{- include "streamward.labels" $at | nindent 4 }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-weight: {{ .weight | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  backoffLimit: 3
  activeDeadlineSeconds: 300
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes: {containerName: {{ .component }}, operator: In, values: [2, 3, 4]}
  template:
    metadata:
      labels: {{- include "streamward.labels" $at | nindent 8 }}
    spec:
      restartPolicy: Never
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext: {{- include "streamward.podSecurity" $at | nindent 8 }}
      {{- with .root.Values.images.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "streamward.image" $at }}
          imagePullPolicy: {{ .root.Values.images.pullPolicy }}
          command: [streamward]
          args: {{ toJson .args }}
          env: {{- include "streamward.env" $at | nindent 12 }}
          resources: {{- include "streamward.resources" $at | nindent 12 }}
          securityContext: {{- include "streamward.containerSecurity" $at | nindent 12 }}
          volumeMounts: {{- include "streamward.mounts" $at | nindent 12 }}
      volumes: {{- include "streamward.volumes" $at | nindent 8 }}
{{- end -}}
