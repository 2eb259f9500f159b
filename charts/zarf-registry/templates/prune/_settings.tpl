{{- /* The chart renders a CronJob that prunes images. */ -}}
{{- define "zarf-registry.prune" -}}
{{- if and (include "zarf-registry.internal" .) .Values.registry.prune.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.prune.name" -}}
{{- printf "%s-prune" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- define "zarf-registry.prune.clusterName" -}}
{{- printf "%s-%s" (include "zarf-registry.namespace" .) (include "zarf-registry.prune.name" .) -}}
{{- end -}}

{{- /* The flags of init-hook images prune: JSON array. */ -}}
{{- define "zarf-registry.prune.flags" -}}
{{- $settings := .Values.registry.prune -}}
{{- $flags := list (printf "--grace-period=%s" $settings.gracePeriod) -}}
{{- with $settings.olderThan -}}
{{- $flags = append $flags (printf "--older-than=%s" .) -}}
{{- end -}}
{{- if $settings.keepLast -}}
{{- $flags = append $flags (printf "--keep-last=%d" (int $settings.keepLast)) -}}
{{- end -}}
{{- range $settings.match -}}
{{- $flags = append $flags (printf "--match=%s" .) -}}
{{- end -}}
{{- range $settings.keep -}}
{{- $flags = append $flags (printf "--keep=%s" .) -}}
{{- end -}}
{{- if $settings.untagged -}}
{{- $flags = append $flags "--untagged" -}}
{{- end -}}
{{- $flags | toJson -}}
{{- end -}}

{{- /* Takes root, cron (the pattern of a schedule). */ -}}
{{- define "zarf-registry.prune.validate" -}}
{{- $settings := .root.Values.registry.prune -}}
{{- if not (regexMatch .cron $settings.schedule) -}}
{{- fail (printf "zarf-registry: registry.prune.schedule: %q is not a cron schedule; set five fields such as 30 2 * * 0, or @weekly" $settings.schedule) -}}
{{- end -}}
{{- if or (lt (include "zarf-registry.seconds" $settings.timeout | int) 120) (gt (include "zarf-registry.seconds" $settings.timeout | int) 86400) -}}
{{- fail (printf "zarf-registry: registry.prune.timeout: %s is not between 2m and 24h; set it to about twice the duration of the longest run" $settings.timeout) -}}
{{- end -}}
{{- if and $settings.enabled (not (or $settings.olderThan $settings.keepLast $settings.match $settings.untagged)) -}}
{{- fail "zarf-registry: registry.prune: no rule selects images; set olderThan, keepLast, match or untagged" -}}
{{- end -}}
{{- end -}}
