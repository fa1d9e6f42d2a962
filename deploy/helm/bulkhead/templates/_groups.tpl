{{/*
The groups of nodes, as a JSON array. Without nodeGroups there is one, which has no name; whatever a group does not say
is as the values say for all of them. One that has no pools gets that of the root, and is "made".
*/}}
{{- define "bulkhead.groups" -}}
{{- $common := pick .Values "pools" "poolsDirectory" "nodeSelector" "tolerations" "affinity" }}
{{- $groups := list }}
{{- range $group := .Values.nodeGroups | default (list dict) }}
{{- $selector := include "bulkhead.selector" $ | fromYaml }}
{{- $suffix := "" }}
{{- with $group.name }}
{{- $suffix = printf "-%s" . }}
{{- $_ := set $selector "app.kubernetes.io/component" . }}
{{- end }}
{{- $full := merge (dict "suffix" $suffix "selector" $selector) (deepCopy $group) }}
{{- range $field, $value := $common }}
{{- if not (hasKey $group $field) }}
{{- $_ := set $full $field $value }}
{{- end }}
{{- end }}
{{- $_ := set $full "made" (and (eq $.Values.form "container") (not $full.pools)) }}
{{- if $full.made }}
{{- include "bulkhead.root" (dict "root" $ "group" $full) }}
{{- end }}
{{- range $other := $groups }}
{{- include "bulkhead.apart" (list $full $other) }}
{{- end }}
{{- if eq $.Values.form "container" }}
{{- include "bulkhead.directories" (dict "root" $ "group" $full) }}
{{- include "bulkhead.disjoint" $full.pools }}
{{- end }}
{{- $groups = append $groups $full }}
{{- end }}
{{- toJson $groups }}
{{- end }}

{{/* Gives a group the pool that the chart makes on its nodes' root filesystems. */}}
{{- define "bulkhead.root" -}}
{{- $directory := .root.Values.rootPool.directory }}
{{- if ne .group.poolsDirectory "/srv/bulkhead" }}
{{- $message := list
  "poolsDirectory: no pools are named that %s could hold; name them in pools,"
  "or give the directory for the pool on the root in rootPool.directory" }}
{{- fail (printf (join " " $message) .group.poolsDirectory) }}
{{- end }}
{{- $pool := dict "name" "default" "directory" (printf "%s/default" $directory) "quota" "none" "filesystems" true }}
{{- $_ := set $pool "reserve" .root.Values.rootPool.reserve }}
{{- $_ := set .group "pools" (list $pool) }}
{{- $_ := set .group "poolsDirectory" $directory }}
{{- end }}

{{/* Not empty if the chart makes the pool of one of these groups. */}}
{{- define "bulkhead.made" -}}
{{- range . -}}
{{- if .made }}x{{ end -}}
{{- end -}}
{{- end }}

{{/*
Fails unless two groups have no node in common: two agents there would fight for the pools and the kubelet's sockets.
What different affinities select cannot be judged here.
*/}}
{{- define "bulkhead.apart" -}}
{{- $one := index . 0 }}
{{- $other := index . 1 }}
{{- if eq $one.name $other.name }}
{{- fail (printf "nodeGroups: two groups are called %s" $one.name) }}
{{- end }}
{{- $apart := ne (toJson $one.affinity) (toJson $other.affinity) }}
{{- range $label, $value := $one.nodeSelector }}
{{- $theirs := get ($other.nodeSelector | default dict) $label }}
{{- if and $theirs (ne $theirs $value) }}
{{- $apart = true }}
{{- end }}
{{- end }}
{{- if not $apart }}
{{- $message := list
  "nodeGroups: a node may be in both %s and %s, and can have only one agent:"
  "give their nodeSelector a label with another value in each" }}
{{- fail (printf (join " " $message) $other.name $one.name) }}
{{- end }}
{{- end }}

{{/*
Fails unless a group's pools are where the helper's container looks for them, and that is apart from the kubelet's
directory, which must not be visible there.
*/}}
{{- define "bulkhead.directories" -}}
{{- $pools := printf "%s/" .group.poolsDirectory }}
{{- $kubelet := printf "%s/" .root.Values.kubeletDirectory }}
{{- if or (hasPrefix $pools $kubelet) (hasPrefix $kubelet $pools) }}
{{- $message := list
  "poolsDirectory: %s and the kubelet's directory %s must be apart:"
  "the helper's container sees everything in the former" }}
{{- fail (printf (join " " $message) .group.poolsDirectory .root.Values.kubeletDirectory) }}
{{- end }}
{{- range .group.pools }}
{{- if not (hasPrefix $pools .directory) }}
{{- $message := "pools: %s is not below poolsDirectory (%s), and only that is mounted into the helper's container" }}
{{- fail (printf $message .directory $.group.poolsDirectory) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails unless each pool has a name and a directory of its own: the helper would serve none of two that share them. */}}
{{- define "bulkhead.disjoint" -}}
{{- range $at, $pool := . }}
{{- range $other := slice $ 0 $at }}
{{- if eq $pool.name $other.name }}
{{- fail (printf "pools: two pools are called %s; give each a name of its own" $pool.name) }}
{{- end }}
{{- $one := printf "%s/" $pool.directory }}
{{- $two := printf "%s/" $other.directory }}
{{- if or (hasPrefix $one $two) (hasPrefix $two $one) }}
{{- $message := "pools: %s (%s) and %s (%s) overlap; give each a directory that is not in the other's" }}
{{- fail (printf $message $other.name $other.directory $pool.name $pool.directory) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty if a pool of one of these groups may have filesystems in images. */}}
{{- define "bulkhead.filesystems" -}}
{{- range . -}}
{{- range .pools -}}
{{- if .filesystems }}x{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A path of the manifests as it is on the nodes of a group. */}}
{{- define "bulkhead.path" -}}
{{- if eq .path "/srv/bulkhead" -}}
{{ .group.poolsDirectory }}
{{- else if eq .path "/var/lib/bulkhead/default" -}}
{{ .root.Values.rootPool.directory }}/default
{{- else if hasPrefix "/var/lib/kubelet/" (printf "%s/" .path) -}}
{{ .root.Values.kubeletDirectory }}{{ trimPrefix "/var/lib/kubelet" .path }}
{{- else -}}
{{ .path }}
{{- end -}}
{{- end }}

{{/* The helper's flags on the nodes of a group, one per line. */}}
{{- define "bulkhead.privhelper.conf" -}}
{{- range .group.pools -}}
--pool {{ .name }}={{ .directory }}
{{- with .quota }},quota={{ . }}{{ end }}
{{- with .overcommit }},overcommit={{ . }}{{ end }}
{{- with .reserve }},reserve={{ if kindIs "string" . }}{{ . }}{{ else }}{{ . | int64 }}{{ end }}{{ end }}
{{- with .filesystems }},filesystems{{ if not (kindIs "bool" .) }}={{ . | int64 }}{{ end }}{{ end }}
{{- with .extents }},extents={{ . | int64 }}{{ end }}
{{ end -}}
{{- if include "bulkhead.filesystems" (list .group) -}}
--mounter-uid {{ .root.Values.privhelper.mounterUid | int64 }}
{{ end -}}
{{- if ne .root.Values.driverName "bulkhead.csi.local" -}}
--driver-name {{ .root.Values.driverName }}
{{ end -}}
{{- range .root.Files.Lines "files/overlays/container/privhelper.conf" -}}
{{- if and (hasPrefix "--" .) (not (hasPrefix "--pool " .)) -}}
{{- $words := splitList " " . -}}
{{ first $words }} {{ include "bulkhead.path" (merge (dict "path" (last $words)) $) }}
{{ end -}}
{{- end -}}
{{- range .root.Values.privhelper.flags -}}
{{ . }}
{{ end -}}
{{- end }}
