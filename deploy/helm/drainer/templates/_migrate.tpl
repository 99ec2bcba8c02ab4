{{- define "drainer.migrateContainer" -}}
- name: migrate
  image: {{ include "drainer.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [migrate, up]
  env:
    - name: DATABASE_URL
      valueFrom:
        secretKeyRef:
          name: {{ default (include "drainer.databaseSecret" .) .Values.migrations.secret }}
          key: {{ default .Values.database.key .Values.migrations.key }}
  resources: {{- toYaml .Values.migrations.resources | nindent 4 }}
  securityContext: {{- toYaml .Values.securityContext | nindent 4 }}
{{- end -}}
