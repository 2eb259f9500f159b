{{- define "zarf-registry.metrics.podMonitor" -}}
{{- if and (include "zarf-registry.internal" .) .Values.metrics.podMonitor.enabled -}}true{{- end -}}
{{- end -}}

{{- /* With hostNetwork, proxies serve metrics on the node's loopback interface, which Prometheus cannot reach. */ -}}
{{- define "zarf-registry.metrics.proxies" -}}
{{- if and (include "zarf-registry.proxyMode" .) (include "zarf-registry.hostPort" .) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.metrics.prometheusRule" -}}
{{- if and (include "zarf-registry.internal" .) .Values.metrics.prometheusRule.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.metrics.dashboard" -}}
{{- if and (include "zarf-registry.internal" .) .Values.metrics.dashboard.enabled -}}true{{- end -}}
{{- end -}}

{{- /* How a target is scraped. Alerts and the dashboard use the labels job, namespace and node, so these are the same
for every kind of discovery. Takes job, monitor (its values). */ -}}
{{- define "zarf-registry.metrics.endpoint" -}}
port: metrics
path: /metrics
scheme: http
{{- with .monitor.interval }}
interval: {{ . | quote }}
{{- end }}
{{- with .monitor.scrapeTimeout }}
scrapeTimeout: {{ . | quote }}
{{- end }}
relabelings:
  - targetLabel: job
    replacement: {{ .job | quote }}
  - sourceLabels:
      - __meta_kubernetes_pod_node_name
    targetLabel: node
  {{- with .monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The body of a PodMonitor. Takes root, component, suffix. */ -}}
{{- define "zarf-registry.metrics.podMonitor.body" -}}
{{- $monitor := .root.Values.metrics.podMonitor -}}
{{- $name := printf "%s%s" (include "zarf-registry.fullname" .root) .suffix -}}
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" $name "component" .component "labels" $monitor.labels) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "zarf-registry.selectorLabels" (dict "root" .root "component" .component) | nindent 6 }}
  podMetricsEndpoints:
    -
      {{- include "zarf-registry.metrics.endpoint" (dict "job" $name "monitor" $monitor) | nindent 6 }}
{{- end -}}

{{- /* The groups of files/alerts.yaml for this release, as JSON. The file is not a template: Prometheus has its own
template syntax. Upper-case words after a dollar sign are replaced. */ -}}
{{- define "zarf-registry.metrics.alerts" -}}
{{- $rule := .Values.metrics.prometheusRule -}}
{{- $file := .Files.Get "files/alerts.yaml"
  | replace "$NAMESPACE" (include "zarf-registry.namespace" .)
  | replace "$NAME" (include "zarf-registry.fullname" .)
  | fromYaml -}}
{{- $groups := list -}}
{{- range $file.groups -}}
{{- $rules := list -}}
{{- range .rules -}}
{{- $unreserved := and (eq .alert "ZarfRegistryPortNotReserved") (include "zarf-registry.portOwned" $ | empty) -}}
{{- $unhealed := and (hasPrefix "ZarfRegistryHealer" .alert) (include "zarf-registry.healer" $ | empty) -}}
{{- $uncached := and (hasPrefix "ZarfRegistryCache" .alert) (include "zarf-registry.cache" $ | empty) -}}
{{- if not (or $unreserved $unhealed $uncached (has .alert $rule.disabled)) -}}
{{- $_ := set . "labels" (merge dict .labels (default dict $rule.alertLabels)) -}}
{{- $_ := set .annotations "runbook_url" (printf "https://github.com/zarf-dev/zarf-registry/blob/main/docs/reference/monitoring.md#%s" (lower .alert)) -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $groups = append $groups (dict "name" .name "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- $groups | toJson -}}
{{- end -}}

{{- define "zarf-registry.metrics.validate" -}}
{{- $settings := .Values.metrics -}}
{{- if include "zarf-registry.internal" . -}}
{{- if and $settings.podMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) -}}
{{- fail "zarf-registry: networkPolicy.metricsFrom: metrics.podMonitor.enabled needs access to the metrics; name the pods of your Prometheus, or set networkPolicy.enabled=false" -}}
{{- end -}}
{{- $known := list -}}
{{- range (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- range .rules -}}
{{- $known = append $known .alert -}}
{{- end -}}
{{- end -}}
{{- range $settings.prometheusRule.disabled -}}
{{- if not (has . $known) -}}
{{- fail (printf "zarf-registry: metrics.prometheusRule.disabled: unknown alert %q; set names of %s" . (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- range $path, $labels := dict "metrics.podMonitor.labels" $settings.podMonitor.labels "metrics.prometheusRule.labels" $settings.prometheusRule.labels "metrics.dashboard.labels" $settings.dashboard.labels -}}
{{- range $key, $_ := $labels -}}
{{- if hasPrefix "app.kubernetes.io/" $key -}}
{{- fail (printf "zarf-registry: %s: %s is reserved for the chart; remove it" $path $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
