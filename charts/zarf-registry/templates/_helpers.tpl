{{- /* Names, labels, images and durations: what every template needs and no cluster can change. */ -}}

{{- /* The prefix of every name. 42 characters leave room for the longest suffix of a name that also becomes a label,
"-proxy-amd64-" and 8 hex digits, in the 63 that a label may have. */ -}}
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

{{- /* What selectors match: never changes between versions, since selectors are immutable. The Jobs look for the same
labels, so the name is the project's, whatever the objects are called. Takes root, component. */ -}}
{{- define "zarf-registry.selectorLabels" -}}
app.kubernetes.io/name: zarf-registry
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* The labels of a pod: without the chart's version, so that a new chart alone restarts nothing. Takes root,
component, extra. */ -}}
{{- define "zarf-registry.podLabels" -}}
{{- $own := include "zarf-registry.selectorLabels" . | fromYaml -}}
{{- merge $own (default dict .extra) (default dict .root.Values.commonLabels) | toYaml -}}
{{- end -}}

{{- /* The body of an object's metadata. Takes root, name, component, annotations; cluster is true for an object
without a namespace. */ -}}
{{- define "zarf-registry.metadata" -}}
{{- $labels := include "zarf-registry.selectorLabels" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "zarf-registry" -}}
{{- $_ := set $labels "app.kubernetes.io/version" (.root.Chart.AppVersion | replace "+" "_" | trunc 63) -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- merge $labels (default dict .root.Values.commonLabels) | toYaml | nindent 2 }}
{{- with merge dict (default dict .annotations) (default dict .root.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* An image reference. With a digest the tag is left out: runtimes ignore it, and nodes report the two apart.
Takes root, image. */ -}}
{{- define "zarf-registry.image" -}}
{{- $version := printf ":%s" (default .root.Chart.AppVersion .image.tag) -}}
{{- if .image.digest -}}
{{- $version = printf "@%s" .image.digest -}}
{{- end -}}
{{- if .image.registry -}}
{{- printf "%s/%s%s" .image.registry .image.repository $version -}}
{{- else -}}
{{- printf "%s%s" .image.repository $version -}}
{{- end -}}
{{- end -}}

{{- /* The part of the payload's names that tells versions apart. The same rule as internal/injector.PayloadID. */ -}}
{{- define "zarf-registry.payloadID" -}}
{{- with .Values.initHook.image -}}
{{- if .digest -}}
{{- .digest | trimPrefix "sha256:" | trunc 12 -}}
{{- else -}}
{{- $id := default $.Chart.AppVersion .tag | lower | replace "_" "-" | trunc 20 -}}
{{- regexReplaceAll "[-.]+$" $id "" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The name of what looks after the certificates. A CronJob's name may have 52 characters, for it is followed by a time in
the names of its Jobs. */ -}}
{{- define "zarf-registry.certificates.name" -}}
{{- printf "%s-certificates" (include "zarf-registry.fullname" . | trunc 39 | trimSuffix "-") -}}
{{- end -}}

{{- define "zarf-registry.certificates.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "zarf-registry.certificates.name" .) -}}
{{- end -}}

{{- /* The seconds of a Go duration such as 1h30m: templates can add a duration to a date, but not read one. */ -}}
{{- define "zarf-registry.seconds" -}}
{{- $day := toDate "2006-01-02" "2000-01-02" -}}
{{- sub (dateModify . $day | unixEpoch) (unixEpoch $day) -}}
{{- end -}}
