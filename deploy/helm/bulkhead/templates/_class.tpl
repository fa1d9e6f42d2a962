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
