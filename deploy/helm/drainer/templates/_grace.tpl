{{- /* A duration of drainer.yaml in seconds, such as 1m30s or 1.5s. */ -}}
{{- define "drainer.seconds" -}}
{{- if not (regexMatch `^([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$` .) -}}
{{- fail (printf "config.worker.shutdown_timeout: %q is no duration, such as 25s" .) -}}
{{- end -}}
{{- $units := dict "ns" 0.000000001 "us" 0.000001 "µs" 0.000001 "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll `[0-9.]+[a-zµ]+` . -1 -}}
{{- $number := regexFind `^[0-9.]+` . -}}
{{- $seconds = addf $seconds (mulf (float64 $number) (get $units (trimPrefix $number .))) -}}
{{- end -}}
{{- ceil $seconds | int -}}
{{- end -}}

{{- /* After shutdown_timeout a daemon needs moments to settle what was cut short. */ -}}
{{- define "drainer.gracePeriod" -}}
{{- $given := .Values.terminationGracePeriodSeconds -}}
{{- if .Values.existingConfigMap -}}
{{- required "terminationGracePeriodSeconds is missing: with existingConfigMap only you know worker.shutdown_timeout, which it has to exceed" $given | int -}}
{{- else -}}
{{- $worker := default dict (get (include "drainer.givenConfig" . | fromYaml) "worker") -}}
{{- $shutdown := include "drainer.seconds" (default "25s" $worker.shutdown_timeout | toString) | int -}}
{{- if kindIs "invalid" $given -}}
{{- add $shutdown 15 -}}
{{- else if lt (int $given) (add $shutdown 5 | int) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d: give at least 5 s more than config.worker.shutdown_timeout, which is %d s" (int $given) $shutdown) -}}
{{- else -}}
{{- int $given -}}
{{- end -}}
{{- end -}}
{{- end -}}
