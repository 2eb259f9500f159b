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
  {{- else }}
  inmemory: {}
  {{- end }}
  {{- end }}
{{- end -}}

{{- /* The environment of a container that uses S3. */ -}}
{{- define "zarf-registry.registry.s3Env" -}}
{{- $set := list -}}
{{- range .zr.pods.registry.env -}}
{{- $set = append $set .name -}}
{{- end -}}
{{- $files := list "AWS_CONFIG_FILE" "AWS_SHARED_CREDENTIALS_FILE" "SSL_CERT_DIR" "SSL_CERT_FILE" -}}
{{- /* The files of the driver's library are the pause image's. Without CA certificates it takes those in the program. */ -}}
{{- range .Values.injector.enabled | ternary $files list }}
{{- if not (has . $set) }}
- name: {{ . }}
  value: /dev/null
{{- end }}
{{- end }}
{{- with .Values.registry.storage.s3 }}
{{- $secret := .existingSecret }}
{{- range empty $secret | ternary list (list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY") }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret | quote }}
      key: {{ . }}
{{- end }}
{{- if .caSecret }}
- name: AWS_CA_BUNDLE
  value: /etc/zarf-registry/s3/ca.crt
{{- end }}
{{- end }}
{{- end -}}
