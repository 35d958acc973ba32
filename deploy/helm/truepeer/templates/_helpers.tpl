{{- define "truepeer.namespace" -}}
{{ if .Values.namespace.create }}{{ .Values.namespace.name }}{{ else }}{{ .Values.namespace.name | default .Release.Namespace }}{{ end }}
{{- end }}

{{- define "truepeer.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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
