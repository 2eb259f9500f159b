{{- /* Names, labels, images and durations. Nothing here depends on the cluster. */ -}}

{{- /* The prefix of every object name. 42 characters leave room for the suffixes of names that are also label values,
and for what controllers append, within a label's 63. */ -}}
{{- define "zarf-registry.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 42 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 42 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 42 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* The namespace of all namespaced objects. Helm's release record stays in the release's namespace. */ -}}
{{- define "zarf-registry.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- /* The namespace of Helm's release record, if it is another one. */ -}}
{{- define "zarf-registry.releaseNamespace" -}}
{{- if ne .Release.Namespace (include "zarf-registry.namespace" .) -}}{{ .Release.Namespace }}{{- end -}}
{{- end -}}

{{- /* The labels of selectors. They never change between versions, since selectors are immutable. The Jobs select by
them too, so the name is constant. Takes root, component. */ -}}
{{- define "zarf-registry.selectorLabels" -}}
app.kubernetes.io/name: zarf-registry
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* Zarf's admission webhook rewrites the images of pods without this label to this registry, so the registry could
not start. Never part of a selector: selectors are immutable. */ -}}
{{- define "zarf-registry.agentLabel" -}}
zarf.dev/agent: ignore
{{- end -}}

{{- /* The labels of a pod: without the chart's version, so that a new chart alone restarts nothing. Takes root,
component, selector (labels of the selector besides selectorLabels), extra (labels of the user). */ -}}
{{- define "zarf-registry.podLabels" -}}
{{- $own := include "zarf-registry.selectorLabels" . | fromYaml -}}
{{- $own = merge $own (include "zarf-registry.agentLabel" . | fromYaml) (default dict .selector) -}}
{{- merge $own (default dict .extra) (default dict .root.Values.commonLabels) | toYaml -}}
{{- end -}}

{{- /* The metadata of an object. Takes root, name, component, labels, annotations; namespace (default: the release's);
cluster, true for cluster-scoped objects. */ -}}
{{- define "zarf-registry.metadata" -}}
{{- $labels := include "zarf-registry.selectorLabels" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "zarf-registry" -}}
{{- $_ := set $labels "app.kubernetes.io/version" (.root.Chart.AppVersion | replace "+" "_" | trunc 63) -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ default (include "zarf-registry.namespace" .root) .namespace | quote }}
{{- end }}
labels:
  {{- merge $labels (default dict .labels) (default dict .root.Values.commonLabels) | toYaml | nindent 2 }}
{{- with merge dict (default dict .annotations) (default dict .root.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Annotations of objects that stay when they are no longer rendered. Argo CD honours Helm's annotation only when
the Application is deleted (argoproj/argo-cd#17819) and has its own sync option, which is merged with the user's. */ -}}
{{- define "zarf-registry.kept" -}}
{{- $options := get (default dict .Values.commonAnnotations) "argocd.argoproj.io/sync-options" | splitList "," -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: {{ append $options "Prune=false" | compact | uniq | join "," }}
{{- end -}}

{{- /* An image reference. With a digest, the tag is omitted: runtimes ignore it, and nodes report both separately.
Takes root, program (the image's name), digest (default: that of the values). */ -}}
{{- define "zarf-registry.image" -}}
{{- $image := .root.Values.image -}}
{{- $version := printf ":%s" (default .root.Chart.AppVersion $image.tag) -}}
{{- with default (get $image.digests .program) .digest -}}
{{- $version = printf "@%s" . -}}
{{- end -}}
{{- $registry := default $image.registry (default dict .root.Values.global).imageRegistry -}}
{{- printf "%s%s" (list $registry $image.repository .program | compact | join "/") $version -}}
{{- end -}}

{{- /* Pull secrets: global ones first, then the chart's. JSON array of references. */ -}}
{{- define "zarf-registry.pullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (default list (default dict .Values.global).imagePullSecrets) (default list .Values.imagePullSecrets) -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- $secrets | uniq | toJson -}}
{{- end -}}

{{- /* The digests of the payloads by PROGRAM-ARCHITECTURE, as JSON. make payload writes the file; a source checkout has
none. */ -}}
{{- define "zarf-registry.payloadDigests" -}}
{{- .Files.Get "files/programs.json" | default "{}" -}}
{{- end -}}

{{- /* The part of a payload's names that changes with its content: a new version alone replaces no pods. Takes root,
program, architecture. */ -}}
{{- define "zarf-registry.program.payloadID" -}}
{{- $digests := include "zarf-registry.payloadDigests" .root | fromJson -}}
{{- get $digests (printf "%s-%s" .program .architecture) | trunc 12 | default (include "zarf-registry.payloadID" .root) -}}
{{- end -}}

{{- /* The version that a program reports. It changes only with the payload or the image. Takes root, program,
architecture. */ -}}
{{- define "zarf-registry.program.version" -}}
{{- $image := get .root.Values.image.digests .program | default .root.Values.image.tag | default .root.Chart.AppVersion -}}
{{- ternary (include "zarf-registry.program.payloadID" .) $image .root.Values.injector.enabled -}}
{{- end -}}

{{- /* The same without a digest: it changes with the version, and has at most 20 characters. */ -}}
{{- define "zarf-registry.payloadID" -}}
{{- with get .Values.image.digests "init-hook" -}}
{{- . | trimPrefix "sha256:" | trunc 12 -}}
{{- else -}}
{{- $id := default .Chart.AppVersion .Values.image.tag | lower | replace "_" "-" | trunc 20 -}}
{{- regexReplaceAll "[-.]+$" $id "" -}}
{{- end -}}
{{- end -}}

{{- /* The name of the certificates CronJob. At most 52 characters: Jobs append a timestamp. */ -}}
{{- define "zarf-registry.certificates.name" -}}
{{- printf "%s-certificates" (include "zarf-registry.fullname" . | trunc 39 | trimSuffix "-") -}}
{{- end -}}

{{- define "zarf-registry.certificates.clusterName" -}}
{{- printf "%s-%s" (include "zarf-registry.namespace" .) (include "zarf-registry.certificates.name" .) -}}
{{- end -}}

{{- /* The seconds of a Go duration such as 1h30m. Templates can add a duration to a date, but not parse one. */ -}}
{{- define "zarf-registry.seconds" -}}
{{- $day := toDate "2006-01-02" "2000-01-02" -}}
{{- sub (dateModify . $day | unixEpoch) (unixEpoch $day) -}}
{{- end -}}
