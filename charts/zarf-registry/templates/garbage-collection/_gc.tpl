{{- /* The chart renders a CronJob for garbage collection. */ -}}
{{- define "zarf-registry.gc" -}}
{{- if and (include "zarf-registry.internal" .) .Values.registry.garbageCollection.enabled -}}true{{- end -}}
{{- end -}}

{{- /* It first deletes the images that a rule selects. */ -}}
{{- define "zarf-registry.prune" -}}
{{- $rules := .Values.registry.garbageCollection.prune -}}
{{- if and (include "zarf-registry.gc" .) (or $rules.olderThan $rules.keepLast $rules.match $rules.untagged) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.gc.name" -}}
{{- printf "%s-gc" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- define "zarf-registry.gc.clusterName" -}}
{{- printf "%s-%s" (include "zarf-registry.namespace" .) (include "zarf-registry.gc.name" .) -}}
{{- end -}}

{{- /* The flags that select images for zarf-registry images prune: JSON array. */ -}}
{{- define "zarf-registry.prune.flags" -}}
{{- $flags := list -}}
{{- with .Values.registry.garbageCollection.prune -}}
{{- with .olderThan -}}
{{- $flags = append $flags (printf "--older-than=%s" .) -}}
{{- end -}}
{{- if .keepLast -}}
{{- $flags = append $flags (printf "--keep-last=%d" (int .keepLast)) -}}
{{- end -}}
{{- range .match -}}
{{- $flags = append $flags (printf "--match=%s" .) -}}
{{- end -}}
{{- range .keep -}}
{{- $flags = append $flags (printf "--keep=%s" .) -}}
{{- end -}}
{{- if .untagged -}}
{{- $flags = append $flags "--untagged" -}}
{{- end -}}
{{- end -}}
{{- $flags | toJson -}}
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
{{- if and (include "zarf-registry.gc" .root) $settings.prune.keep (not (include "zarf-registry.prune" .root)) -}}
{{- fail "zarf-registry: registry.garbageCollection.prune.keep: no rule selects images; set olderThan, keepLast, match or untagged, or remove it" -}}
{{- end -}}
{{- end -}}
