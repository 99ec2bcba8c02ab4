{{- /* Every pod samples the same outbox, so one of them is enough for each provider. */ -}}
{{- define "drainer.prometheusTrigger" -}}
{{- $from := .Values.autoscaling.prometheus -}}
{{- $query := printf "sum(max by (provider) (drainer_outbox_due_rows{namespace=%q,pod=~%q}))" .Release.Namespace (printf "%s-.+" (include "drainer.fullname" .)) -}}
- type: prometheus
  metadata:
    serverAddress: {{ required "autoscaling.prometheus.serverAddress is missing, such as http://prometheus.monitoring:9090" $from.serverAddress | quote }}
    query: {{ default $query $from.query | quote }}
    threshold: {{ int .Values.autoscaling.dueRows | quote }}
  {{- with $from.authentication }}
  authenticationRef:
    name: {{ . }}
  {{- end }}
{{- end -}}

{{- /* Counting more rows than the most pods are for would only cost. */ -}}
{{- define "drainer.postgresqlTrigger" -}}
{{- $enough := mul .Values.autoscaling.dueRows .Values.autoscaling.maxReplicas -}}
- type: postgresql
  metadata:
    query: {{ printf "SELECT count(*) FROM (SELECT FROM outbox.queue WHERE next_attempt_at <= now() LIMIT %d) AS due" $enough | quote }}
    targetQueryValue: {{ int .Values.autoscaling.dueRows | quote }}
  authenticationRef:
    name: {{ include "drainer.fullname" . }}
{{- end -}}
