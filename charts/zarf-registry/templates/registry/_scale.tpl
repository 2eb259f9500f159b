{{- /* Number and placement of registry pods. */ -}}

{{- /* "true" if the autoscaler sets the number of pods. */ -}}
{{- define "zarf-registry.autoscaled" -}}
{{- if and (include "zarf-registry.internal" .) .Values.registry.autoscaling.enabled -}}true{{- end -}}
{{- end -}}

{{- /* "true" if there can be more than one pod. */ -}}
{{- define "zarf-registry.several" -}}
{{- if include "zarf-registry.autoscaled" . -}}
{{- if gt (int .Values.registry.autoscaling.maxReplicas) 1 -}}true{{- end -}}
{{- else if gt (int .Values.registry.replicas) 1 -}}true{{- end -}}
{{- end -}}

{{- /* "true" if drains evict one registry pod at a time. */ -}}
{{- define "zarf-registry.disruptionBudget" -}}
{{- if and (include "zarf-registry.internal" .) .Values.registry.podDisruptionBudget.enabled -}}true{{- end -}}
{{- end -}}

{{- /* Spreads pods over nodes. The user's constraints replace this; one without labelSelector counts the registry's
pods. */ -}}
{{- define "zarf-registry.registry.spread" -}}
{{- if .Values.registry.topologySpreadConstraints -}}
{{- $pods := dict "matchLabels" (include "zarf-registry.selectorLabels" (dict "root" . "component" "registry") | fromYaml) -}}
{{- range .Values.registry.topologySpreadConstraints }}
{{ list (hasKey . "labelSelector" | ternary . (merge (dict "labelSelector" $pods) .)) | toYaml }}
{{- end }}
{{- else if include "zarf-registry.registry.spreadByUs" . -}}
{{- include "zarf-registry.pod.spread" (dict "root" . "component" "registry") -}}
{{- end -}}
{{- end -}}

{{- /* The user's affinity, and zones, as JSON. */ -}}
{{- define "zarf-registry.registry.affinity" -}}
{{- $affinity := deepCopy (default dict .Values.registry.affinity) -}}
{{- if include "zarf-registry.registry.spreadByUs" . -}}
{{- $affinity = mergeOverwrite $affinity (include "zarf-registry.pod.apart" (dict "root" . "component" "registry") | fromJson) -}}
{{- end -}}
{{- toJson $affinity -}}
{{- end -}}

{{- /* "true" if there are several pods and the user does not place them. */ -}}
{{- define "zarf-registry.registry.spreadByUs" -}}
{{- $affinity := default dict .Values.registry.affinity -}}
{{- if and (include "zarf-registry.several" .) (not $affinity.podAntiAffinity) (not .Values.registry.topologySpreadConstraints) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.scale.validate" -}}
{{- $registry := .Values.registry -}}
{{- $path := "replicas" -}}
{{- if include "zarf-registry.autoscaled" . -}}
{{- $path = "autoscaling.maxReplicas" -}}
{{- with $registry.autoscaling -}}
{{- if gt (int $registry.replicas) 1 -}}
{{- fail "zarf-registry: registry.replicas: with autoscaling.enabled=true, the autoscaler sets the number of pods; set autoscaling.minReplicas instead" -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "zarf-registry: registry.autoscaling.minReplicas: %d is more than autoscaling.maxReplicas, which is %d; set it to at most that" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" (default dict $registry.resources)) -}}
{{- fail "zarf-registry: registry.autoscaling.targetCPUUtilizationPercentage: it is relative to the CPU request, and there is none; set registry.resources.requests.cpu" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (include "zarf-registry.several" .) (not (include "zarf-registry.sharedStorage" .)) -}}
{{- $storage := $registry.storage.type -}}
{{- if eq $storage "inmemory" -}}
{{- fail (printf "zarf-registry: registry.%s: with storage.type=inmemory each pod would have its own images; set it to 1, or storage.type=s3" $path) -}}
{{- else if eq $storage "s3" -}}
{{- fail (printf "zarf-registry: registry.%s: with storage.s3.copyFromVolume=true another pod could change what is being copied; set it to 1 until the images are copied" $path) -}}
{{- else if not $registry.persistence.enabled -}}
{{- fail (printf "zarf-registry: registry.%s: with persistence.enabled=false each pod would have its own images; set it to 1, storage.type=s3, or a volume with persistence.accessModes={ReadWriteMany}" $path) -}}
{{- else -}}
{{- fail (printf "zarf-registry: registry.%s: several pods need a volume with the access mode ReadWriteMany, and persistence.accessModes has %s; set it to 1, storage.type=s3, or persistence.accessModes={ReadWriteMany} if the class (or the existing claim) has it" $path (join ", " $registry.persistence.accessModes)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
