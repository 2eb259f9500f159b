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

{{- /* What a container that uses the storage needs for S3: env, volumeMounts, volumes. `--reuse-values` from an older
release lacks caSecret. */ -}}
{{- define "zarf-registry.s3" -}}
{{- $env := list -}}
{{- $mounts := list -}}
{{- $volumes := list -}}
{{- with .Values.registry.storage -}}
{{- if eq .type "s3" -}}
{{- with .s3.existingSecret -}}
{{- $secret := . -}}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" -}}
{{- $env = append $env (dict "name" . "valueFrom" (dict "secretKeyRef" (dict "name" $secret "key" .))) -}}
{{- end -}}
{{- end -}}
{{- with .s3.caSecret -}}
{{- $env = append $env (dict "name" "AWS_CA_BUNDLE" "value" "/etc/zarf-registry/s3/ca.crt") -}}
{{- $mounts = append $mounts (dict "name" "s3-ca" "mountPath" "/etc/zarf-registry/s3" "readOnly" true) -}}
{{- $keys := list (dict "key" "ca.crt" "path" "ca.crt") -}}
{{- $volumes = append $volumes (dict "name" "s3-ca" "secret" (dict "secretName" . "defaultMode" 288 "items" $keys)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "env" $env "volumeMounts" $mounts "volumes" $volumes | toJson -}}
{{- end -}}
