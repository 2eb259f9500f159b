{{- /* The state of the cluster. This is the only file that calls lookup, so only its output depends on the cluster.
Without a cluster (helm template, Argo CD) every fact is empty. Nothing is looked up that a value decides.

What is needed more than once is kept in .zr.cluster. */ -}}

{{- /* Sets .zr.cluster.nodes to the Linux nodes: name → node. */ -}}
{{- define "zarf-registry.cluster.loadNodes" -}}
{{- if not (hasKey .zr.cluster "nodes") -}}
{{- $nodes := dict -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- if eq (dig "status" "nodeInfo" "operatingSystem" "linux" .) "linux" -}}
{{- $_ := set $nodes .metadata.name . -}}
{{- end -}}
{{- end -}}
{{- $_ := set .zr.cluster "nodes" $nodes -}}
{{- end -}}
{{- end -}}

{{- /* Sets .zr.cluster.service to default/kubernetes, which every cluster has: only with it does an empty lookup mean that
an object does not exist. */ -}}
{{- define "zarf-registry.cluster.loadService" -}}
{{- if not (hasKey .zr.cluster "service") -}}
{{- $_ := set .zr.cluster "service" (lookup "v1" "Service" "default" "kubernetes") -}}
{{- end -}}
{{- end -}}

{{- /* Why kube-proxy serves no node port on 127.0.0.1. Empty if it does, or if its configuration is in neither of the
ConfigMaps that kubeadm and EKS write. Of its modes, only iptables serves loopback addresses: the default up to
Kubernetes 1.39 (docs/dev/decisions.md). */ -}}
{{- define "zarf-registry.cluster.noLoopback" -}}
{{- $reason := "" -}}
{{- range $name, $key := dict "kube-proxy" "config.conf" "kube-proxy-config" "config" -}}
{{- $config := dig "data" $key "" (lookup "v1" "ConfigMap" "kube-system" $name) | fromYaml -}}
{{- $mode := get $config "mode" -}}
{{- if and $config (not $mode) (semverCompare ">=1.40-0" $.Capabilities.KubeVersion.Version) -}}
{{- $mode = "nftables" -}}
{{- end -}}
{{- if has $mode (list "ipvs" "nftables") -}}
{{- $reason = printf "kube-proxy runs in %s mode, which serves no node port on 127.0.0.1" $mode -}}
{{- else if eq (dig "iptables" "localhostNodePorts" "" $config | toString) "false" -}}
{{- $reason = "kube-proxy's localhostNodePorts is false, so it serves no node port on 127.0.0.1" -}}
{{- end -}}
{{- end -}}
{{- $reason -}}
{{- end -}}

{{- /* Sets .zr.state to the recorded state, or to an empty map:
  mode, address, ipFamily  the last verified settings, or else the desired ones: a switch that failed is continued only
                           if its mode is named again
  hookImage                reference and architecture of init-hook's image in the registry, if it was pushed
  pki                      source of certificates: mode, existing (names of the user's Secrets), issuer
  pauseImages              the images of injected programs, by architecture: reference and reason
  nodeDirectories          directories of nodes that may have files of this release
It validates what rendering depends on; init-hook validates the rest (internal/release/state). */ -}}
{{- define "zarf-registry.cluster.loadState" -}}
{{- $state := dict -}}
{{- with lookup "v1" "Secret" .zr.namespace (printf "%s-state" .zr.name) -}}
{{- $saved := dig "data" "state.json" "" . | b64dec | fromJson -}}
{{- $part := dict -}}
{{- range list "desired" "current" "pki" "nodeConfig" "pauseImages" "hookImage" -}}
{{- $_ := set $part . (kindIs "map" (get $saved .) | ternary (get $saved .) dict) -}}
{{- end -}}
{{- $works := default $part.desired $part.current -}}
{{- $directories := default list $part.nodeConfig.directories -}}
{{- $problem := "" -}}
{{- $remedy := "correct it, or delete it and set registryProxy or registryURL, and pki.mode, as it recorded them" -}}
{{- if hasKey $saved "Error" -}}
{{- $problem = printf "its key state.json cannot be read as JSON (%s)" $saved.Error -}}
{{- else if and (kindIs "float64" $saved.version) (gt (toString $saved.version | float64) 1.0) -}}
{{- $problem = printf "it has version %v, and this chart reads up to version 1" $saved.version -}}
{{- $remedy = "use the chart that wrote it, or a newer one" -}}
{{- else if ne (toString $saved.version) "1" -}}
{{- $problem = printf "its version is %v" $saved.version -}}
{{- else if and $saved.pki (not (has $part.pki.mode (list "internal" "existingSecret" "certManager"))) -}}
{{- $problem = printf "its PKI mode is invalid: %v" $part.pki.mode -}}
{{- else if not (and (kindIs "slice" (default list $directories)) (kindIs "map" (default dict $saved.nodeConfig))) -}}
{{- $problem = "its node directories are not a list" -}}
{{- else -}}
{{- /* These directories are mounted into pods that run as root. */ -}}
{{- range $directories -}}
{{- if not (include "zarf-registry.nodeConfig.allowed" (toString .)) -}}
{{- $problem = printf "it names %v, which is not a configuration directory of a container runtime" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range list $works $part.desired -}}
{{- if $problem -}}
{{- else if not (has .mode (list "proxy" "nodeport" "external")) -}}
{{- $problem = printf "its mode is invalid: %v" .mode -}}
{{- else if not (has .ipFamily (list "IPv4" "IPv6" "DualStack")) -}}
{{- $problem = printf "its IP family is invalid: %v" .ipFamily -}}
{{- else if not (and (kindIs "string" .address) .address) -}}
{{- $problem = "it has no address" -}}
{{- end -}}
{{- end -}}
{{- if $problem -}}
{{- fail (printf "zarf-registry: Secret %s/%s-state: %s; nothing was changed: %s" $.zr.namespace $.zr.name $problem $remedy) -}}
{{- end -}}
{{- $state = merge (pick $works "mode" "address" "ipFamily") (pick $part "hookImage" "pauseImages" "pki") (dict
  "nodeDirectories" $directories) -}}
{{- end -}}
{{- $_ := set .zr "state" $state -}}
{{- end -}}

{{- /* The release's namespace, if the state of this release is there and namespaceOverride names another one. A
previous namespaceOverride is unknown. */ -}}
{{- define "zarf-registry.cluster.elsewhere" -}}
{{- if and (ne .zr.namespace .Release.Namespace) (not .zr.state) -}}
{{- $there := lookup "v1" "Secret" .Release.Namespace (printf "%s-state" .zr.name) -}}
{{- if eq .Release.Name (dig "metadata" "labels" "app.kubernetes.io/instance" "" $there) -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The IP family. DualStack only if pods have both families: the second address of anything else may not be
reachable. */ -}}
{{- define "zarf-registry.cluster.ipFamily" -}}
{{- include "zarf-registry.cluster.loadService" . -}}
{{- with dig "spec" "ipFamilies" list .zr.cluster.service -}}
{{- $family := first . -}}
{{- if gt (dig "spec" "ipFamilies" list (lookup "v1" "Service" "kube-system" "kube-dns") | len) 1 -}}
{{- $family = "DualStack" -}}
{{- end -}}
{{- include "zarf-registry.cluster.loadNodes" $ -}}
{{- range $node := $.zr.cluster.nodes -}}
{{- $cidrs := dig "spec" "podCIDRs" list $node | join " " -}}
{{- if and (contains "." $cidrs) (contains ":" $cidrs) -}}
{{- $family = "DualStack" -}}
{{- end -}}
{{- end -}}
{{- $family -}}
{{- end -}}
{{- end -}}

{{- /* "always" if a node runs CRI-O 1.35 or later, which refuses plain HTTP from loopback addresses. */ -}}
{{- define "zarf-registry.cluster.tls" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $answer := "" -}}
{{- range $node := .zr.cluster.nodes -}}
{{- with regexFind "^cri-o://v?[0-9]+\\.[0-9]+" (dig "status" "nodeInfo" "containerRuntimeVersion" "" $node) -}}
{{- $version := trimPrefix "cri-o://" . | trimPrefix "v" | splitList "." -}}
{{- if or (gt (index $version 0 | atoi) 1) (ge (index $version 1 | atoi) 35) -}}
{{- $answer = "always" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $answer -}}
{{- end -}}

{{- /* Sets .zr.cluster.runtimes to the nodes' container runtimes, named as in nodeConfig.runtimes. */ -}}
{{- define "zarf-registry.cluster.loadRuntimes" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $found := dict -}}
{{- range $node := .zr.cluster.nodes -}}
{{- $runtime := dig "status" "nodeInfo" "containerRuntimeVersion" "" $node -}}
{{- $kubelet := dig "status" "nodeInfo" "kubeletVersion" "" $node -}}
{{- if hasPrefix "cri-o://" $runtime -}}
{{- $_ := set $found "crio" true -}}
{{- else if not (hasPrefix "containerd://" $runtime) -}}
{{- else if contains "+k3s" $kubelet -}}
{{- $_ := set $found "k3s" true -}}
{{- else if contains "+rke2" $kubelet -}}
{{- $_ := set $found "rke2" true -}}
{{- else -}}
{{- $_ := set $found "containerd" true -}}
{{- end -}}
{{- end -}}
{{- $_ := set .zr.cluster "runtimes" (keys $found | sortAlpha) -}}
{{- end -}}

{{- /* The resource version of a Secret in this namespace; every change of the Secret changes it. Takes a list: root,
name. */ -}}
{{- define "zarf-registry.cluster.secretVersion" -}}
{{- dig "metadata" "resourceVersion" "" (lookup "v1" "Secret" (first .).zr.namespace (last .)) -}}
{{- end -}}

{{- /* The salt in the Secret with the node configuration, or a new one. Empty without a cluster, where a
random value would differ in each rendering. */ -}}
{{- define "zarf-registry.cluster.salt" -}}
{{- include "zarf-registry.cluster.loadService" . -}}
{{- if .zr.cluster.service -}}
{{- $secret := lookup "v1" "Secret" .zr.namespace (printf "%s-node-config" .zr.name) -}}
{{- dig "data" "salt" "" $secret | b64dec | default (randAlphaNum 32) -}}
{{- end -}}
{{- end -}}

{{- /* "true" if proxies of this release exist. */ -}}
{{- define "zarf-registry.cluster.proxies" -}}
{{- $found := "" -}}
{{- range (lookup "apps/v1" "DaemonSet" .zr.namespace "").items -}}
{{- $labels := default dict .metadata.labels -}}
{{- $ours := eq (get $labels "app.kubernetes.io/instance") $.Release.Name -}}
{{- if and $ours (eq (get $labels "app.kubernetes.io/component") "proxy") -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /* The architecture of the registry: that of the running one if possible, because it stays with its volume, else
amd64 before arm64. */ -}}
{{- define "zarf-registry.cluster.architecture" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $present := dict -}}
{{- range $node := .zr.cluster.nodes -}}
{{- $_ := set $present (dig "status" "nodeInfo" "architecture" "" $node) true -}}
{{- end -}}
{{- $registry := lookup "apps/v1" "Deployment" .zr.namespace .zr.name -}}
{{- $answer := "" -}}
{{- range list "arm64" "amd64" (dig "spec" "template" "spec" "nodeSelector" "kubernetes.io/arch" "" $registry) -}}
{{- if and (hasKey $present .) (has . $.Values.injector.architectures) -}}
{{- $answer = . -}}
{{- end -}}
{{- end -}}
{{- $answer -}}
{{- end -}}

{{- /* The trusted image that most nodes of an architecture report, as "REASON IMAGE", where reason is digest or name. Trust
by digest comes before trust by name, whatever the numbers of nodes. By its digest where a node knows it. Takes a list:
root, architecture. */ -}}
{{- define "zarf-registry.cluster.pause" -}}
{{- $root := first . -}}
{{- $architecture := last . -}}
{{- include "zarf-registry.cluster.loadNodes" $root -}}
{{- $table := $root.zr.pause.table -}}
{{- $count := dict "digest" dict "name" dict -}}
{{- range $node := $root.zr.cluster.nodes -}}
{{- if eq (dig "status" "nodeInfo" "architecture" "" $node) $architecture -}}
{{- $found := dict -}}
{{- range dig "status" "images" list $node -}}
{{- $tags := dict -}}
{{- $repositories := list -}}
{{- range .names -}}
{{- $parts := splitList "@" . -}}
{{- if gt (len $parts) 1 -}}
{{- if and (hasKey $table.digests (last $parts)) (not (regexMatch $root.zr.pause.own .)) -}}
{{- $_ := set $found . "digest" -}}
{{- else if and (has (first $parts) $table.repositories) (hasPrefix "sha256:" (last $parts)) -}}
{{- $_ := set $found . "name" -}}
{{- end -}}
{{- $repositories = append $repositories (first $parts) -}}
{{- else if gt (splitList ":" . | len) 1 -}}
{{- $_ := set $tags . (splitList ":" . | first) -}}
{{- end -}}
{{- end -}}
{{- range $tag, $repository := $tags -}}
{{- $official := and (has $repository $table.repositories) (not (has $repository $repositories)) -}}
{{- if and $official (regexMatch "^[^:]+:[0-9A-Za-z_][0-9A-Za-z_.-]*$" $tag) -}}
{{- $_ := set $found $tag "name" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $image, $reason := $found -}}
{{- $of := get $count $reason -}}
{{- $_ := set $of $image (add 1 (default 0 (get $of $image))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $answer := "" -}}
{{- range $reason := list "name" "digest" -}}
{{- $rank := list -}}
{{- range $image, $n := get $count $reason -}}
{{- $rank = append $rank (printf "%06d %s" (sub 999999 $n) $image) -}}
{{- end -}}
{{- with $rank | sortAlpha -}}
{{- $answer = printf "%s %s" $reason (first . | substr 7 -1) -}}
{{- end -}}
{{- end -}}
{{- $answer -}}
{{- end -}}

{{- /* The ready nodes that report an image: JSON array of names. Takes a list: root, image. */ -}}
{{- define "zarf-registry.cluster.ready" -}}
{{- $image := last . -}}
{{- with first . -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $names := list -}}
{{- range $name, $node := .zr.cluster.nodes -}}
{{- range include "zarf-registry.cluster.isReady" $node | empty | not | ternary (dig "status" "images" list $node) list -}}
{{- if has $image .names -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}
{{- end -}}

{{- /* At most 50 nodes that are not ready, if nodes were looked up: JSON array of names. */ -}}
{{- define "zarf-registry.cluster.notReady" -}}
{{- $names := list -}}
{{- range $name, $node := .zr.cluster.nodes -}}
{{- if and (include "zarf-registry.cluster.isReady" $node | empty) (lt (len $names) 50) -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- $names | toJson -}}
{{- end -}}

{{- /* The architectures of nodes: sorted JSON array. Takes a list: root, names (the nodes; empty: the ready nodes that
initHook.nodeSelector selects). */ -}}
{{- define "zarf-registry.cluster.architectures" -}}
{{- $names := last . -}}
{{- with first . -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $found := dict -}}
{{- range $name, $node := .zr.cluster.nodes -}}
{{- $counts := has $name $names -}}
{{- if not $names -}}
{{- $counts = include "zarf-registry.cluster.isReady" $node -}}
{{- range $key, $value := (index $ 0).Values.initHook.nodeSelector -}}
{{- if ne $value (dig "metadata" "labels" $key "\n" $node) -}}
{{- $counts = "" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with dig "status" "nodeInfo" "architecture" "" $node -}}
{{- if $counts -}}
{{- $_ := set $found . true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- keys $found | sortAlpha | toJson -}}
{{- end -}}
{{- end -}}

{{- /* "true" if a ready control-plane node can run a pod. Takes a list: root, names (of the nodes that count; empty: all),
node selector, tolerations. */ -}}
{{- define "zarf-registry.cluster.controlPlane" -}}
{{- $names := index . 1 -}}
{{- $selector := index . 2 -}}
{{- $tolerations := index . 3 -}}
{{- $found := "" -}}
{{- include "zarf-registry.cluster.loadNodes" (first .) -}}
{{- range $name, $node := (first .).zr.cluster.nodes -}}
{{- $labels := default dict $node.metadata.labels -}}
{{- $can := and (hasKey $labels "node-role.kubernetes.io/control-plane") (or (empty $names) (has $name $names)) -}}
{{- range $key, $value := $selector -}}
{{- $can = and $can (eq $value (get $labels $key)) -}}
{{- end -}}
{{- range $taint := dig "spec" "taints" list $node -}}
{{- $tolerated := eq $taint.effect "PreferNoSchedule" -}}
{{- range $tolerations -}}
{{- $fits := and (has (default "" .key) (list "" $taint.key)) (has (default "" .effect) (list "" $taint.effect)) -}}
{{- $any := or (eq (toString .operator) "Exists") (eq (default "" .value) (default "" $taint.value)) -}}
{{- $tolerated = or $tolerated (and $fits $any) -}}
{{- end -}}
{{- $can = and $can $tolerated -}}
{{- end -}}
{{- if and $can (include "zarf-registry.cluster.isReady" $node) -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /* "true" for a ready node. */ -}}
{{- define "zarf-registry.cluster.isReady" -}}
{{- range dig "status" "conditions" list . -}}
{{- if and (eq .type "Ready") (eq .status "True") -}}true{{- end -}}
{{- end -}}
{{- end -}}
