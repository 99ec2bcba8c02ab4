{{- /* Native sidecars: they outlive the daemon, which needs them until its last row is settled.
Each has a volume of its own for its socket: one that could write where another's socket is could
take its place, and its token. */ -}}
{{- define "drainer.sidecars" -}}
{{- range .Values.sidecars -}}
{{- $container := deepCopy . -}}
{{- $_ := set $container "restartPolicy" "Always" -}}
{{- if not (hasKey $container "securityContext") -}}
{{- $_ := set $container "securityContext" $.Values.securityContext -}}
{{- end -}}
{{- $sockets := dict "name" (printf "sockets-%s" .name) "mountPath" (printf "/run/drainer/%s" .name) -}}
{{- $_ := set $container "volumeMounts" (prepend (default list .volumeMounts) $sockets) -}}
{{ list $container | toYaml }}
{{ end -}}
{{- end -}}
