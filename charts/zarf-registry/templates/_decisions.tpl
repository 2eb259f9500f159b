{{- /* What the chart decides, each by the same order: explicit value, then what is remembered (mode, IP family, PKI mode only),
then what the cluster says, then a default. A decision is JSON: value, and source (value, state, cluster or default), which
the Jobs are told, so that a rendering that could not see the cluster never undoes what is saved there. */ -}}

{{- /* Takes root; explicit, where "" and "auto" are no answer; saved and fact, the helpers that ask the state, where it is
asked, and the cluster; default. */ -}}
{{- define "zarf-registry.decide" -}}
{{- $saved := "" -}}
{{- if has .explicit (list nil "" "auto") -}}
{{- if .saved -}}
{{- $saved = include .saved .root -}}
{{- end -}}
{{- if $saved -}}
{{- dict "value" $saved "source" "state" | toJson -}}
{{- else -}}
{{- with include .fact .root -}}
{{- dict "value" . "source" "cluster" | toJson -}}
{{- else -}}
{{- dict "value" .default "source" "default" | toJson -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- dict "value" .explicit "source" "value" | toJson -}}
{{- end -}}
{{- end -}}

{{- /* How nodes reach the registry: proxy, nodeport or external, and for external its url. */ -}}
{{- define "zarf-registry.mode" -}}
{{- if .Values.registryURL -}}
{{- dict "value" "external" "source" "value" "url" (.Values.registryURL | trimPrefix "https://" | trimSuffix "/") | toJson -}}
{{- else if kindIs "bool" .Values.registryProxy -}}
{{- dict "value" (.Values.registryProxy | ternary "proxy" "nodeport") "source" "value" | toJson -}}
{{- else -}}
{{- $state := include "zarf-registry.cluster.state" . | fromJson -}}
{{- if eq (default "" $state.mode) "external" -}}
{{- dict "value" "external" "source" "state" "url" $state.address | toJson -}}
{{- else if $state.mode -}}
{{- dict "value" $state.mode "source" "state" | toJson -}}
{{- else -}}
{{- dict "value" "nodeport" "source" (include "zarf-registry.cluster.seen" . | empty | ternary "default" "cluster") | toJson -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.ipFamily" -}}
{{- include "zarf-registry.decide" (dict "root" . "explicit" .Values.ipFamily "saved" "zarf-registry.cluster.savedIPFamily" "fact" "zarf-registry.cluster.ipFamily" "default" "IPv4") -}}
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

{{- /* What image references begin with. */ -}}
{{- define "zarf-registry.address" -}}
{{- $mode := include "zarf-registry.mode" . | fromJson -}}
{{- if eq $mode.value "external" -}}
{{- $mode.url -}}
{{- else -}}
{{- $host := eq (include "zarf-registry.ipFamily" . | fromJson).value "IPv6" | ternary "[::1]" "127.0.0.1" -}}
{{- printf "%s:%d" $host (int .Values.port) -}}
{{- end -}}
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
that runs keeps its image until no node can have it: a newer one on a new node must not send the registry away from its
volume. Without the injector there is none. */ -}}
{{- define "zarf-registry.registry.pause" -}}
{{- if not .Values.injector.enabled -}}
{{- dict "value" "" "source" "default" "excluded" list | toJson -}}
{{- else -}}
{{- $architecture := (include "zarf-registry.architecture" . | fromJson).value -}}
{{- $pause := include "zarf-registry.pause" (dict "root" . "architecture" $architecture) | fromJson -}}
{{- $image := $pause.value -}}
{{- $excluded := list -}}
{{- if eq $pause.source "cluster" -}}
{{- with (include "zarf-registry.cluster.registry" . | fromJson).image -}}
{{- $holders := include "zarf-registry.cluster.holders" (dict "root" $ "architecture" $architecture "image" .) | fromJson -}}
{{- if or $holders.with $holders.unknown -}}
{{- $image = . -}}
{{- end -}}
{{- end -}}
{{- $excluded = (include "zarf-registry.cluster.holders" (dict "root" . "architecture" $architecture "image" $image) | fromJson).without -}}
{{- end -}}
{{- dict "value" $image "source" $pause.source "excluded" $excluded | toJson -}}
{{- end -}}
{{- end -}}

{{- /* The nodes, in groups that differ by architecture and pause image, a JSON array: for each architecture one for each
exception, and one for all other nodes. Of each: group (its name, for a label), architecture, pause and its source, and only or excluded,
names of nodes. Without images there is one for each architecture. Takes root, images ("true" or ""). */ -}}
{{- define "zarf-registry.groups" -}}
{{- $groups := list -}}
{{- range $architecture := .root.Values.injector.architectures -}}
{{- $pause := dict "value" "" "source" "default" "exceptions" dict -}}
{{- if $.images -}}
{{- $pause = include "zarf-registry.pause" (dict "root" $.root "architecture" $architecture) | fromJson -}}
{{- end -}}
{{- $excluded := list -}}
{{- range $image, $nodes := $pause.exceptions -}}
{{- $excluded = concat $excluded $nodes -}}
{{- $groups = append $groups (dict "group" (printf "%s-%s" $architecture (sha256sum $image | trunc 8)) "architecture" $architecture "pause" $image "source" $pause.source "only" $nodes) -}}
{{- end -}}
{{- $groups = append $groups (dict "group" $architecture "architecture" $architecture "pause" $pause.value "source" $pause.source "excluded" $excluded) -}}
{{- end -}}
{{- $groups | toJson -}}
{{- end -}}

{{- /* The DaemonSets of proxies in proxy mode, a JSON array: groups, each with the name of its DaemonSet. */ -}}
{{- define "zarf-registry.proxies" -}}
{{- $groups := include "zarf-registry.groups" (dict "root" . "images" (.Values.injector.enabled | ternary "true" "")) | fromJsonArray -}}
{{- range $groups -}}
{{- $_ := set . "name" (printf "%s-proxy-%s" (include "zarf-registry.fullname" $) .group) -}}
{{- end -}}
{{- $groups | toJson -}}
{{- end -}}

{{- /* The images that injected programs run in: the registry's, and where there are proxies or pods that configure nodes
theirs. JSON array. */ -}}
{{- define "zarf-registry.pauseImages" -}}
{{- $images := list (include "zarf-registry.registry.pause" . | fromJson).value -}}
{{- if or (include "zarf-registry.proxyMode" .) (include "zarf-registry.nodeConfig" .) -}}
{{- range include "zarf-registry.proxies" . | fromJsonArray -}}
{{- $images = append $images .pause -}}
{{- end -}}
{{- end -}}
{{- $images | uniq | toJson -}}
{{- end -}}

{{- /* The image that the Jobs run: value; nodes, those that report it; and pushed, the architecture of the one that
`finish` pushed into this registry. That one is for clusters where no node has the image of the values any more, or ever
had. It must be of the configured version, since it carries the payload; and its address must stay for the length of the
upgrade, which the Jobs are in the middle of. A nodeSelector or affinity for the Jobs rules it out. */ -}}
{{- define "zarf-registry.hookImage" -}}
{{- $configured := .Values.initHook.image -}}
{{- $answer := dict "value" (include "zarf-registry.image" (dict "root" . "image" $configured)) "nodes" list "pushed" "" -}}
{{- if not (or .Values.initHook.nodeSelector .Values.initHook.affinity) -}}
{{- $_ := set $answer "nodes" (include "zarf-registry.cluster.ready" (dict "root" . "image" $answer.value) | fromJsonArray) -}}
{{- if not (or $answer.nodes $configured.digest (eq $configured.pullPolicy "Never")) -}}
{{- $state := include "zarf-registry.cluster.state" . | fromJson -}}
{{- $address := include "zarf-registry.address" . -}}
{{- $tag := printf ":%s" (default .Chart.AppVersion $configured.tag) -}}
{{- with $state.hookImage -}}
{{- if and .architecture .reference (hasSuffix $tag .reference) (ne $state.mode "external") (eq $state.address $address) -}}
{{- $image := printf "%s/%s" $address .reference -}}
{{- $nodes := include "zarf-registry.cluster.ready" (dict "root" $ "image" $image) | fromJsonArray -}}
{{- $answer = dict "value" $image "nodes" $nodes "pushed" .architecture -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $answer | toJson -}}
{{- end -}}

{{- /* Where certificates come from: value (the PKI mode) and source; existing, the names of the user's Secrets; and issuer,
whose name may be empty. A mode that is named has what the values name beside it; one that is remembered keeps what was
named then, where the values are silent. */ -}}
{{- define "zarf-registry.pki" -}}
{{- $pki := default dict .Values.pki -}}
{{- $existing := dict -}}
{{- range $key, $value := dict "server" "server" "node" "node" "push" "push" "authority" "ca" -}}
{{- $_ := set $existing $key (dig "existingSecret" $value "" $pki) -}}
{{- end -}}
{{- $answer := dict "value" "internal" "source" "default" "existing" $existing "issuer" (dig "certManager" "issuerRef" dict $pki) -}}
{{- if $pki.mode -}}
{{- $answer = merge (dict "value" $pki.mode "source" "value") $answer -}}
{{- else -}}
{{- $saved := default dict (include "zarf-registry.cluster.state" . | fromJson).pki -}}
{{- with $saved.mode -}}
{{- $answer = merge (dict "value" . "source" "state") $answer -}}
{{- range $key, $value := $existing -}}
{{- $_ := set $existing $key (default (dig "existing" $key "" $saved) $value) -}}
{{- end -}}
{{- if and $saved.issuer (not $answer.issuer.name) -}}
{{- $_ := set $answer "issuer" $saved.issuer -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $answer | toJson -}}
{{- end -}}

{{- /* What stands in the values about certificates and is no decision, as JSON: leaf and authority (lifetimes), schedule,
timeout, and resources, priorityClassName, extraEnv, podAnnotations and podLabels of the CronJob's pods. All of it is missing in the values that `helm upgrade --reuse-values` takes over from a release of before;
the defaults are those of values.yaml. */ -}}
{{- define "zarf-registry.pki.settings" -}}
{{- $pki := default dict .Values.pki -}}
{{- $resources := dict "requests" (dict "cpu" "20m" "memory" "64Mi") "limits" (dict "memory" "512Mi") -}}
{{- dict
  "leaf" (dig "lifetime" "certificate" "8760h" $pki)
  "authority" (dig "lifetime" "authority" "43800h" $pki)
  "schedule" (dig "rotation" "schedule" "17 * * * *" $pki)
  "timeout" (dig "rotation" "timeout" "10m" $pki)
  "resources" (dig "rotation" "resources" $resources $pki)
  "priorityClassName" (dig "rotation" "priorityClassName" "" $pki)
  "extraEnv" (dig "rotation" "extraEnv" list $pki)
  "podAnnotations" (dig "rotation" "podAnnotations" dict $pki)
  "podLabels" (dig "rotation" "podLabels" dict $pki) | toJson -}}
{{- end -}}

{{- /* The user's Secret with the push credential, or nothing. */ -}}
{{- define "zarf-registry.pushSecret" -}}
{{- dig "existingSecret" "" (default dict .Values.auth) -}}
{{- end -}}

{{- /* The user's Secrets that are read and copied: JSON array of names. */ -}}
{{- define "zarf-registry.sourceSecrets" -}}
{{- $pki := include "zarf-registry.pki" . | fromJson -}}
{{- $names := list (include "zarf-registry.pushSecret" .) -}}
{{- if eq $pki.value "existingSecret" -}}
{{- $names = values $pki.existing | sortAlpha | concat $names -}}
{{- end -}}
{{- $names | compact | uniq | toJson -}}
{{- end -}}

{{- /* What the Jobs make, by what follows the full name: certificates, and what cert-manager puts them into before they are
copied. */ -}}
{{- define "zarf-registry.madeSecrets" -}}
{{- list "state" "ca" "server-tls" "node-tls" "push-tls" "credentials" "pull" | toJson -}}
{{- end -}}

{{- define "zarf-registry.issuedSecrets" -}}
{{- list "ca-issued" "server-issued" "node-issued" "push-issued" | toJson -}}
{{- end -}}

{{- /* The image that the CronJob runs: value; pushed, "true" where it comes from this registry; architecture, the only one
that it then runs on, empty where the nodes are of one; and pin, "true" where `finish` must run on that one too, since it
pushes itself. It comes from the registry, so that no node must keep it; from elsewhere where nobody pushes it (a
workstation of another kind than the nodes, which then has left no word of it in the state), or where a user's affinity
leaves open on which architecture `finish` runs. */ -}}
{{- define "zarf-registry.certificates.image" -}}
{{- $hook := .Values.initHook -}}
{{- $image := include "zarf-registry.hookImage" . | fromJson -}}
{{- $answer := dict "value" (include "zarf-registry.image" (dict "root" . "image" $hook.image)) "pushed" "" "architecture" "" "pin" "" -}}
{{- $pushed := and $hook.pushImages (ne $hook.image.pullPolicy "Never") -}}
{{- $architecture := default (dig "kubernetes.io/arch" "" $hook.nodeSelector) $image.pushed -}}
{{- if and $pushed (not $architecture) -}}
{{- $state := include "zarf-registry.cluster.state" . | fromJson -}}
{{- $recorded := default dict $state.hookImage -}}
{{- if has $state.mode (list "proxy" "nodeport") -}}
{{- $pushed = $recorded.architecture | empty | not -}}
{{- end -}}
{{- $present := include "zarf-registry.cluster.architectures" (dict "root" . "names" $image.nodes "labels" $hook.nodeSelector) | fromJsonArray -}}
{{- range list "arm64" "amd64" (default "" $recorded.architecture) -}}
{{- if and (has . $present) (has . $.Values.injector.architectures) -}}
{{- $architecture = . -}}
{{- end -}}
{{- end -}}
{{- if gt (len $present) 1 -}}
{{- if or $hook.affinity (not $architecture) -}}
{{- $pushed = false -}}
{{- end -}}
{{- $_ := set $answer "pin" ($pushed | ternary "true" "") -}}
{{- end -}}
{{- end -}}
{{- if $pushed -}}
{{- /* As the pushed image is tagged: by its version, which a digest does not tell. */ -}}
{{- $tag := $hook.image.digest | empty | ternary (default .Chart.AppVersion $hook.image.tag) .Chart.AppVersion -}}
{{- $_ := set $answer "value" (printf "%s/zarf-registry/init-hook:%s" (include "zarf-registry.address" .) $tag) -}}
{{- $_ := set $answer "pushed" "true" -}}
{{- $_ := set $answer "architecture" $architecture -}}
{{- end -}}
{{- $answer | toJson -}}
{{- end -}}

{{- /* Conditions: "true" or empty, the first line of the templates. */ -}}

{{- /* A registry of ours is deployed: proxy and nodeport mode. */ -}}
{{- define "zarf-registry.internal" -}}
{{- if ne (include "zarf-registry.mode" . | fromJson).value "external" -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.proxyMode" -}}
{{- if eq (include "zarf-registry.mode" . | fromJson).value "proxy" -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.nodePortMode" -}}
{{- if eq (include "zarf-registry.mode" . | fromJson).value "nodeport" -}}true{{- end -}}
{{- end -}}

{{- /* Programs of ours run on nodes, whose payload the Jobs make. */ -}}
{{- define "zarf-registry.injects" -}}
{{- if or (include "zarf-registry.internal" .) (include "zarf-registry.nodeConfig" .) -}}true{{- end -}}
{{- end -}}

{{- /* Proxies, where there are any, have a hostPort. In nodeport mode too: they may still serve during a switch. */ -}}
{{- define "zarf-registry.hostPort" -}}
{{- if and (include "zarf-registry.internal" .) (eq (include "zarf-registry.hostNetwork" .) "false") -}}true{{- end -}}
{{- end -}}

{{- /* What came with the modes is missing in the values that `helm upgrade --reuse-values` takes over from a release of
before. */ -}}
{{- define "zarf-registry.anonymousPull" -}}
{{- if (default dict .Values.auth).anonymousPull -}}true{{- end -}}
{{- end -}}

{{- /* Tools are told of the registry, in a namespace that is for such things. */ -}}
{{- define "zarf-registry.advertised" -}}
{{- if and (include "zarf-registry.internal" .) (ne (toString .Values.localRegistryHosting) "false") -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.podSecurityLabel" -}}
{{- if (default dict .Values.podSecurity).label -}}true{{- end -}}
{{- end -}}

{{- /* cert-manager's issuer is an object of the release's namespace that the user made. */ -}}
{{- define "zarf-registry.pki.issuerHere" -}}
{{- $pki := include "zarf-registry.pki" . | fromJson -}}
{{- $here := and (eq (toString $pki.issuer.kind) "Issuer") (eq (toString $pki.issuer.group) "cert-manager.io") -}}
{{- if and (eq $pki.value "certManager") $pki.issuer.name $here -}}true{{- end -}}
{{- end -}}

{{- /* A CronJob looks after the certificates. */ -}}
{{- define "zarf-registry.certificates" -}}
{{- if and (include "zarf-registry.internal" .) (include "zarf-registry.pki.settings" . | fromJson).schedule -}}true{{- end -}}
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
