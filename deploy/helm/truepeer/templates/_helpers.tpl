{{- define "truepeer.namespace" -}}
{{ .Values.namespace.name | default .Release.Namespace }}
{{- end }}

{{- define "truepeer.image" -}}
{{- $repository := required "image.repository: where your nodes pull the agent's image from, such as registry.example/truepeer-agent (see docs/kubernetes.md)" .Values.image.repository -}}
{{ if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}{{ else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "truepeer.labels" -}}
app.kubernetes.io/name: truepeer-agent
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "truepeer.selector" -}}
app.kubernetes.io/name: truepeer-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Before Kubernetes 1.30, the profile of AppArmor is an annotation. */}}
{{- define "truepeer.annotations" -}}
{{- with .Values.podAnnotations }}{{ toYaml . }}{{ end }}
{{- if semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version }}
{{- $profile := .Values.appArmorProfile }}
{{- $names := dict "Unconfined" "unconfined" "RuntimeDefault" "runtime/default" "Localhost" (printf "localhost/%s" $profile.localhostProfile) }}
container.apparmor.security.beta.kubernetes.io/agent: {{ get $names $profile.type }}
{{- end }}
{{- end }}
