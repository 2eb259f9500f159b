{{- /* OpenShift: no fixed users, and SecurityContextConstraints for pods that need more than the default. */ -}}

{{- /* Asks Capabilities instead of lookup: helm template and Argo CD set them with --api-versions. */ -}}
{{- define "zarf-registry.openshift" -}}
{{- $enabled := toString .Values.openshift.enabled -}}
{{- if or (eq $enabled "true") (and (ne $enabled "false") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.openshift.proxy" -}}
{{- if and (include "zarf-registry.openshift" .) (include "zarf-registry.internal" .) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.openshift.nodeConfig" -}}
{{- if and (include "zarf-registry.openshift" .) (include "zarf-registry.nodeConfig" .) -}}true{{- end -}}
{{- end -}}

{{- /* OpenShift has a ClusterRole for each constraint. Takes root, component, constraint. */ -}}
{{- define "zarf-registry.openshift.binding" -}}
{{- $account := printf "%s-%s" (include "zarf-registry.fullname" .root) .component -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" (printf "%s-scc" $account) "component" .component) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:openshift:scc:{{ .constraint }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ include "zarf-registry.namespace" .root | quote }}
{{- end -}}
