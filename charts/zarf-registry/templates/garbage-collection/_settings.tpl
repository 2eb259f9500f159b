{{- /* Garbage-collection settings. `helm upgrade --reuse-values` from an older release lacks them; the defaults are
those of values.yaml. */ -}}
{{- define "zarf-registry.gc.settings" -}}
{{- $set := default dict .Values.registry.garbageCollection -}}
{{- $resources := dict "requests" (dict "cpu" "10m" "memory" "32Mi") "limits" (dict "memory" "128Mi") -}}
{{- dict
  "enabled" (dig "enabled" false $set)
  "schedule" (dig "schedule" "30 3 * * 0" $set)
  "deleteUntagged" (dig "deleteUntagged" false $set)
  "gracePeriod" (dig "gracePeriod" "24h" $set)
  "timeout" (dig "timeout" "30m" $set)
  "resources" (dig "resources" $resources $set) | toJson -}}
{{- end -}}

{{- /* The chart renders a CronJob for garbage collection. */ -}}
{{- define "zarf-registry.gc" -}}
{{- if and (include "zarf-registry.internal" .) (include "zarf-registry.gc.settings" . | fromJson).enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.gc.name" -}}
{{- printf "%s-gc" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Takes root, cron (the pattern of a schedule). */ -}}
{{- define "zarf-registry.gc.validate" -}}
{{- $settings := include "zarf-registry.gc.settings" .root | fromJson -}}
{{- if not (regexMatch .cron $settings.schedule) -}}
{{- fail (printf "zarf-registry: registry.garbageCollection.schedule: %q is not a cron schedule; set five fields such as 30 3 * * 0, or @weekly" $settings.schedule) -}}
{{- end -}}
{{- if or (lt (include "zarf-registry.seconds" $settings.timeout | int) 120) (gt (include "zarf-registry.seconds" $settings.timeout | int) 86400) -}}
{{- fail (printf "zarf-registry: registry.garbageCollection.timeout: %s is not between 2m and 24h; set it to about twice the duration of the longest run" $settings.timeout) -}}
{{- end -}}
{{- end -}}
