{{- /* Pruning settings. `helm upgrade --reuse-values` from an older release lacks them; the defaults are those of
values.yaml. */ -}}
{{- define "zarf-registry.prune.settings" -}}
{{- $set := default dict .Values.registry.prune -}}
{{- $resources := dict "requests" (dict "cpu" "10m" "memory" "64Mi") "limits" (dict "memory" "256Mi") -}}
{{- dict
  "enabled" (dig "enabled" false $set)
  "schedule" (dig "schedule" "30 2 * * 0" $set)
  "olderThan" (dig "olderThan" "" $set)
  "keepLast" (dig "keepLast" 0 $set | int)
  "match" (dig "match" list $set)
  "keep" (dig "keep" list $set)
  "untagged" (dig "untagged" false $set)
  "gracePeriod" (dig "gracePeriod" "24h" $set)
  "timeout" (dig "timeout" "30m" $set)
  "resources" (dig "resources" $resources $set) | toJson -}}
{{- end -}}

{{- /* The chart renders a CronJob that prunes images. */ -}}
{{- define "zarf-registry.prune" -}}
{{- if and (include "zarf-registry.internal" .) (include "zarf-registry.prune.settings" . | fromJson).enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.prune.name" -}}
{{- printf "%s-prune" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- define "zarf-registry.prune.clusterName" -}}
{{- printf "%s-%s" (include "zarf-registry.namespace" .) (include "zarf-registry.prune.name" .) -}}
{{- end -}}

{{- /* The flags of zarf-registry images prune: JSON array. */ -}}
{{- define "zarf-registry.prune.flags" -}}
{{- $settings := include "zarf-registry.prune.settings" . | fromJson -}}
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
{{- $settings := include "zarf-registry.prune.settings" .root | fromJson -}}
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
