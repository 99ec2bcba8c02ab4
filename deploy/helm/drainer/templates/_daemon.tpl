{{- /* What the daemon's configuration refers to. Hooks that read the configuration take it as
optional: a Secret that is missing is then a mistake that they name, and no Job that never starts. */ -}}
{{- define "drainer.daemonEnv" -}}
{{- $optional := default false .optional -}}
- {name: DATABASE_URL, value: "${file:/run/database/url}"}
- {name: DRAINER_LISTEN, value: {{ printf ":%d" (int .root.Values.port) | quote }}}
{{- range $name, $from := .root.Values.secretEnv }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $from.secret }}, key: {{ $from.key }}{{ if $optional }}, optional: true{{ end }}}
{{- end }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "drainer.daemonMounts" -}}
# A folder, because a file mounted alone would never change.
- {name: config, mountPath: /etc/drainer, readOnly: true}
- {name: database-url, mountPath: /run/database, readOnly: true}
{{- with include "drainer.caMount" . }}
{{ . }}
{{- end }}
{{- if .Values.secretFiles }}
- {name: secrets, mountPath: /run/secrets, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "drainer.daemonVolumes" -}}
- name: config
  configMap: {name: {{ .config }}}
{{ include "drainer.urlVolume" (dict "name" "database-url" "secret" (include "drainer.databaseSecret" .root) "key" .root.Values.database.key "optional" .optional) }}
{{- with include "drainer.caVolume" . }}
{{ . }}
{{- end }}
{{- if .root.Values.secretFiles }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .root.Values.secretFiles }}
      - secret:
          name: {{ .secret }}
          {{- if $.optional }}
          optional: true
          {{- end }}
          items:
            {{- range $key, $path := .items }}
            - {key: {{ $key | quote }}, path: {{ $path | quote }}}
            {{- end }}
      {{- end }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
