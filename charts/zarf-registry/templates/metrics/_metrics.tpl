{{- /* A PodMonitor. Alerts and the dashboard use the labels job, namespace and node, so these are the same for every kind
of discovery. Takes a list: root, component, name. */ -}}
{{- define "zarf-registry.metrics.podMonitor" -}}
{{- $component := index . 1 -}}
{{- $name := index . 2 -}}
{{- with first . -}}
{{- $monitor := .Values.metrics.podMonitor -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  {{- include "zarf-registry.metadata" (list . $component $name dict $monitor.labels) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "zarf-registry.selectorLabels" (list . $component) | nindent 6 }}
  podMetricsEndpoints:
    - port: metrics
      path: /metrics
      scheme: http
      relabelings:
        - targetLabel: job
          replacement: {{ $name | quote }}
        - sourceLabels:
            - __meta_kubernetes_pod_node_name
          targetLabel: node
{{- end -}}
{{- end -}}
