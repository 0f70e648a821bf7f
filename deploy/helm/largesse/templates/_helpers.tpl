{{- define "largesse.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "largesse.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "largesse.selector" . }}
{{- end -}}

{{- define "largesse.selector" -}}
app.kubernetes.io/name: largesse
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "largesse.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The settings file: the values of .Values.settings, and the port of the probes. */ -}}
{{- define "largesse.settings" -}}
{{- toYaml (mergeOverwrite (dict "http" (dict "probe-listen" "0.0.0.0:8081")) (deepCopy .Values.settings)) -}}
{{- end -}}

{{- /* What all pods share: no rights, no writes but to the data directory. */ -}}
{{- define "largesse.pod" -}}
serviceAccountName: {{ include "largesse.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "largesse.container" -}}
image: {{ include "largesse.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ .Values.existingSecret }}}
env:
  - {name: LARGESSE_DATA_DIR, value: /var/lib/largesse/data} # in a volume that others may write to, one for this user alone
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: settings, mountPath: /etc/largesse/settings, readOnly: true}
  - {name: data, mountPath: /var/lib/largesse}
{{- range .Values.files }}
  - {name: file-{{ .name }}, mountPath: /etc/largesse/{{ .name }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "largesse.volumes" -}}
- name: data # nothing that must survive the pod: the servers keep it
  emptyDir: {}
{{- range .Values.files }}
- name: file-{{ .name }}
{{- if .secret }}
  secret: {secretName: {{ .secret }}, defaultMode: 0440}
{{- else }}
  configMap: {name: {{ .configMap }}}
{{- end }}
{{- end }}
{{- end -}}

{{- /* A deployment of instances: (dict "root" $ "part" "api" "roles" (list "api") "values" .Values.api) */ -}}
{{- define "largesse.deployment" -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "largesse.name" $root }}-{{ .part }}
  labels:
    {{- include "largesse.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  {{- if not (and (eq .part "workers") $root.Values.keda.enabled) }}
  replicas: {{ .values.replicas }}
  {{- end }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  selector:
    matchLabels:
      {{- include "largesse.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
  template:
    metadata:
      labels:
        {{- include "largesse.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .part }}
      annotations:
        checksum/settings: {{ include "largesse.settings" $root | sha256sum }}
        prometheus.io/scrape: "true"
        prometheus.io/port: "8081"
        {{- with $root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "largesse.pod" $root | nindent 6 }}
      terminationGracePeriodSeconds: 45 # 5 s until no traffic arrives, 10 s for calls in flight, then servers that do not answer
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "largesse.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ .part }}
      containers:
        - name: largesse
          {{- include "largesse.container" $root | nindent 10 }}
          args: [serve, --config, /etc/largesse/settings/largesse.yaml, --roles, {{ join "," .roles | quote }}]
          ports:
            {{- if has "api" .roles }}
            - {name: http, containerPort: 8080}
            {{- end }}
            - {name: probes, containerPort: 8081}
          # The probes have a port of their own, so that held connections cannot keep them out.
          startupProbe:
            httpGet: {path: /healthz, port: probes}
            periodSeconds: 2
            failureThreshold: 150 # a migration of a large table may take minutes
          livenessProbe:
            httpGet: {path: /healthz, port: probes}
            periodSeconds: 10
            timeoutSeconds: 3
          readinessProbe:
            httpGet: {path: /readyz, port: probes}
            periodSeconds: 5
            timeoutSeconds: 3
          lifecycle:
            preStop:
              sleep: {seconds: 5} # until endpoints no longer name this pod
          resources: {{- toYaml .values.resources | nindent 12 }}
      volumes:
        - name: settings
          configMap: {name: {{ include "largesse.name" $root }}}
        {{- include "largesse.volumes" $root | nindent 8 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "largesse.name" $root }}-{{ .part }}
  labels: {{- include "largesse.labels" $root | nindent 4 }}
spec:
  maxUnavailable: {{ $root.Values.disruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "largesse.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
{{- end -}}
