{{- /* The decisions of the chart. Each file begins with "zarf-registry.decide", which makes them once per rendering and
keeps them in the root as .zr; everything else reads them there.

Order: explicit value, recorded state (mode, IP family and PKI mode only), cluster, default. A decision that the Jobs are
told has value and source (value, state, cluster or default), so that a rendering which cannot see the cluster never
overwrites what is recorded there. */ -}}
{{- define "zarf-registry.decide" -}}
{{- if not (hasKey . "zr") -}}
{{- include "zarf-registry.decide.maps" . -}}
{{- $_ := set . "zr" (dict "cluster" dict "name" (include "zarf-registry.fullname" .)) -}}
{{- $_ := set .zr "namespace" (default .Release.Namespace .Values.namespaceOverride) -}}
{{- $_ := set .zr "images" (dict
  "init-hook" .Values.initHook.image "registry" .Values.registry.image "registry-node" .Values.proxy.image) -}}
{{- include "zarf-registry.cluster.loadState" . -}}
{{- include "zarf-registry.decide.mode" . -}}
{{- include "zarf-registry.decide.proxies" . -}}
{{- include "zarf-registry.decide.registry" . -}}
{{- include "zarf-registry.decide.expose" . -}}
{{- include "zarf-registry.decide.nodeConfig" . -}}
{{- include "zarf-registry.decide.programs" . -}}
{{- include "zarf-registry.decide.pause" . -}}
{{- include "zarf-registry.decide.pki" . -}}
{{- include "zarf-registry.decide.secrets" . -}}
{{- include "zarf-registry.decide.pods" . -}}
{{- include "zarf-registry.decide.hookImage" . -}}
{{- include "zarf-registry.decide.cronJobImage" . -}}
{{- include "zarf-registry.decide.settings" . -}}
{{- end -}}
{{- end -}}

{{- /* Maps that a user has set to null are empty. */ -}}
{{- define "zarf-registry.decide.maps" -}}
{{- range list "commonLabels" "commonAnnotations" "podLabels" "podAnnotations" "registry.podLabels" "registry.affinity"
  "registry.podSecurityContext"
  "proxy.podLabels" "proxy.nodeSelector" "initHook.nodeSelector"
  "nodeConfig.containerd.hosts" -}}
{{- $map := $.Values -}}
{{- range splitList "." . | initial -}}
{{- $map = get $map . -}}
{{- end -}}
{{- $key := splitList "." . | last -}}
{{- if not (kindIs "map" (get $map $key)) -}}
{{- $_ := set $map $key dict -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* How nodes reach the registry:
  ipFamily      IPv4, IPv6 or DualStack
  mode          proxy, nodeport or external; for external with url. A new cluster gets nodeport mode, unless node ports
                cannot work on its loopback addresses, or its state was lost in proxy mode; both give reason
  proxyMode, nodePortMode
  internal      the chart deploys a registry: both of these modes
  address       what image references begin with
  portOwned     a Service owns the node port, in proxy mode too
  advertised    finish announces the registry in kube-public (KEP-1755) */ -}}
{{- define "zarf-registry.decide.mode" -}}
{{- $family := dict "value" .Values.ipFamily "source" "value" -}}
{{- if and (not $family.value) .zr.state.ipFamily -}}
{{- $family = dict "value" .zr.state.ipFamily "source" "state" -}}
{{- else if not $family.value -}}
{{- $seen := include "zarf-registry.cluster.ipFamily" . -}}
{{- $family = dict "value" (default "IPv4" $seen) "source" (empty $seen | ternary "default" "cluster") -}}
{{- end -}}
{{- $mode := dict -}}
{{- if .Values.registryURL -}}
{{- $url := .Values.registryURL | trimPrefix "https://" | trimSuffix "/" -}}
{{- $mode = dict "value" "external" "source" "value" "url" $url -}}
{{- else if kindIs "bool" .Values.registryProxy -}}
{{- $mode = dict "value" (.Values.registryProxy | ternary "proxy" "nodeport") "source" "value" -}}
{{- else if eq .zr.state.mode "external" -}}
{{- $mode = dict "value" "external" "source" "state" "url" .zr.state.address -}}
{{- else if .zr.state.mode -}}
{{- $mode = dict "value" .zr.state.mode "source" "state" -}}
{{- else if include "zarf-registry.cluster.proxies" . -}}
{{- /* The state was lost: an upgrade must not switch the mode. */ -}}
{{- $reason := "the state is missing, and proxies of this release exist" -}}
{{- $mode = dict "value" "proxy" "source" "cluster" "reason" $reason -}}
{{- else -}}
{{- include "zarf-registry.cluster.loadService" . -}}
{{- $reason := "kube-proxy serves no node port on [::1]" -}}
{{- if ne $family.value "IPv6" -}}
{{- $reason = include "zarf-registry.cluster.noLoopback" . -}}
{{- end -}}
{{- $mode = dict "value" "nodeport" "source" (empty .zr.cluster.service | ternary "default" "cluster") -}}
{{- if $reason -}}
{{- $mode = merge (dict "value" "proxy" "reason" $reason) $mode -}}
{{- end -}}
{{- end -}}
{{- $proxyMode := eq $mode.value "proxy" -}}
{{- $nodePortMode := eq $mode.value "nodeport" -}}
{{- $internal := or $proxyMode $nodePortMode -}}
{{- $host := eq $family.value "IPv6" | ternary "[::1]" "127.0.0.1" -}}
{{- $hosting := .Values.localRegistryHosting -}}
{{- $_ := merge .zr (dict
  "ipFamily" $family
  "mode" $mode
  "proxyMode" $proxyMode
  "nodePortMode" $nodePortMode
  "internal" $internal
  "address" ($internal | ternary (printf "%s:%d" $host (int .Values.port)) $mode.url)
  "portOwned" (or $nodePortMode (ne (toString .Values.reservePort) "false"))
  "advertised" (and $internal (kindIs "bool" $hosting | ternary $hosting .Values.zarf.compatible))) -}}
{{- end -}}

{{- /* The proxies, and what nodes and API server require of pods:
  tls          whether the proxies serve TLS as well: always or never
  hostNetwork  the proxies use the node's network: no packet can be rewritten so that a hostPort answers on ::1, and
               CRI-O, which serves host ports itself, does not rewrite the source of those to 127.0.0.1
  nodePorts    the ports that they listen on there
  hostPort     they use a hostPort. In nodeport mode too: proxies may still serve during a switch
  openshift    users and groups are left to OpenShift. Asks Capabilities instead of lookup: helm template and Argo CD set
               them with --api-versions */ -}}
{{- define "zarf-registry.decide.proxies" -}}
{{- $tls := dict "value" .Values.proxy.tls "source" "value" -}}
{{- $hostNetwork := .Values.proxy.hostNetwork -}}
{{- if .zr.internal -}}
{{- if not $tls.value -}}
{{- $seen := include "zarf-registry.cluster.tls" . -}}
{{- $tls = dict "value" (default "never" $seen) "source" (empty $seen | ternary "default" "cluster") -}}
{{- end -}}
{{- if and (not (kindIs "bool" $hostNetwork)) (ne .zr.ipFamily.value "IPv6") -}}
{{- include "zarf-registry.cluster.loadRuntimes" . -}}
{{- $hostNetwork = has "crio" .zr.cluster.runtimes -}}
{{- end -}}
{{- end -}}
{{- $hostNetwork = kindIs "bool" $hostNetwork | ternary $hostNetwork true -}}
{{- $openshift := .Values.openshift.enabled -}}
{{- if not (kindIs "bool" $openshift) -}}
{{- $openshift = .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- end -}}
{{- $ports := list -}}
{{- if and .zr.proxyMode $hostNetwork -}}
{{- $ports = list (int .Values.port) (int .Values.proxy.metricsPort) -}}
{{- end -}}
{{- $_ := merge .zr (dict
  "tls" $tls
  "hostNetwork" $hostNetwork
  "nodePorts" $ports
  "hostPort" (and .zr.internal (not $hostNetwork))
  "openshift" $openshift) -}}
{{- end -}}

{{- /* What the chart deploys beside the registry's Deployment:
  registry      several, there is more than one pod; mountsClaim, to store images; sharedStorage, two pods can run at once,
                if only during a rollout; serviceAccount, its name
  cache         wanted, the values ask for caches; enabled; deployment, with cache.replicas
  certificates  name of the CronJob that renews certificates, if it is rendered. At most 52 characters: Jobs append a
                timestamp
  gc            enabled, there is a CronJob for garbage collection; prunes, it first deletes the images that a rule selects
  zarf          the registry is in place of the one of Zarf's init package */ -}}
{{- define "zarf-registry.decide.registry" -}}
{{- $registry := .Values.registry -}}
{{- $cache := .Values.cache -}}
{{- $claim := $registry.persistence -}}
{{- $filesystem := eq $registry.storage.type "filesystem" -}}
{{- $s3 := eq $registry.storage.type "s3" -}}
{{- $many := and $filesystem $claim.enabled (has "ReadWriteMany" $claim.accessModes) -}}
{{- $prune := $registry.garbageCollection.prune -}}
{{- $gc := and .zr.internal $registry.garbageCollection.enabled -}}
{{- $certificates := printf "%s-certificates" (.zr.name | trunc 39 | trimSuffix "-") -}}
{{- $wanted := or (gt (int $cache.replicas) 0) (not (empty $cache.nodeSelector)) -}}
{{- $_ := merge .zr (dict
  "registry" (dict
    "several" (gt (int $registry.replicas) 1)
    "mountsClaim" (and $claim.enabled $filesystem)
    "sharedStorage" (or $s3 $many)
    "serviceAccount" (default ($registry.serviceAccount.create | ternary .zr.name "default") $registry.serviceAccount.name))
  "cache" (dict
    "wanted" $wanted
    "enabled" (and .zr.proxyMode $wanted)
    "deployment" (and .zr.proxyMode (gt (int $cache.replicas) 0)))
  "certificates" (and .zr.internal .Values.pki.rotation.schedule | empty | ternary "" $certificates)
  "gc" (dict
    "enabled" $gc
    "prunes" (and $gc (not (empty (or $prune.olderThan $prune.keepLast $prune.match $prune.untagged)))))
  "zarf" (and .Values.zarf.compatible .zr.internal)) -}}
{{- end -}}

{{- /* Access from outside of the cluster, and rewriting:
  expose   asked, the values ask for it; enabled; tlsSecret, the Secret with the certificate for clients outside, which
           may be empty; address, HOST[:PORT] for them, empty if unknown
  rewrite  byRepository, only references to repositories that the registry has are rewritten, whose names the healer
           copies; denies, pods with other references are refused; name of the policies */ -}}
{{- define "zarf-registry.decide.expose" -}}
{{- $expose := .Values.expose -}}
{{- $service := $expose.service -}}
{{- $asked := or $service.enabled $expose.ingress.enabled $expose.gateway.enabled -}}
{{- $host := first $expose.hosts -}}
{{- $address := "" -}}
{{- if not $host -}}
{{- else if or $expose.ingress.enabled $expose.gateway.enabled -}}
{{- $address = $host -}}
{{- else if and (eq $service.type "NodePort") $service.nodePort -}}
{{- $address = printf "%s:%d" $host (int $service.nodePort) -}}
{{- else if eq $service.type "LoadBalancer" -}}
{{- $address = eq (int $service.port) 443 | ternary $host (printf "%s:%d" $host (int $service.port)) -}}
{{- end -}}
{{- $issued := empty $expose.tls.certManager.issuerRef.name | ternary "" (printf "%s-expose-tls" .zr.name) -}}
{{- $missing := .Values.rewrite.enabled | ternary .Values.rewrite.missing "" -}}
{{- $_ := merge .zr (dict
  "expose" (dict
    "asked" $asked
    "enabled" (and .zr.internal $asked)
    "tlsSecret" (default $issued $expose.tls.existingSecret)
    "address" $address)
  "rewrite" (dict
    "byRepository" (has $missing (list "keep" "deny"))
    "denies" (eq $missing "deny")
    "name" (printf "%s.%s-rewrite" .zr.namespace .zr.name))) -}}
{{- end -}}

{{- /* The project's programs on nodes:
  injects         the Jobs create a payload, because there are any
  healer          the chart deploys healers, which give its own pods an image that their node has
  architecture    that of the registry, and of what runs beside it
  payloadDigests  digests of the payloads by PROGRAM-ARCHITECTURE. make payload writes the file; a source checkout has none
  payloadID       the part of a payload's names that changes with the version, at most 20 characters, if there is no digest
  hookDigests     digests of init-hook's images of this version: of those that finish pushes, by architecture, and of the
                  published index. make images writes the file; a source checkout, and the chart that init-hook carries,
                  have none */ -}}
{{- define "zarf-registry.decide.programs" -}}
{{- $injects := or .zr.internal .zr.nodeConfig.enabled -}}
{{- $healer := and $injects .Values.injector.enabled (ne (toString .Values.healer.enabled) "false") -}}
{{- $architecture := dict "value" .Values.registry.architecture "source" "value" -}}
{{- if and (or .zr.internal $healer) (not $architecture.value) -}}
{{- $seen := include "zarf-registry.cluster.architecture" . -}}
{{- $source := empty $seen | ternary "default" "cluster" -}}
{{- $architecture = dict "value" (default (first .Values.injector.architectures) $seen) "source" $source -}}
{{- end -}}
{{- if and (or .zr.internal $healer) (not (has $architecture.value .Values.injector.architectures)) -}}
{{- fail (printf "zarf-registry: registry.architecture: %s is not among injector.architectures; add it there" $architecture.value) -}}
{{- end -}}
{{- $image := .Values.initHook.image -}}
{{- $id := default .Chart.AppVersion $image.tag | lower | replace "_" "-" | trunc 20 -}}
{{- $id = regexReplaceAll "[-.]+$" $id "" -}}
{{- with $image.digest -}}
{{- $id = . | trimPrefix "sha256:" | trunc 12 -}}
{{- end -}}
{{- $hookDigests := "{}" -}}
{{- if has $image.tag (list "" nil .Chart.AppVersion) -}}
{{- $hookDigests = .Files.Get "files/init-hook.json" | default "{}" -}}
{{- end -}}
{{- $_ := merge .zr (dict
  "injects" $injects
  "healer" $healer
  "architecture" $architecture
  "payloadDigests" (.Files.Get "files/programs.json" | default "{}" | fromJson)
  "payloadID" $id
  "hookDigests" (fromJson $hookDigests)) -}}
{{- end -}}

{{- /* The source of certificates: value (the PKI mode) and source; existing, the names of the user's Secrets; issuer;
issuerHere, the user's issuer is an object in the release's namespace; ownCA, init-hook issues
certificates from a CA of the release's own (state.PKI.OwnCA). A mode from the values takes only what the values name; a
recorded mode keeps what was recorded where the values are silent. */ -}}
{{- define "zarf-registry.decide.pki" -}}
{{- $existing := deepCopy .Values.pki.existingSecret -}}
{{- $issuer := .Values.pki.certManager.issuerRef -}}
{{- $value := .Values.pki.mode -}}
{{- $source := "value" -}}
{{- if not $value -}}
{{- include "zarf-registry.cluster.loadService" . -}}
{{- $value = "internal" -}}
{{- $source = empty .zr.cluster.service | ternary "default" "cluster" -}}
{{- $saved := default dict .zr.state.pki -}}
{{- with $saved.mode -}}
{{- $value = . -}}
{{- $source = "state" -}}
{{- range $key, $name := $existing -}}
{{- $_ := set $existing $key (default (dig "existing" $key "" $saved) $name) -}}
{{- end -}}
{{- if and $saved.issuer (not $issuer.name) -}}
{{- $issuer = $saved.issuer -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $here := and (eq (toString $issuer.kind) "Issuer") (eq (toString $issuer.group) "cert-manager.io") -}}
{{- $issues := or (not $existing.push) .zr.cache.enabled -}}
{{- $_ := set .zr "pki" (dict
  "value" $value
  "source" $source
  "existing" $existing
  "issuer" $issuer
  "issuerHere" (and (eq $value "certManager") (not (empty $issuer.name)) $here)
  "ownCA" (or (eq $value "internal") (and (eq $value "existingSecret") $issues))) -}}
{{- end -}}

{{- /* Secrets:
  secrets      made, suffixes of those that the Jobs create, and issued, of those that cert-manager writes for them
               (internal/release/names); sources, the user's, which the Jobs copy; ours, names of the first two
  pullSecrets  references: global ones first, then the chart's */ -}}
{{- define "zarf-registry.decide.secrets" -}}
{{- $made := list "state" "ca" "server-tls" "node-tls" "push-tls" "cache-tls" "credentials" "auth" "pull" -}}
{{- $issued := list "server-issued" "node-issued" "push-issued" "cache-issued" -}}
{{- $ours := list -}}
{{- range concat $made $issued -}}
{{- $ours = append $ours (printf "%s-%s" $.zr.name .) -}}
{{- end -}}
{{- $sources := compact (list .Values.auth.existingSecret) -}}
{{- if eq .zr.pki.value "existingSecret" -}}
{{- $sources = values .zr.pki.existing | sortAlpha | concat $sources | compact -}}
{{- end -}}
{{- $pull := list -}}
{{- range concat (default list (default dict .Values.global).imagePullSecrets) .Values.imagePullSecrets -}}
{{- $pull = append $pull (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- $_ := merge .zr (dict
  "secrets" (dict
    "made" $made
    "issued" $issued
    "sources" (uniq $sources)
    "ours" $ours)
  "pullSecrets" (uniq $pull)) -}}
{{- end -}}

{{- /* Sets .zr.pods to what the pods of a component have, by the path of its values:
  labels, annotations, env, priorityClassName  those of all pods, and the component's own, which take precedence. The
                                               healer has the class of the registry
  tolerations, resources  the component's. The program that configures nodes takes 8.4 MiB, and 11 MiB more while files
                          are written */ -}}
{{- define "zarf-registry.decide.pods" -}}
{{- $all := .Values -}}
{{- $fixed := dict
  "healer" (dict "requests" (dict "cpu" "5m" "memory" "16Mi") "limits" (dict "memory" "64Mi"))
  "nodeConfig" (dict "requests" (dict "cpu" "1m" "memory" "16Mi") "limits" (dict "memory" "64Mi")) -}}
{{- $pods := dict -}}
{{- range $component := list "registry" "proxy" "cache" "healer" "nodeConfig" "initHook" -}}
{{- $own := get $all $component -}}
{{- $names := list -}}
{{- range $own.extraEnv -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $env := list -}}
{{- range $all.extraEnv -}}
{{- if not (has .name $names) -}}
{{- $env = append $env . -}}
{{- end -}}
{{- end -}}
{{- $tolerations := default list $own.tolerations -}}
{{- if and (eq $component "cache") (kindIs "invalid" $own.tolerations) -}}
{{- $tolerations = $all.registry.tolerations -}}
{{- end -}}
{{- if eq $component "healer" -}}
{{- $tolerations = list (dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists") -}}
{{- end -}}
{{- $priority := eq $component "healer" | ternary $all.registry.priorityClassName $own.priorityClassName -}}
{{- $_ := set $pods $component (dict
  "labels" (merge dict (default dict $own.podLabels) $all.podLabels)
  "annotations" (merge dict (default dict $own.podAnnotations) $all.podAnnotations)
  "env" (concat $env (default list $own.extraEnv))
  "priorityClassName" (default $all.priorityClassName $priority)
  "tolerations" $tolerations
  "resources" (default $own.resources (get $fixed $component))) -}}
{{- end -}}
{{- $_ := set .zr "pods" $pods -}}
{{- end -}}

{{- /* hookTimeout, that of the Jobs, which grows with the number of nodes: 4 minutes for up to 50, and 2 s for each other.
The image of the Jobs: value; nodes, the ready nodes that report it; pushed, the architecture if it is the image
that finish pushed into this registry. The published image is named by digest where nodes report that digest, or none
reports its tag; archives and copies in other registries may have other digests. The pushed image serves clusters where
no node has the configured one. It must be of the configured version, since it carries the payload, and its address must
not change in the upgrade that the Jobs are part of. A nodeSelector for the Jobs excludes both. */ -}}
{{- define "zarf-registry.decide.hookImage" -}}
{{- $configured := .Values.initHook.image -}}
{{- $digest := $configured.digest -}}
{{- $image := include "zarf-registry.image" (list . "init-hook") -}}
{{- $nodes := list -}}
{{- $pushed := "" -}}
{{- if not .Values.initHook.nodeSelector -}}
{{- $nodes = include "zarf-registry.cluster.ready" (list . $image) | fromJsonArray -}}
{{- with and (not $digest) .zr.cluster.nodes .zr.hookDigests.index -}}
{{- $published := include "zarf-registry.image" (list $ "init-hook" .) -}}
{{- $holders := include "zarf-registry.cluster.ready" (list $ $published) | fromJsonArray -}}
{{- if or $holders (and (not $nodes) (hasPrefix "ghcr.io/zarf-dev/" $published)) -}}
{{- $image = $published -}}
{{- $nodes = $holders -}}
{{- end -}}
{{- end -}}
{{- $usable := not (or $nodes $digest (eq .Values.image.pullPolicy "Never")) -}}
{{- $same := and (ne .zr.state.mode "external") (eq .zr.state.address .zr.address) -}}
{{- with and $usable $same .zr.state.hookImage -}}
{{- $tag := printf ":%s" (default $.Chart.AppVersion $configured.tag) -}}
{{- $recorded := regexFind "@sha256:[0-9a-f]{64}$" .reference -}}
{{- $name := .reference | trimSuffix $recorded -}}
{{- if and .architecture (eq $name (printf "zarf-registry/init-hook%s" $tag)) -}}
{{- $path := empty $recorded | ternary $name (printf "%s%s" ($name | trimSuffix $tag) $recorded) -}}
{{- $image = printf "%s/%s" $.zr.address $path -}}
{{- $nodes = include "zarf-registry.cluster.ready" (list $ $image) | fromJsonArray -}}
{{- $pushed = .architecture -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $timeout := .Values.initHook.timeout -}}
{{- if not $timeout -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $timeout = len .zr.cluster.nodes | mul 2 | add 140 | max 240 | printf "%ds" -}}
{{- end -}}
{{- $_ := merge .zr (dict
  "hookImage" (dict "value" $image "nodes" $nodes "pushed" $pushed)
  "hookTimeout" $timeout) -}}
{{- end -}}

{{- /* The image of CronJobs and of the pods of helm test: value; pushed, it is in this registry; architecture, the only
one it can run on, empty if all nodes have the same; pin, finish must run on that architecture too, since finish pushes
its own image. The pushed image needs no copy on any node. It is not used if nobody pushes it (an incompatible
workstation, which then records no hookImage). */ -}}
{{- define "zarf-registry.decide.cronJobImage" -}}
{{- $hook := .Values.initHook -}}
{{- $pushed := and .zr.internal (ne .Values.image.pullPolicy "Never") -}}
{{- $architecture := default (get $hook.nodeSelector "kubernetes.io/arch") .zr.hookImage.pushed -}}
{{- $pin := false -}}
{{- $recorded := default dict .zr.state.hookImage -}}
{{- if and $pushed (not $architecture) -}}
{{- if has .zr.state.mode (list "proxy" "nodeport") -}}
{{- $pushed = not (empty $recorded.architecture) -}}
{{- end -}}
{{- $present := include "zarf-registry.cluster.architectures" (list . .zr.hookImage.nodes) | fromJsonArray -}}
{{- range list "arm64" "amd64" (default "" $recorded.architecture) -}}
{{- if and (has . $present) (has . $.Values.injector.architectures) -}}
{{- $architecture = . -}}
{{- end -}}
{{- end -}}
{{- if gt (len $present) 1 -}}
{{- $pushed = and $pushed (not (empty $architecture)) -}}
{{- $pin = $pushed -}}
{{- end -}}
{{- end -}}
{{- $image := include "zarf-registry.image" (list . "init-hook") -}}
{{- if $pushed -}}
{{- /* The tag of the pushed image: the version, which a digest does not contain. */ -}}
{{- $tag := empty $hook.image.digest | ternary (default .Chart.AppVersion $hook.image.tag) .Chart.AppVersion -}}
{{- /* Its digest, from the chart or the state: anyone who may push can move a tag. */ -}}
{{- $digest := get .zr.hookDigests $architecture -}}
{{- $prefix := printf "zarf-registry/init-hook:%s@" $tag -}}
{{- $reference := default "" $recorded.reference -}}
{{- if and (not $digest) (eq $architecture (default "" $recorded.architecture)) (hasPrefix $prefix $reference) -}}
{{- $digest = $reference | trimPrefix $prefix -}}
{{- end -}}
{{- $version := empty $digest | ternary (printf ":%s" $tag) (printf "@%s" $digest) -}}
{{- $image = printf "%s/zarf-registry/init-hook%s" .zr.address $version -}}
{{- end -}}
{{- $_ := set .zr "cronJobImage" (dict
  "value" $image "pushed" $pushed "architecture" ($pushed | ternary $architecture "") "pin" $pin) -}}
{{- end -}}
