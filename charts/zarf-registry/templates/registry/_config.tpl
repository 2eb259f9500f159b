{{- /* The storage in distribution's form. The rest are arguments of the program, or it knows better itself. */ -}}
{{- define "zarf-registry.registry.config" -}}
version: 0.1
storage:
  {{- with .Values.registry.storage }}
  {{- if eq .type "filesystem" }}
  filesystem:
    rootdirectory: /var/lib/registry
  {{- else if eq .type "s3" }}
  s3:
    {{- /* Without keys here the driver takes them from the environment or from the pod's identity. */}}
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
{{- end -}}
