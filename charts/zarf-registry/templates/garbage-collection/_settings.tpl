{{- /* The chart renders a CronJob for garbage collection. */ -}}
{{- define "zarf-registry.gc" -}}
{{- if and (include "zarf-registry.internal" .) .Values.registry.garbageCollection.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.gc.name" -}}
{{- printf "%s-gc" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Takes root, cron (the pattern of a schedule). */ -}}
{{- define "zarf-registry.gc.validate" -}}
{{- $settings := .root.Values.registry.garbageCollection -}}
{{- if not (regexMatch .cron $settings.schedule) -}}
{{- fail (printf "zarf-registry: registry.garbageCollection.schedule: %q is not a cron schedule; set five fields such as 30 3 * * 0, or @weekly" $settings.schedule) -}}
{{- end -}}
{{- if or (lt (include "zarf-registry.seconds" $settings.timeout | int) 120) (gt (include "zarf-registry.seconds" $settings.timeout | int) 86400) -}}
{{- fail (printf "zarf-registry: registry.garbageCollection.timeout: %s is not between 2m and 24h; set it to about twice the duration of the longest run" $settings.timeout) -}}
{{- end -}}
{{- end -}}
