{{- /* Native sidecars: they outlive the daemon, which needs them until its last row is settled. */ -}}
{{- define "drainer.sidecars" -}}
{{- range .Values.sidecars -}}
{{- $container := deepCopy . -}}
{{- $_ := set $container "restartPolicy" "Always" -}}
{{- if not (hasKey $container "securityContext") -}}
{{- $_ := set $container "securityContext" $.Values.securityContext -}}
{{- end -}}
{{- $sockets := dict "name" "sockets" "mountPath" "/run/drainer" -}}
{{- $_ := set $container "volumeMounts" (prepend (default list .volumeMounts) $sockets) -}}
{{ list $container | toYaml }}
{{ end -}}
{{- end -}}
