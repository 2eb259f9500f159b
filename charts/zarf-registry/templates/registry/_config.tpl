{{- /* The configuration in distribution's format. Everything else is an argument of the program. */ -}}
{{- define "zarf-registry.registry.config" -}}
version: 0.1
storage:
  {{- with .Values.registry.storage }}
  {{- if eq .type "filesystem" }}
  filesystem:
    rootdirectory: /var/lib/registry
  {{- else if eq .type "s3" }}
  s3:
    {{- /* Without keys, the driver takes them from the environment or the pod's identity. */}}
    {{- range $key, $value := pick .s3 "bucket" "region" "regionEndpoint" "rootDirectory" }}
    {{- if $value }}
    {{ lower $key }}: {{ $value | quote }}
    {{- end }}
    {{- end }}
    forcepathstyle: {{ .s3.forcePathStyle }}
    encrypt: {{ .s3.encrypt }}
    skipverify: {{ .s3.skipVerify }}
  {{- else }}
  inmemory: {}
  {{- end }}
  {{- end }}
{{- if .Values.registry.sparseIndexes }}
validation:
  manifests:
    indexes:
      platforms: none
{{- end }}
{{- end -}}
