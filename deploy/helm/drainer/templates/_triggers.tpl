{{- /* Every pod samples the same outbox, so one of them is enough for each provider. */ -}}
{{- define "drainer.prometheusTrigger" -}}
{{- $from := .Values.autoscaling.prometheus -}}
{{- /* A Deployment's pods are NAME-HASH-RANDOM, without the second hyphen where the name is long. Another release's
name may begin with this one's. */ -}}
{{- $pods := printf "namespace=%q,pod=~%q" .Release.Namespace (printf "%s-[a-z0-9]+-?[a-z0-9]{5}" (include "drainer.fullname" . | regexQuoteMeta)) -}}
{{- /* More pods send no row of a provider that is paused, broken or not configured. */ -}}
{{- $due := printf "max by (provider) (drainer_outbox_due_rows{%s,provider!=\"unconfigured\"})" $pods -}}
{{- $paused := printf "max by (provider) (drainer_provider_paused{%s}) == 1" $pods -}}
{{- $broken := printf "max by (provider) (drainer_circuit_breaker_state{%s,state=\"closed\"}) == 0" $pods -}}
{{- /* 0 where each provider is held. Only without any metric there is no answer. */ -}}
{{- $query := printf "sum(%s unless on (provider) (%s or %s)) or 0 * max(drainer_outbox_due_rows{%s})" $due $paused $broken $pods -}}
- type: prometheus
  metadata:
    serverAddress: {{ required "autoscaling.prometheus.serverAddress is missing, such as http://prometheus.monitoring:9090" $from.serverAddress | quote }}
    query: {{ default $query $from.query | quote }}
    threshold: {{ int .Values.autoscaling.dueRows | quote }}
    # KEDA takes an empty answer for 0 otherwise, and would scale down while no pod is scraped.
    ignoreNullValues: "false"
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
    query: {{ printf "SELECT least(count(*), %d) FROM outbox.provider p CROSS JOIN LATERAL (SELECT FROM outbox.queue q WHERE q.provider = p.name AND q.next_attempt_at <= now() LIMIT %d) AS due WHERE p.state = 'closed' AND NOT p.paused AND EXISTS (SELECT FROM outbox.worker w WHERE p.name = ANY (w.providers))" $enough $enough | quote }}
    targetQueryValue: {{ int .Values.autoscaling.dueRows | quote }}
  authenticationRef:
    name: {{ include "drainer.fullname" . }}
{{- end -}}
