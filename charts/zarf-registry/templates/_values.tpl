{{- /* Checks of values that belong to no single component. */ -}}
{{- define "zarf-registry.values.validate" -}}
{{- with include "zarf-registry.cluster.elsewhere" . -}}
{{- fail (printf "zarf-registry: namespaceOverride: release %s has its registry in namespace %s; images, state and certificates cannot move: set it to that namespace, or uninstall the release first" $.Release.Name .) -}}
{{- end -}}
{{- end -}}

{{- /* "true" if the user adds objects. */ -}}
{{- define "zarf-registry.extraObjects" -}}
{{- if .Values.extraObjects -}}true{{- end -}}
{{- end -}}
