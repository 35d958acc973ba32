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
