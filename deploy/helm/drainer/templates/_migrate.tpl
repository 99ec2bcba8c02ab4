{{- define "drainer.migrateContainer" -}}
- name: migrate
  image: {{ include "drainer.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [migrate, up]
  env:
    - {name: DATABASE_URL, value: "${file:/run/owner/url}"}
  resources: {{- toYaml .Values.migrations.resources | nindent 4 }}
  securityContext: {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: owner-url, mountPath: /run/owner, readOnly: true}
    {{- with include "drainer.caMount" . }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "drainer.migrateVolume" -}}
{{ include "drainer.urlVolume" (dict "name" "owner-url" "secret" (default (include "drainer.databaseSecret" .) .Values.migrations.secret) "key" (default .Values.database.key .Values.migrations.key)) }}
{{- end -}}
