{{/*
The pools of the cluster's nodes in whose place the pool of the root would be, as a JSON array of NAME=DIRECTORY; "?" if the
nodes' own configuration says what they are. Empty if the cluster may not be looked at.
*/}}
{{- define "bulkhead.replaced" -}}
{{- $groups := include "bulkhead.groups" . | fromJsonArray }}
{{- $replaced := list }}
{{- if include "bulkhead.made" $groups }}
{{- $namespace := include "bulkhead.namespace" . }}
{{- $configured := dict }}
{{- range (lookup "v1" "ConfigMap" $namespace "").items }}
{{- if hasPrefix "bulkhead-privhelper" .metadata.name }}
{{- $pools := list }}
{{- range splitList "\n" (dig "data" "privhelper.conf" "" .) }}
{{- if hasPrefix "--pool " . }}
{{- $pools = append $pools (trimPrefix "--pool " . | splitList "," | first) }}
{{- end }}
{{- end }}
{{- $_ := set $configured .metadata.name $pools }}
{{- end }}
{{- end }}
{{- if not $configured }}
{{- range (lookup "apps/v1" "DaemonSet" $namespace "").items }}
{{- if eq "bulkhead" (dig "metadata" "labels" "app.kubernetes.io/name" "" .) }}
{{- $replaced = list "?" }}
{{- end }}
{{- end }}
{{- end }}
{{- $new := false }}
{{- range $groups }}
{{- $name := printf "bulkhead-privhelper%s" .suffix }}
{{- if .made }}
{{- $replaced = concat $replaced (get $configured $name | default list) }}
{{- $new = or $new (not (hasKey $configured $name)) }}
{{- end }}
{{- $_ := unset $configured $name }}
{{- end }}
{{- /* The nodes of a new group may be those of one that there was, or of kustomize. */}}
{{- if $new }}
{{- range $configured }}
{{- $replaced = concat $replaced . }}
{{- end }}
{{- end }}
{{- end }}
{{- without (uniq $replaced) (printf "default=%s/default" .Values.rootPool.directory) | toJson }}
{{- end }}
