{{- /* Signatures of images: what is rendered, and what cannot work. */ -}}

{{- /* off, audit or enforce. YAML reads off as false. */ -}}
{{- define "zarf-registry.verify.mode" -}}
{{- default "off" .Values.registry.signatures.mode -}}
{{- end -}}

{{- /* Condition: the registry verifies signatures. */ -}}
{{- define "zarf-registry.verify" -}}
{{- if and (include "zarf-registry.internal" .) (ne (include "zarf-registry.verify.mode" .) "off") -}}true{{- end -}}
{{- end -}}

{{- /* The user's Secret with public keys. */ -}}
{{- define "zarf-registry.verify.secret" -}}
{{- .Values.registry.signatures.existingSecret -}}
{{- end -}}

{{- /* Arguments of the registry. */ -}}
{{- define "zarf-registry.verify.args" -}}
{{- if include "zarf-registry.verify" . -}}
- --verify={{ include "zarf-registry.verify.mode" . }}
- --verify-keys=/etc/zarf-registry/verify-keys
- --own-images=/etc/zarf-registry/credentials/own-images
{{- end -}}
{{- end -}}

{{- define "zarf-registry.verify.volumeMounts" -}}
{{- if include "zarf-registry.verify" . -}}
- name: verify-keys
  mountPath: /etc/zarf-registry/verify-keys
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "zarf-registry.verify.volumes" -}}
{{- if include "zarf-registry.verify" . -}}
- name: verify-keys
  secret:
    secretName: {{ include "zarf-registry.verify.secret" . | quote }}
    defaultMode: 0440
    {{- /* The registry starts without it: it denies images, but serves the project's own, which a repair needs. */}}
    optional: true
{{- end -}}
{{- end -}}

{{- define "zarf-registry.verify.validate" -}}
{{- $mode := include "zarf-registry.verify.mode" . -}}
{{- if ne $mode "off" -}}
{{- $secret := include "zarf-registry.verify.secret" . -}}
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
