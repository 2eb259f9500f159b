{{- /* Names, labels, images and durations. Nothing here depends on the cluster. */ -}}

{{- /* The prefix of every object name. 42 characters leave room for the suffixes of names that are also label values,
and for what controllers append, within a label's 63. */ -}}
{{- define "zarf-registry.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $default := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $default .Values.fullnameOverride | trunc 42 | trimSuffix "-" -}}
{{- end -}}

{{- /* The labels of selectors. They never change between versions, since selectors are immutable. The Jobs select by
them too, so the name is constant. Takes a list: root, component. */ -}}
{{- define "zarf-registry.selectorLabels" -}}
app.kubernetes.io/name: zarf-registry
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* The labels of a pod: without the chart's version, so that a new chart alone restarts nothing. Zarf's admission
webhook rewrites the images of pods without the label zarf.dev/agent to this registry, so the registry could not start.
Takes a list: root, component, labels of the user; optional: a label of the selector besides selectorLabels. */ -}}
{{- define "zarf-registry.podLabels" -}}
{{- $own := include "zarf-registry.selectorLabels" . | fromYaml -}}
{{- $selector := index (append . dict) 3 -}}
{{- merge $own (dict "zarf.dev/agent" "ignore") $selector (index . 2) (first .).Values.commonLabels | toYaml -}}
{{- end -}}

{{- /* The metadata of a namespaced object. Takes a list: root, component, name; optional: annotations, labels. */ -}}
{{- define "zarf-registry.metadata" -}}
name: {{ index . 2 }}
namespace: {{ (first .).zr.namespace | quote }}
{{ include "zarf-registry.metadata.common" . }}
{{- end -}}

{{- /* The same for an object without a namespace, whose name begins with that of the release and a dot, which namespaces
cannot contain: so the names of two releases differ. */ -}}
{{- define "zarf-registry.metadata.cluster" -}}
name: {{ index . 2 }}
{{ include "zarf-registry.metadata.common" . }}
{{- end -}}

{{- define "zarf-registry.metadata.common" -}}
{{- $given := concat . (list dict dict) -}}
{{- $labels := include "zarf-registry.selectorLabels" . | fromYaml -}}
{{- with first . -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- $own := dict
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "zarf-registry"
  "app.kubernetes.io/version" (.Chart.AppVersion | replace "+" "_" | trunc 63)
  "helm.sh/chart" $chart -}}
labels:
  {{- merge $labels $own (default dict (index $given 4)) .Values.commonLabels | toYaml | nindent 2 }}
{{- with merge dict (default dict (index $given 3)) .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Annotations of objects that stay when they are no longer rendered. Argo CD honours Helm's annotation only when
the Application is deleted (argoproj/argo-cd#17819) and has its own sync option, which is merged with the user's. Takes
a list: root; optional: the user's annotations of the object. */ -}}
{{- define "zarf-registry.kept" -}}
{{- $given := merge (dict) (index (append . dict) 1) (first .).Values.commonAnnotations -}}
{{- $options := get $given "argocd.argoproj.io/sync-options" | splitList "," -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: {{ append $options "Prune=false" | compact | uniq | join "," }}
{{- end -}}

{{- /* An image reference. With a digest, the tag is omitted: runtimes ignore it, and nodes report both separately.
Takes a list: root, program; optional: digest (default: that of the values). */ -}}
{{- define "zarf-registry.image" -}}
{{- $root := first . -}}
{{- $image := get $root.zr.images (index . 1) -}}
{{- $version := printf ":%s" (default $root.Chart.AppVersion $image.tag) -}}
{{- with append . $image.digest | rest | rest | first -}}
{{- $version = printf "@%s" . -}}
{{- end -}}
{{- $registry := default $root.Values.image.registry (default dict $root.Values.global).imageRegistry -}}
{{- printf "%s%s" (list $registry $image.repository | compact | join "/") $version -}}
{{- end -}}

{{- /* The part of a payload's names that changes with its content: a new version alone replaces no pods. Takes a list:
root, program, architecture. */ -}}
{{- define "zarf-registry.program.payloadID" -}}
{{- $zr := (first .).zr -}}
{{- get $zr.payloadDigests (rest . | join "-") | trunc 12 | default $zr.payloadID -}}
{{- end -}}

{{- /* The version that a program reports. It changes only with the payload or the image. Takes a list: root, program,
architecture. */ -}}
{{- define "zarf-registry.program.version" -}}
{{- $image := get (first .).zr.images (index . 1) -}}
{{- if (first .).Values.injector.enabled -}}
{{- include "zarf-registry.program.payloadID" . -}}
{{- else -}}
{{- $image.digest | default $image.tag | default (first .).Chart.AppVersion -}}
{{- end -}}
{{- end -}}

{{- /* The seconds of a Go duration such as 1h30m. Templates can add a duration to a date, but not parse one. */ -}}
{{- define "zarf-registry.seconds" -}}
{{- $day := toDate "2006-01-02" "2000-01-02" -}}
{{- sub (dateModify . $day | unixEpoch) (unixEpoch $day) -}}
{{- end -}}

{{- /* "true" for a cron schedule. The API server is stricter, but only after prepare. */ -}}
{{- define "zarf-registry.isCron" -}}
{{- $field := "([-0-9*/,?]|(?i:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))+" -}}
{{- $name := "@(yearly|annually|monthly|weekly|daily|midnight|hourly)|@every ([0-9]+(s|m|h))+" -}}
{{- if regexMatch (printf "^(%s|%s( +%s){4})$" $name $field $field) . -}}true{{- end -}}
{{- end -}}
