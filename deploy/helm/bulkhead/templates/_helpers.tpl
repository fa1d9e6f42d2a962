{{/* The namespace of the agents. */}}
{{- define "bulkhead.namespace" -}}
{{ .Values.namespace | default .Release.Namespace }}
{{- end }}

{{/* The label by which the agents' pods are found, of whatever group they are. It never changes. */}}
{{- define "bulkhead.selector" -}}
app.kubernetes.io/name: bulkhead
{{- end }}

{{/* The labels of all objects. None of them selects anything, except the first. */}}
{{- define "bulkhead.labels" -}}
{{ include "bulkhead.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/*
Other names that the driver had, as a JSON array: by the values, and by the cluster, if that may be looked at. The policy has
the same name whatever the driver's is, and whoever has applied it.
*/}}
{{- define "bulkhead.former" -}}
{{- $names := list .Values.formerDriverName }}
{{- with lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicy" "" "bulkhead-agent-volumes" }}
{{- range .spec.variables }}
{{- if eq .name "driver" }}
{{- $names = append $names (trimAll "'" .expression) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson (without ($names | uniq) "" .Values.driverName) }}
{{- end }}

{{/* The annotations by which files/base/policy-driver.yaml keeps the driver's name. */}}
{{- define "bulkhead.driver" -}}
bulkhead/driver: {{ .Values.driverName }}
{{- with include "bulkhead.former" . | fromJsonArray }}
bulkhead/former-driver: {{ join "," . }}
{{- end }}
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
{{- $labels := include "bulkhead.labels" .root | fromYaml }}
{{- $text := .root.Files.Get .file | replace "bulkhead.csi.local" .root.Values.driverName }}
{{- range $document := splitList "\n---\n" $text }}
{{- $object := fromYaml $document }}
{{- if has $object.kind (list "ServiceAccount" "Role" "RoleBinding" "PodMonitor" "Service") }}
{{- $_ := set $object.metadata "namespace" $namespace }}
{{- end }}
{{- range $subject := $object.subjects }}
{{- $_ := set $subject "namespace" $namespace }}
{{- end }}
{{- range $rule := $object.rules }}
{{- if and $.audiences (has "request-serviceaccounts-token-audience" $rule.verbs) }}
{{- $_ := set $rule "resources" $.audiences }}
{{- end }}
{{- end }}
{{- if eq $object.kind "CSIDriver" }}
{{- $_ := set $object.spec "seLinuxMount" $.root.Values.selinux.mount }}
{{- end }}
{{- $_ := set $object.metadata "labels" (merge (dict) $labels ($object.metadata.labels | default dict)) }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
