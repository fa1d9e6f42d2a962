{{/* The arguments of the container that makes a group's disks pools, as a JSON array. */}}
{{- define "bulkhead.prepare" -}}
{{- $prepare := .root.Values.prepare }}
{{- $arguments := list "prepare" "--host" "/host" "--directory" .group.poolsDirectory "--name" $prepare.name }}
{{- with $prepare.size }}
{{- $arguments = concat $arguments (list "--size" .) }}
{{- end }}
{{- range $flag, $values := dict "--path" $prepare.paths "--model" $prepare.models "--type" $prepare.types }}
{{- range $values }}
{{- $arguments = concat $arguments (list $flag .) }}
{{- end }}
{{- end }}
{{- if $prepare.write }}
{{- $arguments = append $arguments "--yes" }}
{{- end }}
{{- toJson $arguments }}
{{- end }}

{{/* Fails if disks are to be prepared where the chart cannot do it, or without a rule or a pool. */}}
{{- define "bulkhead.preparable" -}}
{{- if .Values.prepare.enabled }}
{{- if ne .Values.form "container" }}
{{- fail "prepare: with form: host-service, run bulkhead-setup prepare on the nodes (docs/disks.md)" }}
{{- end }}
{{- if not .Values.prepare.paths }}
{{- fail "prepare: say in prepare.paths which disks are meant, such as /dev/disk/by-id/nvme-*" }}
{{- end }}
{{- $named := false }}
{{- range include "bulkhead.groups" . | fromJsonArray }}
{{- $named = or $named (not .made) }}
{{- end }}
{{- if not $named }}
{{- $message := "prepare: name the pools of the disks in pools, such as {name: disk-1, directory: %s/disk-1, optional: true}" }}
{{- fail (printf $message .Values.poolsDirectory) }}
{{- end }}
{{- end }}
{{- end }}
