{{- /* Signatures of images: what is rendered, and what cannot work. */ -}}

{{- /* off, audit or enforce. YAML reads off as false. */ -}}
{{- define "zarf-registry.signatures.mode" -}}
{{- default "off" .Values.registry.signatures.mode -}}
{{- end -}}

{{- /* Condition: the registry verifies signatures. */ -}}
{{- define "zarf-registry.signatures" -}}
{{- if and (include "zarf-registry.internal" .) (ne (include "zarf-registry.signatures.mode" .) "off") -}}true{{- end -}}
{{- end -}}

{{- /* The user's Secret with public keys. */ -}}
{{- define "zarf-registry.signatures.secret" -}}
{{- .Values.registry.signatures.existingSecret -}}
{{- end -}}

{{- /* Arguments of the registry. */ -}}
{{- define "zarf-registry.signatures.args" -}}
{{- if include "zarf-registry.signatures" . -}}
- --signatures={{ include "zarf-registry.signatures.mode" . }}
- --signature-keys=/etc/zarf-registry/signature-keys
- --own-images=/etc/zarf-registry/credentials/own-images
{{- end -}}
{{- end -}}

{{- define "zarf-registry.signatures.volumeMounts" -}}
{{- if include "zarf-registry.signatures" . -}}
- name: signature-keys
  mountPath: /etc/zarf-registry/signature-keys
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "zarf-registry.signatures.volumes" -}}
{{- if include "zarf-registry.signatures" . -}}
- name: signature-keys
  secret:
    secretName: {{ include "zarf-registry.signatures.secret" . | quote }}
    defaultMode: 0440
    {{- /* The registry starts without it: it denies images, but serves the project's own, which a repair needs. */}}
    optional: true
{{- end -}}
{{- end -}}

{{- define "zarf-registry.signatures.validate" -}}
{{- $mode := include "zarf-registry.signatures.mode" . -}}
{{- if ne $mode "off" -}}
{{- $secret := include "zarf-registry.signatures.secret" . -}}
{{- if not (include "zarf-registry.internal" .) -}}
{{- fail "zarf-registry: registry.signatures.mode: the chart deploys no registry that could verify images; remove it" -}}
{{- end -}}
{{- if not $secret -}}
{{- fail (printf "zarf-registry: registry.signatures.existingSecret: registry.signatures.mode=%s needs public keys; name a Secret with them" $mode) -}}
{{- end -}}
{{- range concat (include "zarf-registry.madeSecrets" . | fromJsonArray) (include "zarf-registry.issuedSecrets" . | fromJsonArray) -}}
{{- if eq $secret (printf "%s-%s" (include "zarf-registry.fullname" $) .) -}}
{{- fail (printf "zarf-registry: registry.signatures.existingSecret: Secret %s is created by the Jobs; name one of your own" $secret) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
