{{- /* Prefer the registry's node: it is alive, which the tolerations do not ensure, and has the image from the last
run. An image from elsewhere prefers the nodes that have it. */ -}}
{{- define "zarf-registry.certificates.affinity" -}}
{{- $affinity := deepCopy (default dict .Values.initHook.affinity) -}}
{{- if not $affinity.podAffinity -}}
{{- $near := dict "labelSelector" (dict "matchLabels" (include "zarf-registry.selectorLabels" (dict "root" . "component" "registry") | fromYaml)) "topologyKey" "kubernetes.io/hostname" -}}
{{- $_ := set $affinity "podAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $near))) -}}
{{- end -}}
{{- $image := include "zarf-registry.hookImage" . | fromJson -}}
{{- if and $image.nodes (not (include "zarf-registry.certificates.image" . | fromJson).pushed) -}}
{{- $terms := list -}}
{{- range include "zarf-registry.pod.nodeTerms" $image.nodes | fromYamlArray -}}
{{- $terms = append $terms (dict "weight" 100 "preference" .) -}}
{{- end -}}
{{- $_ := set $affinity "nodeAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $terms) -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end -}}
