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
{{- /* The daemon's URL is no default: a daemon with the owner's login could change every record. */ -}}
{{- $owner := required "migrations.secret is missing: the name of an existing Secret with the URL of the schema's owner, a login that the daemon must not have; or set migrations.mode to none, and migrate by hand" .Values.migrations.secret -}}
{{ include "drainer.urlVolume" (dict "name" "owner-url" "secret" $owner "key" (default .Values.database.key .Values.migrations.key)) }}
{{- end -}}
