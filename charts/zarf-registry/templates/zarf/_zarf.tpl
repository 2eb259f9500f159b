{{- /* The registry in place of the one of Zarf's init package. */ -}}

{{- /* Condition. The names of Zarf's registry are those of the release. */ -}}
{{- define "zarf-registry.zarf" -}}
{{- if and .Values.zarf.compatible (include "zarf-registry.internal" .) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.zarf.validate" -}}
{{- if .Values.zarf.compatible -}}
{{- $mode := (include "zarf-registry.mode" . | fromJson).value -}}
{{- if ne $mode "proxy" -}}
{{- fail (printf "zarf-registry: zarf.compatible: Zarf is supported in proxy mode only, and the mode is %s; set registryProxy=true" $mode) -}}
{{- end -}}
{{- range $what, $have := dict "namespace zarf" (printf "namespace %s" (include "zarf-registry.namespace" .)) "release zarf-docker-registry" (printf "release %s" .Release.Name) "fullnameOverride zarf-docker-registry" (printf "fullnameOverride %s" (include "zarf-registry.fullname" .)) -}}
{{- if ne $what $have -}}
{{- fail (printf "zarf-registry: zarf.compatible: Zarf looks for its registry in %s, and this is %s; use that name, on a new installation" $what $have) -}}
{{- end -}}
{{- end -}}
{{- $pki := include "zarf-registry.pki" . | fromJson -}}
{{- if ne $pki.value "internal" -}}
{{- fail (printf "zarf-registry: zarf.compatible: Zarf's client certificate must be of the registry's own CA, and pki.mode is %s (source: %s); set pki.mode=internal" $pki.value $pki.source) -}}
{{- end -}}
{{- range include "zarf-registry.pushCredentials" . | fromJsonArray -}}
{{- if eq .name "zarf" -}}
{{- fail "zarf-registry: auth.push: with zarf.compatible, the credential zarf is that of Zarf; choose another name" -}}
{{- end -}}
{{- end -}}
{{- $line := "[^:#\\s][^:\\s]*:\\$2[aby]\\$[0-9]{2}\\$[./A-Za-z0-9]{53}" -}}
{{- if not (regexMatch (printf "^%s(\\s+%s)*\\s*$" $line $line) .Values.secrets.htpasswd) -}}
{{- fail "zarf-registry: secrets.htpasswd: zarf.compatible needs Zarf's users as lines USER:HASH, hashed with bcrypt; set it to ###ZARF_HTPASSWD### in a values file that Zarf evaluates" -}}
{{- end -}}
{{- end -}}
{{- end -}}
