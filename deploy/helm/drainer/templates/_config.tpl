{{- /* drainer.yaml: the values as they are, and what this chart decides. */ -}}
{{- define "drainer.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if hasKey $config "database" -}}
{{- fail "config.database is not for values, which everybody may read: put the URL into a Secret and name it in database.secret" -}}
{{- end -}}
{{- if hasKey $config "server" -}}
{{- fail "config.server is set by this chart: say where to listen in port" -}}
{{- end -}}
{{- if not $config.providers -}}
{{- fail "config.providers is empty, so there is nothing to drain: describe a provider, or name an existingConfigMap" -}}
{{- end -}}
{{- $_ := set $config "server" (dict "listen" (printf ":%d" (int .Values.port))) -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "drainer.configMap" -}}
{{ default (include "drainer.fullname" .) .Values.existingConfigMap }}
{{- end -}}

{{- /* What of the config only a new process takes over, or all of it where that is asked for. */ -}}
{{- define "drainer.configChecksum" -}}
{{- if .Values.restartOnConfigChange -}}
{{ list (include "drainer.config" .) .Values.configFiles | toJson | sha256sum }}
{{- else -}}
{{ default dict .Values.config.worker | toJson | sha256sum }}
{{- end -}}
{{- end -}}
