{{- define "drainer.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- $full | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "drainer.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* The daemon's pods, and no others: a migration is no replica. */ -}}
{{- define "drainer.daemonSelector" -}}
{{ include "drainer.selector" . }}
app.kubernetes.io/component: daemon
{{- end -}}

{{- define "drainer.consoleSelector" -}}
{{ include "drainer.selector" . }}
app.kubernetes.io/component: console
{{- end -}}

{{- define "drainer.labels" -}}
{{ include "drainer.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "drainer.image" -}}
{{- $repository := required "image.repository is missing: where your registry holds the image that `make image` builds" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "drainer.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "drainer.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "drainer.databaseSecret" -}}
{{ required "database.secret is missing: the name of an existing Secret with the connection URL" .Values.database.secret }}
{{- end -}}

{{- /* A Secret's URL as a file, which is read again at each connect: a variable would keep the
password that the pod began with. */ -}}
{{- define "drainer.urlVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    {{- if .optional }}
    optional: true
    {{- end }}
    items: [{key: {{ .key | quote }}, path: url}]
{{- end -}}

{{- /* A folder, because a file mounted alone would never change. */ -}}
{{- define "drainer.caMount" -}}
{{- with .Values.database.ca -}}
{{- if or .configMap .secret -}}
- {name: database-ca, mountPath: /run/database-ca, readOnly: true}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "drainer.caVolume" -}}
{{- $optional := default false .optional -}}
{{- with .root.Values.database.ca -}}
{{- if and .configMap .secret -}}
{{- fail "database.ca.configMap and database.ca.secret are both given: keep one" -}}
{{- else if or .configMap .secret -}}
- name: database-ca
  {{- if .secret }}
  secret:
    secretName: {{ .secret }}
  {{- else }}
  configMap:
    name: {{ .configMap }}
  {{- end }}
    defaultMode: 0444
    {{- if $optional }}
    optional: true
    {{- end }}
    items: [{key: {{ .key | quote }}, path: ca.crt}]
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "drainer.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}
