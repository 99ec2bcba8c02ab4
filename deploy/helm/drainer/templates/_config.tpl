{{- /* drainer.yaml as it was given, to be looked into. */ -}}
{{- define "drainer.givenConfig" -}}
{{- if .Values.configText -}}
{{- if .Values.config.providers -}}
{{- fail "config and configText are both given: keep one" -}}
{{- end -}}
{{ .Values.configText }}
{{- else -}}
{{ toYaml .Values.config }}
{{- end -}}
{{- end -}}

{{- /* drainer.yaml as the daemon finds it. */ -}}
{{- define "drainer.config" -}}
{{- $given := include "drainer.givenConfig" . | fromYaml -}}
{{- with $given.Error -}}
{{- fail (printf "configText is no YAML: %s" .) -}}
{{- end -}}
{{- if not $given.providers -}}
{{- fail "config.providers is empty, so there is nothing to drain: describe a provider, or give configText or existingConfigMap" -}}
{{- end -}}
{{- $database := default dict $given.database -}}
{{- if not (regexMatch `^(\$\{(env|file):[^}]+\})?$` (default "" $database.url)) -}}
{{- fail "config.database.url is not for values, which everybody may read: put the URL into a Secret and name it in database.secret" -}}
{{- end -}}
{{- $server := default dict $given.server -}}
{{- $listen := printf ":%d" (int .Values.port) -}}
{{- if ne (default (ternary ":9464" $listen (ne .Values.configText "")) $server.listen) $listen -}}
{{- fail (printf "config.server.listen has to be %q: probes and scrapes ask port" $listen) -}}
{{- end -}}
{{- if .Values.configText -}}
{{ .Values.configText }}
{{- else -}}
{{- $_ := set $given "server" (merge (dict "listen" $listen) $server) -}}
{{ toYaml $given }}
{{- end -}}
{{- end -}}

{{- define "drainer.configData" -}}
drainer.yaml: |
  {{- include "drainer.config" . | nindent 2 }}
{{- range $name, $content := .Values.configFiles }}
{{ $name }}: {{ $content | quote }}
{{- end }}
{{- end -}}

{{- define "drainer.configMap" -}}
{{ default (include "drainer.fullname" .) .Values.existingConfigMap }}
{{- end -}}

{{- /* The blocks that need a restart, as docs/reload.md lists them, or all of the config where that is asked for. */ -}}
{{- define "drainer.configChecksum" -}}
{{- if .Values.restartOnConfigChange -}}
{{ list (include "drainer.config" .) .Values.configFiles | toJson | sha256sum }}
{{- else -}}
{{ pick (include "drainer.givenConfig" . | fromYaml) "database" "worker" "server" "console" "log" "unconfigured" "misconfigured" "history" "failover" | toJson | sha256sum }}
{{- end -}}
{{- end -}}
