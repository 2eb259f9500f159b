{{- /* What cannot work of the values that belong to no part of the chart alone. */ -}}
{{- define "zarf-registry.values.validate" -}}
{{- with include "zarf-registry.cluster.elsewhere" . -}}
{{- fail (printf "zarf-registry: namespaceOverride: release %s has its registry in namespace %s, and images, state and certificates do not move; set it to that namespace, or uninstall the release before" $.Release.Name .) -}}
{{- end -}}
{{- end -}}

{{- /* "true" where the user has objects of their own. */ -}}
{{- define "zarf-registry.extraObjects" -}}
{{- if .Values.extraObjects -}}true{{- end -}}
{{- end -}}
