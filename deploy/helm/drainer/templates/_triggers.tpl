{{- /* Every pod samples the same outbox, so one of them is enough for each provider. */ -}}
{{- define "drainer.prometheusTrigger" -}}
{{- $from := .Values.autoscaling.prometheus -}}
{{- $pods := printf "namespace=%q,pod=~%q" .Release.Namespace (printf "%s-.+" (include "drainer.fullname" .)) -}}
{{- /* More pods send no row of a provider that is paused, broken or not configured. */ -}}
{{- $due := printf "max by (provider) (drainer_outbox_due_rows{%s,provider!=\"unconfigured\"})" $pods -}}
{{- $paused := printf "max by (provider) (drainer_provider_paused{%s}) == 1" $pods -}}
{{- $broken := printf "max by (provider) (drainer_circuit_breaker_state{%s,state=\"closed\"}) == 0" $pods -}}
{{- $query := printf "sum(%s unless on (provider) (%s or %s))" $due $paused $broken -}}
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
    query: {{ printf "SELECT least(count(*), %d) FROM outbox.provider p CROSS JOIN LATERAL (SELECT FROM outbox.queue q WHERE q.provider = p.name AND q.next_attempt_at <= now() LIMIT %d) AS due WHERE p.state = 'closed' AND NOT p.paused" $enough $enough | quote }}
    targetQueryValue: {{ int .Values.autoscaling.dueRows | quote }}
  authenticationRef:
    name: {{ include "drainer.fullname" . }}
{{- end -}}
