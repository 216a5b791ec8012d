{{- define "pgleaderlock.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "pgleaderlock.labels" -}}
{{ include "pgleaderlock.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "pgleaderlock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pgleaderlock.account" -}}
{{- .Values.serviceAccount.name | default (include "pgleaderlock.name" .) -}}
{{- end -}}

{{- define "pgleaderlock.lease" -}}
{{- .Values.election.lease | default (include "pgleaderlock.name" .) -}}
{{- end -}}

{{- define "pgleaderlock.podLabelValue" -}}
{{- .Values.podLabel.value | default (include "pgleaderlock.name" .) -}}
{{- end -}}

{{- define "pgleaderlock.isLease" -}}
{{- if not (or .Values.election.url .Values.election.urlSecret.name) -}}yes{{- end -}}
{{- end -}}

{{/* The options that sidecar and exec share. */}}
{{- define "pgleaderlock.electionArgs" -}}
- {{ printf "--lease=%v" .Values.election.leaseSeconds | quote }}
{{- if include "pgleaderlock.isLease" . }}
- {{ printf "--url=k8s:///%s" (include "pgleaderlock.lease" .) | quote }}
{{- else if .Values.election.url }}
- {{ printf "--url=%s" .Values.election.url | quote }}
{{- end }}
{{- if .Values.election.role }}
- {{ printf "--role=%s" .Values.election.role | quote }}
{{- end }}
{{- if .Values.worker.port }}
- {{ printf "--address=http://$(POD_IP):%v" .Values.worker.port | quote }}
{{- end }}
{{- if .Values.podLabel.enabled }}
- {{ printf "--pod-label=pgleaderlock/leader=%s" (include "pgleaderlock.podLabelValue" .) | quote }}
{{- end }}
- --quiet
{{- range .Values.election.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "pgleaderlock.electionEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- if .Values.election.urlSecret.name }}
- name: PGLEADERLOCK_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.election.urlSecret.name | quote }}
      key: {{ .Values.election.urlSecret.key | quote }}
{{- end }}
{{- end -}}

{{- define "pgleaderlock.accountMount" -}}
- name: kube-api-access
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}

{{- define "pgleaderlock.sidecar" -}}
- name: sidecar
  image: {{ required "sidecar.image: build it with deploy/Dockerfile" .Values.sidecar.image | quote }}
  imagePullPolicy: {{ .Values.sidecar.imagePullPolicy }}
  {{- if .Values.sidecar.native }}
  restartPolicy: Always
  {{- end }}
  args:
    - sidecar
    {{- include "pgleaderlock.electionArgs" . | nindent 4 }}
    - --host=0.0.0.0
    - {{ printf "--port=%v" .Values.sidecar.port | quote }}
    - {{ printf "--notice=%v" .Values.sidecar.noticeSeconds | quote }}
  env:
    {{- include "pgleaderlock.electionEnv" . | nindent 4 }}
  ports:
    - name: sidecar
      containerPort: {{ .Values.sidecar.port }}
  # Whether the election runs, not whether this pod leads.
  livenessProbe:
    httpGet:
      path: /healthz
      port: sidecar
    initialDelaySeconds: 10
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  # Whether this pod takes part: a Deployment waits for that before it ends an old pod.
  readinessProbe:
    httpGet:
      path: /readyz
      port: sidecar
    periodSeconds: 5
    timeoutSeconds: 5
  volumeMounts:
    {{- include "pgleaderlock.accountMount" . | nindent 4 }}
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.sidecar.securityContext | nindent 4 }}
{{- end -}}
