{{- /* Rewriting of image references in new pods, by the API server. */ -}}

{{- /* The rewrite values with defaults, as JSON. `helm upgrade --reuse-values` from an older release lacks them; the
defaults are those of values.yaml. */ -}}
{{- define "zarf-registry.rewrite.settings" -}}
{{- $settings := dict
  "enabled" false
  "registries" (list "*")
  "excludedNamespaces" (list "kube-system" "kube-flannel" "calico-system" "calico-apiserver" "tigera-operator" "cilium") -}}
{{- range $key, $value := default dict .Values.rewrite -}}
{{- $_ := set $settings $key $value -}}
{{- end -}}
{{- $settings | toJson -}}
{{- end -}}

{{- define "zarf-registry.rewrite" -}}
{{- if (include "zarf-registry.rewrite.settings" . | fromJson).enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.rewrite.name" -}}
{{- printf "%s-%s-rewrite" (include "zarf-registry.namespace" .) (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* The API that the cluster serves; nothing if it serves none. v1 if that is unknown, as in helm template. v1alpha1
(Kubernetes 1.32 and 1.33) is left out: 1.32 lacks the CEL functions that the policy needs. */ -}}
{{- define "zarf-registry.rewrite.apiVersion" -}}
{{- $known := .Capabilities.APIVersions.Has "v1/Pod" -}}
{{- $served := $known | ternary list (list "admissionregistration.k8s.io/v1") -}}
{{- range list "v1" "v1beta1" -}}
{{- $version := printf "admissionregistration.k8s.io/%s" . -}}
{{- if $.Capabilities.APIVersions.Has (printf "%s/MutatingAdmissionPolicy" $version) -}}
{{- $served = append $served $version -}}
{{- end -}}
{{- end -}}
{{- with $served -}}{{- first . -}}{{- end -}}
{{- end -}}

{{- define "zarf-registry.rewrite.validate" -}}
{{- if include "zarf-registry.rewrite" . -}}
{{- if not (include "zarf-registry.rewrite.apiVersion" .) -}}
{{- fail "zarf-registry: rewrite.enabled: this cluster serves no MutatingAdmissionPolicy; Kubernetes has it from 1.36, and 1.34 and 1.35 if the API server is started for it (docs/rewriting.md#versions); or set rewrite.enabled=false, and use nodeConfig.mirrors" -}}
{{- end -}}
{{- $settings := include "zarf-registry.rewrite.settings" . | fromJson -}}
{{- /* As in image references: a name without dot and port would be a repository of Docker Hub. */ -}}
{{- $label := "[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?" -}}
{{- $host := printf "^!?(%s(\\.%s)+(:[0-9]+)?|%s:[0-9]+|localhost|\\[[0-9a-fA-F:]+\\](:[0-9]+)?)$" $label $label $label -}}
{{- range $settings.registries -}}
{{- if not (or (eq . "*") (regexMatch $host .)) -}}
{{- fail (printf "zarf-registry: rewrite.registries: %q is not the host of a registry; set HOST[:PORT] as in image references, such as docker.io, * for all, or !HOST to exclude one" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The Secret that rewritten pods name to pull; nothing if pulls need no credential. */ -}}
{{- define "zarf-registry.rewrite.pullSecret" -}}
{{- $default := "" -}}
{{- if and (include "zarf-registry.nodePortMode" .) (not (include "zarf-registry.anonymousPull" .)) -}}
{{- $default = printf "%s-pull" (include "zarf-registry.fullname" .) -}}
{{- end -}}
{{- default $default (include "zarf-registry.rewrite.settings" . | fromJson).pullSecret -}}
{{- end -}}

{{- /* A CEL expression: whether the registry in variable m.host is rewritten. All registries means those that nodes
reach over the network: a loopback address is another registry on the nodes. This registry's other names stay. */ -}}
{{- define "zarf-registry.rewrite.selected" -}}
{{- $all := false -}}
{{- $only := list -}}
{{- $except := list -}}
{{- range (include "zarf-registry.rewrite.settings" . | fromJson).registries -}}
{{- $host := trimPrefix "!" . | replace "index.docker.io" "docker.io" -}}
{{- if eq . "*" -}}
{{- $all = true -}}
{{- else if hasPrefix "!" . -}}
{{- $except = append $except $host -}}
{{- else -}}
{{- $only = append $only $host -}}
{{- end -}}
{{- end -}}
{{- $own := list (include "zarf-registry.address" . | splitList "/" | first) -}}
{{- if include "zarf-registry.internal" . -}}
{{- $service := printf "%s.%s.svc" (include "zarf-registry.fullname" .) (include "zarf-registry.namespace" .) -}}
{{- $own = concat (list $service (printf "%s.%s" $service .Values.clusterDomain)) (include "zarf-registry.expose.settings" . | fromJson).hosts -}}
{{- end -}}
{{- if $except -}}
!(m.host in {{ include "zarf-registry.rewrite.strings" $except }}) &&
{{ end -}}
{{- if $all -}}
({{- with $only -}}m.host in {{ include "zarf-registry.rewrite.strings" . }} || {{ end -}}
m.host.matches(r'^([a-zA-Z0-9]+(([.]|-+)[a-zA-Z0-9]+)*|\[[a-fA-F0-9:]+\])(:[0-9]+)?$') &&
!m.host.matches(r'^(localhost|127[.][0-9.]+|\[::1\])(:|$)') &&
![m.host, m.host.split(':')[0]].exists(h, h in {{ include "zarf-registry.rewrite.strings" $own }}))
{{- else -}}
m.host in {{ include "zarf-registry.rewrite.strings" $only }}
{{- end -}}
{{- end -}}

{{- /* A list of strings in CEL. */ -}}
{{- define "zarf-registry.rewrite.strings" -}}
{{- $quoted := list -}}
{{- range . -}}
{{- $quoted = append $quoted (squote .) -}}
{{- end -}}
[{{ join ", " $quoted }}]
{{- end -}}
