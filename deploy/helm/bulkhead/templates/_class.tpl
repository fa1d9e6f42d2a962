{{/* The storage classes of the values, as a JSON array: in the root's pool, only filesystems in images have limits. */}}
{{- define "bulkhead.classes" -}}
{{- $made := include "bulkhead.groups" . | fromJsonArray | include "bulkhead.made" }}
{{- $classes := list }}
{{- range $class := .Values.storageClasses }}
{{- $pool := dig "parameters" "pool" "default" $class }}
{{- if and $made (eq $pool "default") (not (dig "parameters" "backing" "" $class)) }}
{{- $class = merge (dict "parameters" (dict "backing" "image")) $class }}
{{- end }}
{{- $classes = append $classes $class }}
{{- end }}
{{- toJson $classes }}
{{- end }}

{{/* A storage class, from its values. */}}
{{- define "bulkhead.class" -}}
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: {{ .class.name }}
  labels:
    {{- include "bulkhead.labels" .root | nindent 4 }}
  {{- if .class.default }}
  annotations:
    storageclass.kubernetes.io/is-default-class: "true"
  {{- end }}
provisioner: {{ .root.Values.driverName }}
volumeBindingMode: {{ .class.volumeBindingMode | default "WaitForFirstConsumer" }}
allowVolumeExpansion: {{ ne .class.allowVolumeExpansion false }}
reclaimPolicy: {{ .class.reclaimPolicy | default "Delete" }}
{{- with .class.parameters }}
parameters:
  {{- range $name, $value := . }}
  {{- /* A number of a file of values is a fraction to helm, and a large one would get an exponent. */}}
  {{- $value = ternary (int64 $value) $value (kindIs "float64" $value) }}
  {{ $name }}: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- with .class.mountOptions }}
mountOptions: {{ toJson . }}
{{- end }}
{{- with .class.allowedTopologies }}
allowedTopologies: {{ toJson . }}
{{- end }}
{{- end }}

{{/*
Fails if no node can serve a class of these values. With host-service it cannot be judged: the nodes' own configuration
says which pools there are.
*/}}
{{- define "bulkhead.served" -}}
{{- $class := .class }}
{{- $wanted := dig "parameters" "pool" "" $class }}
{{- $image := eq (dig "parameters" "backing" "" $class) "image" }}
{{- $names := list }}
{{- $found := false }}
{{- $served := false }}
{{- range $group := .groups }}
{{- range $pool := $group.pools }}
{{- $names = append $names $pool.name }}
{{- if or (eq $pool.name $wanted) (and (not $wanted) (or (eq $pool.name "default") (eq (len $group.pools) 1))) }}
{{- $found = true }}
{{- if or (not $image) $pool.filesystems }}
{{- $served = true }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $wanted (not $found) }}
{{- $message := "storageClasses: no node has the pool %s of the class %s; give it one of: %s" }}
{{- fail (printf $message $wanted $class.name (join ", " (uniq $names))) }}
{{- else if not $found }}
{{- $message := "storageClasses: %s names no pool, and no node has a single one or a default; give it one of: %s" }}
{{- fail (printf $message $class.name (join ", " (uniq $names))) }}
{{- else if not $served }}
{{- $message := "storageClasses: %s has backing: image, which its pool does not; give the pool filesystems: true" }}
{{- fail (printf $message $class.name) }}
{{- end }}
{{- end }}

{{/* Fails if a class makes volumes that cannot be mounted with labels of their own. */}}
{{- define "bulkhead.labelled" -}}
{{- range . }}
{{- if ne (dig "parameters" "backing" "" .) "image" }}
{{- $message := list
  "selinux.mount: volumes of the class %s are directories of a pool, and cannot be mounted with the labels of their pods:"
  "give it backing: image in its parameters, or leave selinux.mount out" }}
{{- fail (printf (join " " $message) .name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails if two classes have one name, or are both the cluster's default. */}}
{{- define "bulkhead.distinct" -}}
{{- $names := list }}
{{- $default := "" }}
{{- range . }}
{{- if has .name $names }}
{{- fail (printf "storageClasses: two classes are called %s; give each a name of its own" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- if .default }}
{{- if $default }}
{{- fail (printf "storageClasses: %s and %s both have default: true; leave it to one of them" $default .name) }}
{{- end }}
{{- $default = .name }}
{{- end }}
{{- end }}
{{- end }}
