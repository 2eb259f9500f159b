{{- /* Objects that components have in common. */ -}}

{{- /* A ServiceAccount, whose token only pods mount that need it. Takes a list: root, component, name; optional:
annotations. */ -}}
{{- define "zarf-registry.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "zarf-registry.metadata" . | nindent 2 }}
automountServiceAccountToken: false
{{- end -}}

{{- /* What a binding binds. Takes a list: root, kind and name of the role, name of the ServiceAccount. */ -}}
{{- define "zarf-registry.binding" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 1 }}
  name: {{ index . 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ index . 3 }}
    namespace: {{ (first .).zr.namespace | quote }}
{{- end -}}

{{- /* The NetworkPolicy of a component, up to its rules. Probes and port-forwards come from a pod's own node, which is
always allowed. Takes a list: root, component, name. */ -}}
{{- define "zarf-registry.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "zarf-registry.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "zarf-registry.selectorLabels" . | nindent 6 }}
  policyTypes:
    - Ingress
{{- end -}}
