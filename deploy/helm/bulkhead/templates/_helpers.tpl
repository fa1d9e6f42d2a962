{{/* The namespace of the agents. */}}
{{- define "bulkhead.namespace" -}}
{{ .Values.namespace | default .Release.Namespace }}
{{- end }}

{{/* The labels by which the DaemonSet finds its pods. They never change. */}}
{{- define "bulkhead.selector" -}}
app.kubernetes.io/name: bulkhead
{{- end }}

{{/* The reference of an image, from its values and the chart. */}}
{{- define "bulkhead.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- if not .image.tag }}{{ with .image.digest }}@{{ . }}{{ end }}{{ end }}
{{- end }}

{{/*
Objects from deploy/kubernetes, with this driver name and namespace. The files are the same ones that kustomize reads.
*/}}
{{- define "bulkhead.objects" -}}
{{- $namespace := include "bulkhead.namespace" .root }}
{{- $text := .root.Files.Get .file | replace "bulkhead.csi.local" .root.Values.driverName }}
{{- range $document := splitList "\n---\n" $text }}
{{- $object := fromYaml $document }}
{{- if has $object.kind (list "ServiceAccount" "Role" "RoleBinding") }}
{{- $_ := set $object.metadata "namespace" $namespace }}
{{- end }}
{{- range $subject := $object.subjects }}
{{- $_ := set $subject "namespace" $namespace }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}

{{/* The helper's flags, one per line. */}}
{{- define "bulkhead.privhelper.conf" -}}
{{- $directory := printf "%s/" (trimSuffix "/" .Values.poolsDirectory) -}}
{{- range .Values.pools -}}
{{- if not (hasPrefix $directory .directory) -}}
{{- fail (printf "pools: %s is not below poolsDirectory (%s), and only that is mounted into the helper's container" .directory $.Values.poolsDirectory) -}}
{{- end -}}
--pool {{ .name }}={{ .directory }}
{{- with .quota }},quota={{ . }}{{ end }}
{{- with .overcommit }},overcommit={{ . }}{{ end }}
{{- with .reserve }},reserve={{ . | int64 }}{{ end }}
{{ end -}}
{{- if ne .Values.driverName "bulkhead.csi.local" -}}
--driver-name {{ .Values.driverName }}
{{ end -}}
--kubelet-dir {{ .Values.kubeletDirectory }}
--socket /run/bulkhead/privhelper.sock
--allow-uid 10001
{{- range .Values.privhelper.flags }}
{{ . }}
{{- end }}
{{- end }}
