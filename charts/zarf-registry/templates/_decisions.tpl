{{- /* The decisions of the chart. Order: explicit value, recorded state (mode, IP family and PKI mode only), cluster,
default. A decision is JSON with value and source (value, state, cluster or default). Jobs get the source, so a
rendering that cannot see the cluster never overwrites what is recorded there. */ -}}

{{- /* Takes root; explicit ("" and "auto" mean undecided); saved and fact, the helpers that return the recorded value
and the cluster's; default. */ -}}
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

{{- /* How nodes reach the registry: proxy, nodeport or external; for external with url. A new cluster gets nodeport
mode, unless node ports cannot work on its loopback addresses, or its state was lost in proxy mode; both give reason. */ -}}
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
{{- else if include "zarf-registry.cluster.proxies" . -}}
{{- /* The state was lost: an upgrade must not switch the mode. */ -}}
{{- dict "value" "proxy" "source" "cluster" "reason" "the state is missing, and proxies of this release exist" | toJson -}}
{{- else -}}
{{- $mode := dict "value" "nodeport" "source" (include "zarf-registry.cluster.seen" . | empty | ternary "default" "cluster") -}}
{{- if eq (include "zarf-registry.ipFamily" . | fromJson).value "IPv6" -}}
{{- $mode = merge (dict "value" "proxy" "reason" "kube-proxy serves no node port on [::1]") $mode -}}
{{- else -}}
{{- with include "zarf-registry.cluster.noLoopback" . -}}
{{- $mode = merge (dict "value" "proxy" "reason" .) $mode -}}
{{- end -}}
{{- end -}}
{{- toJson $mode -}}
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

{{- /* Whether the proxies use the node's network, "true" or "false": no packet can be rewritten so that a hostPort
answers on ::1, and CRI-O, which serves host ports itself, does not rewrite the source of those to 127.0.0.1. */ -}}
{{- define "zarf-registry.hostNetwork" -}}
{{- if kindIs "bool" .Values.proxy.hostNetwork -}}
{{- .Values.proxy.hostNetwork -}}
{{- else -}}
{{- or (eq (include "zarf-registry.ipFamily" . | fromJson).value "IPv6") (has "crio" (include "zarf-registry.cluster.runtimes" . | fromJsonArray)) -}}
{{- end -}}
{{- end -}}

{{- /* The address that image references begin with. */ -}}
{{- define "zarf-registry.address" -}}
{{- $mode := include "zarf-registry.mode" . | fromJson -}}
{{- if eq $mode.value "external" -}}
{{- $mode.url -}}
{{- else -}}
{{- $host := eq (include "zarf-registry.ipFamily" . | fromJson).value "IPv6" | ternary "[::1]" "127.0.0.1" -}}
{{- printf "%s:%d" $host (int .Values.port) -}}
{{- end -}}
{{- end -}}

{{- /* The image of injected programs on nodes of one architecture: value; source; reason, why it may carry them (value,
digest, name or default); pullPolicy. What the state records wins over the cluster, so that nodes which join or leave
change nothing. A recorded name without digest is only as good as the registry behind it. Takes root, architecture. */ -}}
{{- define "zarf-registry.pause" -}}
{{- $key := printf "Pause-%s" .architecture -}}
{{- if not (hasKey .root $key) -}}
{{- $answer := dict "value" "" "source" "default" "reason" "default" -}}
{{- $recorded := dict -}}
{{- if not .root.Values.injector.enabled -}}
{{- else if .root.Values.injector.image -}}
{{- $answer = dict "value" .root.Values.injector.image "source" "value" "reason" "value" -}}
{{- else -}}
{{- $recorded = get (default dict (include "zarf-registry.cluster.state" .root | fromJson).pauseImages) .architecture | default dict -}}
{{- if and $recorded.reference (not (contains "@" $recorded.reference)) -}}
{{- if include "zarf-registry.pause.served" (dict "root" .root "image" $recorded.reference) -}}
{{- $recorded = dict -}}
{{- end -}}
{{- end -}}
{{- $seen := include "zarf-registry.cluster.pause" . | fromJson -}}
{{- if $recorded.reference -}}
{{- $answer = dict "value" $recorded.reference "source" "state" "reason" $recorded.reason -}}
{{- else if $seen.image -}}
{{- $answer = dict "value" $seen.image "source" "cluster" "reason" $seen.reason -}}
{{- else -}}
{{- $answer = set $answer "value" (include "zarf-registry.pause.table" .root | fromJson).default -}}
{{- end -}}
{{- end -}}
{{- /* Nothing is pulled where the healer finds another image; nodes may be meant to pull an image of the user's. */ -}}
{{- $never := and (include "zarf-registry.healer" .root) (ne $answer.reason "value") -}}
{{- $_ := set .root $key (set $answer "pullPolicy" ($never | empty | ternary "IfNotPresent" "Never")) -}}
{{- end -}}
{{- get .root $key | toJson -}}
{{- end -}}

{{- /* That of the registry, and of what runs beside it. */ -}}
{{- define "zarf-registry.registry.pause" -}}
{{- include "zarf-registry.pause" (dict "root" . "architecture" (include "zarf-registry.architecture" . | fromJson).value) -}}
{{- end -}}

{{- /* DaemonSets whose pods run on all nodes, one for each architecture: JSON array of architecture, pause and name.
Takes root, name (without the architecture). */ -}}
{{- define "zarf-registry.daemonsets" -}}
{{- $found := list -}}
{{- range .root.Values.injector.architectures -}}
{{- $pause := include "zarf-registry.pause" (dict "root" $.root "architecture" .) | fromJson -}}
{{- $found = append $found (dict "architecture" . "pause" $pause "name" (printf "%s-%s" $.name .)) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{- /* The proxy DaemonSets of proxy mode. */ -}}
{{- define "zarf-registry.proxies" -}}
{{- include "zarf-registry.daemonsets" (dict "root" . "name" (printf "%s-proxy" (include "zarf-registry.fullname" .))) -}}
{{- end -}}

{{- /* The image of the Jobs: value; nodes, the ready nodes that report it; pushed, the architecture if it is the image
that finish pushed into this registry. The published image is named by digest where nodes report that digest, or none
reports its tag; archives and copies in other registries may have other digests. The pushed image serves clusters where
no node has the configured one. It must be of the configured version, since it carries the payload, and its address must
not change in the upgrade that the Jobs are part of. A nodeSelector or affinity for the Jobs excludes both. */ -}}
{{- define "zarf-registry.hookImage" -}}
{{- $configured := .Values.image -}}
{{- $digest := get $configured.digests "init-hook" -}}
{{- $answer := dict "value" (include "zarf-registry.image" (dict "root" . "program" "init-hook")) "nodes" list "pushed" "" -}}
{{- if not (or .Values.initHook.nodeSelector .Values.initHook.affinity) -}}
{{- $_ := set $answer "nodes" (include "zarf-registry.cluster.ready" (dict "root" . "image" $answer.value) | fromJsonArray) -}}
{{- with and (not $digest) .ClusterNodes (include "zarf-registry.hookDigests" . | fromJson).index -}}
{{- $image := include "zarf-registry.image" (dict "root" $ "program" "init-hook" "digest" .) -}}
{{- $nodes := include "zarf-registry.cluster.ready" (dict "root" $ "image" $image) | fromJsonArray -}}
{{- if or $nodes (and (not $answer.nodes) (hasPrefix "ghcr.io/zarf-dev/" $image)) -}}
{{- $answer = merge (dict "value" $image "nodes" $nodes) $answer -}}
{{- end -}}
{{- end -}}
{{- if not (or $answer.nodes $digest (eq $configured.pullPolicy "Never")) -}}
{{- $state := include "zarf-registry.cluster.state" . | fromJson -}}
{{- $address := include "zarf-registry.address" . -}}
{{- $tag := printf ":%s" (default .Chart.AppVersion $configured.tag) -}}
{{- with $state.hookImage -}}
{{- $digest := regexFind "@sha256:[0-9a-f]{64}$" .reference -}}
{{- $name := .reference | trimSuffix $digest -}}
{{- if and .architecture (hasSuffix $tag $name) (ne $state.mode "external") (eq $state.address $address) -}}
{{- $image := printf "%s/%s" $address (empty $digest | ternary $name (printf "%s%s" ($name | trimSuffix $tag) $digest)) -}}
{{- $nodes := include "zarf-registry.cluster.ready" (dict "root" $ "image" $image) | fromJsonArray -}}
{{- $answer = dict "value" $image "nodes" $nodes "pushed" .architecture -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $answer | toJson -}}
{{- end -}}

{{- /* The source of certificates: value (the PKI mode) and source; existing, the names of the user's Secrets; issuer,
whose name may be empty. A mode from the values takes only what the values name; a recorded mode keeps what was recorded
where the values are silent. */ -}}
{{- define "zarf-registry.pki" -}}
{{- $pki := .Values.pki -}}
{{- $existing := deepCopy $pki.existingSecret -}}
{{- $answer := dict "value" "internal" "source" "default" "existing" $existing "issuer" $pki.certManager.issuerRef -}}
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

{{- /* Condition: init-hook issues certificates from a CA of the release's own (state.PKI.OwnCA). */ -}}
{{- define "zarf-registry.pki.ownCA" -}}
{{- $pki := include "zarf-registry.pki" . | fromJson -}}
{{- $issues := or (not $pki.existing.push) (and (include "zarf-registry.cache" .) (not $pki.existing.cache)) -}}
{{- if or (eq $pki.value "internal") (and (eq $pki.value "existingSecret") $issues) -}}true{{- end -}}
{{- end -}}

{{- /* The user's Secret with the push credential; may be empty. */ -}}
{{- define "zarf-registry.pushSecret" -}}
{{- .Values.auth.existingSecret -}}
{{- end -}}

{{- /* More push credentials: JSON array of name, secret (of the user; may be empty), repositories. */ -}}
{{- define "zarf-registry.pushCredentials" -}}
{{- $list := list -}}
{{- range .Values.auth.push -}}
{{- $list = append $list (dict "name" .name "secret" (default "" .existingSecret) "repositories" (default list .repositories)) -}}
{{- end -}}
{{- $list | toJson -}}
{{- end -}}

{{- /* Condition: a push credential is a copy of the user's. */ -}}
{{- define "zarf-registry.copiesPush" -}}
{{- $secrets := list (include "zarf-registry.pushSecret" .) -}}
{{- range include "zarf-registry.pushCredentials" . | fromJsonArray -}}
{{- $secrets = append $secrets .secret -}}
{{- end -}}
{{- if compact $secrets -}}true{{- end -}}
{{- end -}}

{{- /* The Secrets of generated push credentials with a name, also of those that this release had before: JSON array of
names. */ -}}
{{- define "zarf-registry.namedSecrets" -}}
{{- $names := default list (include "zarf-registry.cluster.state" . | fromJson).pushCredentials -}}
{{- range include "zarf-registry.pushCredentials" . | fromJsonArray -}}
{{- if not .secret -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- $secrets := list -}}
{{- range $names | uniq | sortAlpha -}}
{{- $secrets = append $secrets (printf "%s-credentials-%s" (include "zarf-registry.fullname" $) .) -}}
{{- end -}}
{{- $secrets | toJson -}}
{{- end -}}

{{- /* The user's Secrets that the Jobs copy: JSON array of names. */ -}}
{{- define "zarf-registry.sourceSecrets" -}}
{{- $pki := include "zarf-registry.pki" . | fromJson -}}
{{- $names := list (include "zarf-registry.pushSecret" .) -}}
{{- range include "zarf-registry.pushCredentials" . | fromJsonArray -}}
{{- $names = append $names .secret -}}
{{- end -}}
{{- if eq $pki.value "existingSecret" -}}
{{- $names = values $pki.existing | sortAlpha | concat $names -}}
{{- end -}}
{{- $names | compact | uniq | toJson -}}
{{- end -}}

{{- /* Suffixes of the Secrets that the Jobs create, and of those that cert-manager writes for them
(internal/release/names). */ -}}
{{- define "zarf-registry.madeSecrets" -}}
{{- list "state" "ca" "server-tls" "node-tls" "push-tls" "cache-tls" "credentials" "auth" "pull" | toJson -}}
{{- end -}}

{{- define "zarf-registry.issuedSecrets" -}}
{{- list "ca-issued" "server-issued" "node-issued" "push-issued" "cache-issued" | toJson -}}
{{- end -}}

{{- /* The digests of init-hook's images as JSON: of the images that finish pushes, by architecture, and of the
published index. make images writes the file; a source checkout, and the chart that init-hook carries, have none. They
are of this version only. */ -}}
{{- define "zarf-registry.hookDigests" -}}
{{- if has .Values.image.tag (list "" nil .Chart.AppVersion) -}}
{{- .Files.Get "files/init-hook.json" | default "{}" -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{- /* The digest of that image, from the chart or the state; empty if unknown. Anyone who may push can move a tag. Takes
root, tag, architecture. */ -}}
{{- define "zarf-registry.hookDigest" -}}
{{- $recorded := default dict (include "zarf-registry.cluster.state" .root | fromJson).hookImage -}}
{{- $prefix := printf "zarf-registry/init-hook:%s@" .tag -}}
{{- with get (include "zarf-registry.hookDigests" .root | fromJson) .architecture -}}
{{- . -}}
{{- else -}}
{{- if and (eq .architecture (default "" $recorded.architecture)) (hasPrefix $prefix (default "" $recorded.reference)) -}}
{{- $recorded.reference | trimPrefix $prefix -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The image of the CronJob: value; pushed, "true" if it is in this registry; architecture, the only one it can run
on, empty if all nodes have the same; pin, "true" if finish must run on that architecture too, since finish pushes its
own image. The pushed image needs no copy on any node. It is not used if nobody pushes it (an incompatible workstation,
which then records no hookImage), or if a user's affinity leaves the architecture of finish open. */ -}}
{{- define "zarf-registry.certificates.image" -}}
{{- $hook := .Values.initHook -}}
{{- $image := include "zarf-registry.hookImage" . | fromJson -}}
{{- $answer := dict "value" (include "zarf-registry.image" (dict "root" . "program" "init-hook")) "pushed" "" "architecture" "" "pin" "" -}}
{{- $pushed := and $hook.pushImages (ne .Values.image.pullPolicy "Never") -}}
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
{{- /* The tag of the pushed image: the version, which a digest does not contain. */ -}}
{{- $tag := get .Values.image.digests "init-hook" | empty | ternary (default .Chart.AppVersion .Values.image.tag) .Chart.AppVersion -}}
{{- $digest := include "zarf-registry.hookDigest" (dict "root" . "tag" $tag "architecture" $architecture) -}}
{{- $version := empty $digest | ternary (printf ":%s" $tag) (printf "@%s" $digest) -}}
{{- $_ := set $answer "value" (printf "%s/zarf-registry/init-hook%s" (include "zarf-registry.address" .) $version) -}}
{{- $_ := set $answer "pushed" "true" -}}
{{- $_ := set $answer "architecture" $architecture -}}
{{- end -}}
{{- $answer | toJson -}}
{{- end -}}

{{- /* Conditions: "true" or empty. Templates begin with one. */ -}}

{{- /* The chart deploys a registry: proxy and nodeport mode. */ -}}
{{- define "zarf-registry.internal" -}}
{{- if ne (include "zarf-registry.mode" . | fromJson).value "external" -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.proxyMode" -}}
{{- if eq (include "zarf-registry.mode" . | fromJson).value "proxy" -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.nodePortMode" -}}
{{- if eq (include "zarf-registry.mode" . | fromJson).value "nodeport" -}}true{{- end -}}
{{- end -}}

{{- /* In proxy mode too, a Service owns the node port. */ -}}
{{- define "zarf-registry.portOwned" -}}
{{- if or (include "zarf-registry.nodePortMode" .) (ne (toString .Values.reservePort) "false") -}}true{{- end -}}
{{- end -}}

{{- /* The Jobs create a payload, because programs of the project run on nodes. */ -}}
{{- define "zarf-registry.injects" -}}
{{- if or (include "zarf-registry.internal" .) (include "zarf-registry.nodeConfig" .) -}}true{{- end -}}
{{- end -}}

{{- /* Proxies use a hostPort. True in nodeport mode too: proxies may still serve during a switch. */ -}}
{{- define "zarf-registry.hostPort" -}}
{{- if and (include "zarf-registry.internal" .) (eq (include "zarf-registry.hostNetwork" .) "false") -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.anonymousPull" -}}
{{- if .Values.auth.anonymousPull -}}true{{- end -}}
{{- end -}}

{{- /* finish announces the registry in kube-public (KEP-1755). */ -}}
{{- define "zarf-registry.advertised" -}}
{{- $wanted := kindIs "bool" .Values.localRegistryHosting | ternary .Values.localRegistryHosting .Values.zarf.compatible -}}
{{- if and (include "zarf-registry.internal" .) $wanted -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.podSecurityLabel" -}}
{{- if .Values.podSecurity.label -}}true{{- end -}}
{{- end -}}

{{- /* The user's cert-manager issuer is an object in the release's namespace. */ -}}
{{- define "zarf-registry.pki.issuerHere" -}}
{{- $pki := include "zarf-registry.pki" . | fromJson -}}
{{- $here := and (eq (toString $pki.issuer.kind) "Issuer") (eq (toString $pki.issuer.group) "cert-manager.io") -}}
{{- if and (eq $pki.value "certManager") $pki.issuer.name $here -}}true{{- end -}}
{{- end -}}

{{- /* A CronJob renews certificates. */ -}}
{{- define "zarf-registry.certificates" -}}
{{- if and (include "zarf-registry.internal" .) .Values.pki.rotation.schedule -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.makesClaim" -}}
{{- if and (include "zarf-registry.mountsClaim" .) (not .Values.registry.persistence.existingClaim) -}}true{{- end -}}
{{- end -}}

{{- /* Condition: the registry's pod has a claim, to store images or to copy them to S3. */ -}}
{{- define "zarf-registry.mountsClaim" -}}
{{- with .Values.registry -}}
{{- if and .persistence.enabled (or (eq .storage.type "filesystem") (include "zarf-registry.copiesFromVolume" $)) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Condition: the registry's pod copies images from the volume to S3. */ -}}
{{- define "zarf-registry.copiesFromVolume" -}}
{{- with .Values.registry.storage -}}
{{- if and (eq .type "s3") .s3.copyFromVolume -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Two registry pods can run at once, if only during a rollout. */ -}}
{{- define "zarf-registry.sharedStorage" -}}
{{- with .Values.registry -}}
{{- $claim := and (eq .storage.type "filesystem") .persistence.enabled -}}
{{- /* Nothing may write to the volume, or to S3, while a pod copies. */ -}}
{{- $s3 := and (eq .storage.type "s3") (not (include "zarf-registry.copiesFromVolume" $)) -}}
{{- if or $s3 (and $claim (has "ReadWriteMany" .persistence.accessModes)) -}}true{{- end -}}
{{- end -}}
{{- end -}}
