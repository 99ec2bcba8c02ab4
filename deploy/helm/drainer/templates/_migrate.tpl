{{- define "drainer.migrateContainer" -}}
- name: migrate
  image: {{ include "drainer.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [migrate, up]
  env:
    {{- $own := .Values.migrations.secret -}}
    {{- $key := .Values.migrations.key -}}
    {{- include "drainer.databaseEnv" (dict "secret" (default (include "drainer.databaseSecret" .) $own) "key" (default .Values.database.key $key)) | nindent 4 }}
  resources: {{- toYaml .Values.migrations.resources | nindent 4 }}
  securityContext: {{- toYaml .Values.securityContext | nindent 4 }}
{{- end -}}
