{{- /* What removes from the registry what no image needs. A release that was upgraded with --reuse-values may not have
these values yet. */ -}}
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

{{- /* Whether there is a CronJob for it. */ -}}
{{- define "zarf-registry.gc" -}}
{{- if and (include "zarf-registry.internal" .) (include "zarf-registry.gc.settings" . | fromJson).enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.gc.name" -}}
{{- printf "%s-gc" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Takes root, cron: what a schedule looks like. */ -}}
{{- define "zarf-registry.gc.validate" -}}
{{- $settings := include "zarf-registry.gc.settings" .root | fromJson -}}
{{- if not (regexMatch .cron $settings.schedule) -}}
{{- fail (printf "zarf-registry: registry.garbageCollection.schedule: %q is no schedule of cron; set five fields, as 30 3 * * 0, or @weekly" $settings.schedule) -}}
{{- end -}}
{{- if or (lt (include "zarf-registry.seconds" $settings.timeout | int) 120) (gt (include "zarf-registry.seconds" $settings.timeout | int) 86400) -}}
{{- fail (printf "zarf-registry: registry.garbageCollection.timeout: %s is not between 2m, of which 20s pass before anything is removed, and 24h; set it to about what the largest run has taken, twice" $settings.timeout) -}}
{{- end -}}
{{- end -}}
