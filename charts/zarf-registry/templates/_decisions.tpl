{{- /* What the chart decides, each by the same order: explicit value, then what the cluster says, then a default. A
decision is JSON: value, and source (value, cluster or default), which the Jobs are told, so that a rendering that could
not see the cluster never undoes what is saved there. */ -}}

{{- /* Takes root; explicit, where "" and "auto" are no answer; fact, the helper that asks the cluster; default. */ -}}
{{- define "zarf-registry.decide" -}}
{{- if not (has .explicit (list nil "" "auto")) -}}
{{- dict "value" .explicit "source" "value" | toJson -}}
{{- else -}}
{{- with include .fact .root -}}
{{- dict "value" . "source" "cluster" | toJson -}}
{{- else -}}
{{- dict "value" .default "source" "default" | toJson -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The mode: validate.yaml lets nothing but an explicit true pass. */ -}}
{{- define "zarf-registry.registryProxy" -}}
{{- dict "value" .Values.registryProxy "source" "value" | toJson -}}
{{- end -}}

{{- define "zarf-registry.ipFamily" -}}
{{- include "zarf-registry.decide" (dict "root" . "explicit" .Values.ipFamily "fact" "zarf-registry.cluster.ipFamily" "default" "IPv4") -}}
{{- end -}}

{{- define "zarf-registry.tls" -}}
{{- include "zarf-registry.decide" (dict "root" . "explicit" .Values.proxy.tls "fact" "zarf-registry.cluster.tls" "default" "never") -}}
{{- end -}}

{{- define "zarf-registry.architecture" -}}
{{- include "zarf-registry.decide" (dict "root" . "explicit" .Values.registry.architecture "fact" "zarf-registry.cluster.architecture" "default" (first .Values.injector.architectures)) -}}
{{- end -}}

{{- /* Whether the proxies share the node's network, "true" or "false": nothing can rewrite a packet so that a hostPort
answers on ::1. */ -}}
{{- define "zarf-registry.hostNetwork" -}}
{{- if kindIs "bool" .Values.proxy.hostNetwork -}}
{{- .Values.proxy.hostNetwork -}}
{{- else -}}
{{- eq (include "zarf-registry.ipFamily" . | fromJson).value "IPv6" -}}
{{- end -}}
{{- end -}}

{{- /* The address in image references. */ -}}
{{- define "zarf-registry.address" -}}
{{- $host := eq (include "zarf-registry.ipFamily" . | fromJson).value "IPv6" | ternary "[::1]" "127.0.0.1" -}}
{{- printf "%s:%d" $host (int .Values.port) -}}
{{- end -}}

{{- /* The pause image of one architecture's nodes: value, source, and exceptions, which is image → names of nodes.
Takes root, architecture. */ -}}
{{- define "zarf-registry.pause" -}}
{{- if .root.Values.injector.image -}}
{{- dict "value" .root.Values.injector.image "source" "value" "exceptions" dict | toJson -}}
{{- else -}}
{{- $seen := include "zarf-registry.cluster.pause" . | fromJson -}}
{{- if $seen.image -}}
{{- dict "value" $seen.image "source" "cluster" "exceptions" $seen.exceptions | toJson -}}
{{- else -}}
{{- dict "value" "registry.k8s.io/pause:3.10.1" "source" "default" "exceptions" dict | toJson -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The pause image of the registry: value, source, and excluded, the nodes that are known not to have it. A registry
that runs keeps its image while any node reports it: a newer one on a new node must not send the registry away from its
volume. */ -}}
{{- define "zarf-registry.registry.pause" -}}
{{- $architecture := (include "zarf-registry.architecture" . | fromJson).value -}}
{{- $pause := include "zarf-registry.pause" (dict "root" . "architecture" $architecture) | fromJson -}}
{{- $image := $pause.value -}}
{{- $excluded := list -}}
{{- if eq $pause.source "cluster" -}}
{{- $seen := include "zarf-registry.cluster.pause" (dict "root" . "architecture" $architecture) | fromJson -}}
{{- $running := (include "zarf-registry.cluster.registry" . | fromJson).image -}}
{{- range $images := $seen.nodes -}}
{{- if has $running $images -}}
{{- $image = $running -}}
{{- end -}}
{{- end -}}
{{- range $name, $images := $seen.nodes -}}
{{- if not (has $image $images) -}}
{{- $excluded = append $excluded $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "value" $image "source" $pause.source "excluded" $excluded | toJson -}}
{{- end -}}

{{- /* Conditions: "true" or empty, the first line of the templates. */ -}}

{{- define "zarf-registry.proxyMode" -}}
{{- if (include "zarf-registry.registryProxy" . | fromJson).value -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.hostPort" -}}
{{- if and (include "zarf-registry.proxyMode" .) (eq (include "zarf-registry.hostNetwork" .) "false") -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.makesClaim" -}}
{{- with .Values.registry -}}
{{- if and (eq .storage.type "filesystem") .persistence.enabled (not .persistence.existingClaim) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Whether two registry pods may run at once, for the time of a rollout. */ -}}
{{- define "zarf-registry.sharedStorage" -}}
{{- with .Values.registry -}}
{{- $claim := and (eq .storage.type "filesystem") .persistence.enabled -}}
{{- if or (eq .storage.type "s3") (and $claim (has "ReadWriteMany" .persistence.accessModes)) -}}true{{- end -}}
{{- end -}}
{{- end -}}
