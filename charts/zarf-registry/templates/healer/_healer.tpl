{{- /* The chart deploys healers, which give its own pods an image that their node has. */ -}}
{{- define "zarf-registry.healer" -}}
{{- if and (ne (toString .Values.healer.enabled) "false") .Values.injector.enabled (include "zarf-registry.injects" .) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.healer.name" -}}
{{- printf "%s-healer" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- define "zarf-registry.healer.clusterName" -}}
{{- printf "%s-%s" (include "zarf-registry.namespace" .) (include "zarf-registry.healer.name" .) -}}
{{- end -}}

{{- /* What must be ready before a node loses the startup taint. */ -}}
{{- define "zarf-registry.healer.until" -}}
{{- if include "zarf-registry.proxyMode" . -}}proxy
{{- else if include "zarf-registry.internal" . -}}registry
{{- else -}}node
{{- end -}}
{{- end -}}

{{- define "zarf-registry.healer.validate" -}}
{{- if and (eq (toString .Values.healer.enabled) "true") (not .Values.injector.enabled) -}}
{{- fail "zarf-registry: healer.enabled: no pod uses an image of its node with injector.enabled=false; remove it" -}}
{{- end -}}
{{- with .Values.startupTaint -}}
{{- $name := "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]" -}}
{{- $label := "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?" -}}
{{- if not (regexMatch (printf "^(%s(\\.%s)*/)?%s$" $label $label $name) .) -}}
{{- fail (printf "zarf-registry: startupTaint: %q is not a taint's key; set only the key, without value and effect, such as zarf.dev/registry-not-ready" .) -}}
{{- end -}}
{{- if regexMatch "(^|[.])(kubernetes|k8s)[.]io/" . -}}
{{- fail (printf "zarf-registry: startupTaint: %s is Kubernetes' own; set a key of yours, such as zarf.dev/registry-not-ready" .) -}}
{{- end -}}
{{- if not (include "zarf-registry.healer" $) -}}
{{- fail (printf "zarf-registry: startupTaint: no healer removes %s from the nodes: it needs injector.enabled=true, something to run on the nodes, and not healer.enabled=false; change those, or remove startupTaint and the taint" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What the healer mounts, besides the payload. */ -}}
{{- define "zarf-registry.healer.volumeMounts" -}}
- name: service-account
  mountPath: /etc/zarf-registry/service-account
  readOnly: true
- name: pause-images
  mountPath: /etc/zarf-registry/pause-images
  readOnly: true
{{- if include "zarf-registry.rewrite.byRepository" . }}
{{ include "zarf-registry.tls.volumeMount" . }}
{{- end }}
{{- end -}}
