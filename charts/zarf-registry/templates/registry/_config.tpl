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

{{- /* What a container that uses the storage needs for S3: env, volumeMounts, volumes, and injected (variables that a
webhook sets). */ -}}
{{- define "zarf-registry.s3" -}}
{{- $env := list -}}
{{- $mounts := list -}}
{{- $volumes := list -}}
{{- $injected := list -}}
{{- $set := list -}}
{{- range (include "zarf-registry.pod.values" (dict "root" . "values" .Values.registry) | fromJson).extraEnv -}}
{{- $set = append $set .name -}}
{{- end -}}
{{- $injector := .Values.injector.enabled -}}
{{- with .Values.registry.storage -}}
{{- if eq .type "s3" -}}
{{- if $injector -}}
{{- /* The files of the driver's library are the pause image's. Without CA certificates it takes those in the program. */ -}}
{{- range list "AWS_CONFIG_FILE" "AWS_SHARED_CREDENTIALS_FILE" "SSL_CERT_DIR" "SSL_CERT_FILE" -}}
{{- if not (has . $set) -}}
{{- $env = append $env (dict "name" . "value" "/dev/null") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .s3.existingSecret -}}
{{- $secret := . -}}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" -}}
{{- $env = append $env (dict "name" . "valueFrom" (dict "secretKeyRef" (dict "name" $secret "key" .))) -}}
{{- end -}}
{{- else -}}
{{- /* Those of EKS' two webhooks. */ -}}
{{- $injected = list "AWS_ROLE_ARN" "AWS_WEB_IDENTITY_TOKEN_FILE" "AWS_REGION" "AWS_DEFAULT_REGION" "AWS_STS_REGIONAL_ENDPOINTS" "AWS_CONTAINER_CREDENTIALS_FULL_URI" "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE" -}}
{{- end -}}
{{- with .s3.caSecret -}}
{{- $env = append $env (dict "name" "AWS_CA_BUNDLE" "value" "/etc/zarf-registry/s3/ca.crt") -}}
{{- $mounts = append $mounts (dict "name" "s3-ca" "mountPath" "/etc/zarf-registry/s3" "readOnly" true) -}}
{{- $keys := list (dict "key" "ca.crt" "path" "ca.crt") -}}
{{- $volumes = append $volumes (dict "name" "s3-ca" "secret" (dict "secretName" . "defaultMode" 288 "items" $keys)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "env" $env "injected" $injected "volumeMounts" $mounts "volumes" $volumes | toJson -}}
{{- end -}}

{{- /* What the registry mounts, besides the payload. */ -}}
{{- define "zarf-registry.registry.volumeMounts" -}}
{{- include "zarf-registry.tls.volumeMount" . }}
- name: config
  mountPath: /etc/zarf-registry/config
  readOnly: true
- name: credentials
  mountPath: /etc/zarf-registry/credentials
  readOnly: true
{{- with (include "zarf-registry.s3" . | fromJson).volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- with include "zarf-registry.expose.volumeMounts" . }}
{{ trim . }}
{{- end }}
{{- with include "zarf-registry.signatures.volumeMounts" . }}
{{ . }}
{{- end }}
{{- if eq .Values.registry.storage.type "filesystem" }}
- name: storage
  mountPath: /var/lib/registry
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- /* What copy-storage mounts, besides the payload. */ -}}
{{- define "zarf-registry.registry.copyVolumeMounts" -}}
- name: config
  mountPath: /etc/zarf-registry/config
  readOnly: true
{{- with (include "zarf-registry.s3" . | fromJson).volumeMounts }}
{{ toYaml . }}
{{- end }}
- name: storage
  mountPath: /var/lib/registry
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end -}}
