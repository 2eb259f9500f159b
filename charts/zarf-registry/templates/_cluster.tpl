{{- /* The state of the cluster. This is the only file that calls lookup, so only its output depends on the cluster.
Without a cluster (helm template, Argo CD) every fact is empty. Nothing is looked up that a value decides.

Each object is read once per rendering and kept in the root context, so all templates see the same cluster. */ -}}

{{- /* Sets .ClusterNodes to the Linux nodes: name → node. */ -}}
{{- define "zarf-registry.cluster.loadNodes" -}}
{{- if not (hasKey . "ClusterNodes") -}}
{{- $nodes := dict -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- if eq (dig "status" "nodeInfo" "operatingSystem" "linux" .) "linux" -}}
{{- $_ := set $nodes .metadata.name . -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "ClusterNodes" $nodes -}}
{{- end -}}
{{- end -}}

{{- /* Sets .ClusterService to default/kubernetes, which every cluster has. */ -}}
{{- define "zarf-registry.cluster.loadService" -}}
{{- if not (hasKey . "ClusterService") -}}
{{- $_ := set . "ClusterService" (lookup "v1" "Service" "default" "kubernetes") -}}
{{- end -}}
{{- end -}}

{{- /* "true" if a cluster can be seen. Only then does an empty lookup mean that an object does not exist. */ -}}
{{- define "zarf-registry.cluster.seen" -}}
{{- include "zarf-registry.cluster.loadService" . -}}
{{- if .ClusterService -}}true{{- end -}}
{{- end -}}

{{- /* Why kube-proxy serves no node port on 127.0.0.1. Empty if it does, or if its configuration is in neither of the
ConfigMaps that kubeadm and EKS write. Of its modes, only iptables serves loopback addresses: the default up to
Kubernetes 1.39 (docs/dev/decisions/0014-default-mode.md). */ -}}
{{- define "zarf-registry.cluster.noLoopback" -}}
{{- if not (hasKey . "ClusterNoLoopback") -}}
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
{{- $_ := set . "ClusterNoLoopback" $reason -}}
{{- end -}}
{{- .ClusterNoLoopback -}}
{{- end -}}

{{- /* The recorded state, as JSON; empty if there is none:
  mode, address, ipFamily  the desired settings
  hookImage                reference and architecture of init-hook's image in the registry, if it was pushed
  pki                      source of certificates: mode, existing (names of the user's Secrets), issuer
  pauseImages              the images of injected programs, by architecture: reference and reason
  nodeDirectories          directories of nodes that may have files of this release
  pushCredentials          names of generated push credentials whose Secrets may exist
For a Secret that cannot be read, only problem and remedy: validate.yaml fails with them. It covers what rendering
depends on; init-hook validates the rest (internal/release/state). */ -}}
{{- define "zarf-registry.cluster.state" -}}
{{- if not (hasKey . "ClusterState") -}}
{{- $state := dict -}}
{{- with $secret := lookup "v1" "Secret" (include "zarf-registry.namespace" .) (printf "%s-state" (include "zarf-registry.fullname" .)) -}}
{{- $saved := dig "data" "state.json" "" . | b64dec | fromJson -}}
{{- $desired := kindIs "map" $saved.desired | ternary $saved.desired dict -}}
{{- $pki := kindIs "map" $saved.pki | ternary $saved.pki dict -}}
{{- $nodes := kindIs "map" $saved.nodeConfig | ternary $saved.nodeConfig dict -}}
{{- $directories := kindIs "slice" $nodes.directories | ternary $nodes.directories list -}}
{{- $pauses := kindIs "map" $saved.pauseImages | ternary $saved.pauseImages dict -}}
{{- $problem := "" -}}
{{- $remedy := "correct it, or delete it and set registryProxy or registryURL, and pki.mode, as it recorded them" -}}
{{- if hasKey $saved "Error" -}}
{{- $problem = printf "its key state.json cannot be read as JSON (%s)" $saved.Error -}}
{{- else if and (kindIs "float64" $saved.version) (gt (toString $saved.version | float64) 1.0) -}}
{{- $problem = printf "it has version %v, and this chart reads up to version 1" $saved.version -}}
{{- $remedy = "use the chart that wrote it, or a newer one" -}}
{{- else if ne (toString $saved.version) "1" -}}
{{- $problem = printf "its version is %v" $saved.version -}}
{{- else if not (has $desired.mode (list "proxy" "nodeport" "external")) -}}
{{- $problem = printf "its mode is invalid: %v" $desired.mode -}}
{{- else if not (has $desired.ipFamily (list "IPv4" "IPv6" "DualStack")) -}}
{{- $problem = printf "its IP family is invalid: %v" $desired.ipFamily -}}
{{- else if not (and (kindIs "string" $desired.address) $desired.address) -}}
{{- $problem = "it has no address" -}}
{{- else if and $saved.pki (not (has $pki.mode (list "internal" "existingSecret" "certManager"))) -}}
{{- $problem = printf "its PKI mode is invalid: %v" $pki.mode -}}
{{- else if or (not (kindIs "slice" (default list $nodes.directories))) (and $saved.nodeConfig (not (kindIs "map" $saved.nodeConfig))) -}}
{{- $problem = "its node directories are not a list" -}}
{{- else -}}
{{- /* These directories are mounted into pods that run as root. */ -}}
{{- range $directories -}}
{{- if not (include "zarf-registry.nodeConfig.allowed" (toString .)) -}}
{{- $problem = printf "it names %v, which is not a configuration directory of a container runtime" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $problem -}}
{{- $state = dict "problem" $problem "remedy" $remedy -}}
{{- else -}}
{{- $state = pick $desired "mode" "address" "ipFamily" -}}
{{- $_ := set $state "hookImage" (kindIs "map" $saved.hookImage | ternary $saved.hookImage dict) -}}
{{- $_ := set $state "pauseImages" $pauses -}}
{{- $_ := set $state "pki" (pick $pki "mode" "existing" "issuer") -}}
{{- $_ := set $state "nodeDirectories" $directories -}}
{{- $push := kindIs "map" $saved.pushCredentials | ternary $saved.pushCredentials dict -}}
{{- $generated := kindIs "slice" $push.removed | ternary $push.removed list -}}
{{- range kindIs "slice" $push.named | ternary $push.named list -}}
{{- if not .secret -}}
{{- $generated = append $generated .name -}}
{{- end -}}
{{- end -}}
{{- $_ := set $state "pushCredentials" $generated -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "ClusterState" $state -}}
{{- end -}}
{{- .ClusterState | toJson -}}
{{- end -}}

{{- /* The release's namespace, if the state of this release is there and namespaceOverride names another one. A
previous namespaceOverride is unknown. */ -}}
{{- define "zarf-registry.cluster.elsewhere" -}}
{{- if ne (include "zarf-registry.namespace" .) .Release.Namespace -}}
{{- if not (include "zarf-registry.cluster.state" . | fromJson) -}}
{{- $there := lookup "v1" "Secret" .Release.Namespace (printf "%s-state" (include "zarf-registry.fullname" .)) -}}
{{- if eq .Release.Name (dig "metadata" "labels" "app.kubernetes.io/instance" "" $there) -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The recorded IP family. */ -}}
{{- define "zarf-registry.cluster.savedIPFamily" -}}
{{- default "" (include "zarf-registry.cluster.state" . | fromJson).ipFamily -}}
{{- end -}}

{{- /* The IP family. DualStack only if pods have both families: the second address of anything else may not be
reachable. */ -}}
{{- define "zarf-registry.cluster.ipFamily" -}}
{{- if not (hasKey . "ClusterIPFamily") -}}
{{- $family := "" -}}
{{- include "zarf-registry.cluster.loadService" . -}}
{{- with dig "spec" "ipFamilies" list .ClusterService -}}
{{- $family = first . -}}
{{- if gt (dig "spec" "ipFamilies" list (lookup "v1" "Service" "kube-system" "kube-dns") | len) 1 -}}
{{- $family = "DualStack" -}}
{{- end -}}
{{- include "zarf-registry.cluster.loadNodes" $ -}}
{{- range $node := $.ClusterNodes -}}
{{- $cidrs := dig "spec" "podCIDRs" list $node | join " " -}}
{{- if and (contains "." $cidrs) (contains ":" $cidrs) -}}
{{- $family = "DualStack" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "ClusterIPFamily" $family -}}
{{- end -}}
{{- .ClusterIPFamily -}}
{{- end -}}

{{- /* "always" if a node runs CRI-O 1.35 or later, which refuses plain HTTP from loopback addresses. */ -}}
{{- define "zarf-registry.cluster.tls" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $answer := "" -}}
{{- range $node := .ClusterNodes -}}
{{- with regexFind "^cri-o://v?[0-9]+\\.[0-9]+" (dig "status" "nodeInfo" "containerRuntimeVersion" "" $node) -}}
{{- $version := trimPrefix "cri-o://" . | trimPrefix "v" | splitList "." -}}
{{- if or (gt (index $version 0 | atoi) 1) (ge (index $version 1 | atoi) 35) -}}
{{- $answer = "always" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $answer -}}
{{- end -}}

{{- /* The nodes' container runtimes, named as in nodeConfig.runtimes: sorted JSON array. */ -}}
{{- define "zarf-registry.cluster.runtimes" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $found := dict -}}
{{- range $node := .ClusterNodes -}}
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
{{- keys $found | sortAlpha | toJson -}}
{{- end -}}

{{- /* The resource version of a Secret in this namespace; every change of the Secret changes it. Takes root,
name. */ -}}
{{- define "zarf-registry.cluster.secretVersion" -}}
{{- $key := printf "ClusterSecretVersion-%s" .name -}}
{{- if not (hasKey .root $key) -}}
{{- $_ := set .root $key (dig "metadata" "resourceVersion" "" (lookup "v1" "Secret" (include "zarf-registry.namespace" .root) .name)) -}}
{{- end -}}
{{- get .root $key -}}
{{- end -}}

{{- /* The salt in the Secret with the node configuration. */ -}}
{{- define "zarf-registry.cluster.salt" -}}
{{- dig "data" "salt" "" (lookup "v1" "Secret" (include "zarf-registry.namespace" .) (printf "%s-node-config" (include "zarf-registry.fullname" .))) | b64dec -}}
{{- end -}}

{{- /* The architecture of the running registry. It stays with its volume for as long as possible. */ -}}
{{- define "zarf-registry.cluster.registry" -}}
{{- if not (hasKey . "ClusterRegistry") -}}
{{- $registry := lookup "apps/v1" "Deployment" (include "zarf-registry.namespace" .) (include "zarf-registry.fullname" .) -}}
{{- $_ := set . "ClusterRegistry" (dig "spec" "template" "spec" "nodeSelector" "kubernetes.io/arch" "" $registry) -}}
{{- end -}}
{{- .ClusterRegistry -}}
{{- end -}}

{{- /* The component of an object of this release, nothing for other objects. Takes root, object. */ -}}
{{- define "zarf-registry.cluster.component" -}}
{{- $labels := default dict .object.metadata.labels -}}
{{- if eq (get $labels "app.kubernetes.io/instance") .root.Release.Name -}}
{{- get $labels "app.kubernetes.io/component" -}}
{{- end -}}
{{- end -}}

{{- /* "true" if proxies of this release exist. */ -}}
{{- define "zarf-registry.cluster.proxies" -}}
{{- if not (hasKey . "ClusterProxies") -}}
{{- $found := "" -}}
{{- range (lookup "apps/v1" "DaemonSet" (include "zarf-registry.namespace" .) "").items -}}
{{- if eq (include "zarf-registry.cluster.component" (dict "root" $ "object" .)) "proxy" -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "ClusterProxies" $found -}}
{{- end -}}
{{- .ClusterProxies -}}
{{- end -}}

{{- /* The architecture of the registry: that of the running one if possible, else amd64 before arm64. */ -}}
{{- define "zarf-registry.cluster.architecture" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $present := dict -}}
{{- range $node := .ClusterNodes -}}
{{- $_ := set $present (dig "status" "nodeInfo" "architecture" "" $node) true -}}
{{- end -}}
{{- $running := include "zarf-registry.cluster.registry" . -}}
{{- $answer := "" -}}
{{- range list "arm64" "amd64" $running -}}
{{- if and (hasKey $present .) (has . $.Values.injector.architectures) -}}
{{- $answer = . -}}
{{- end -}}
{{- end -}}
{{- $answer -}}
{{- end -}}

{{- /* The trusted image that most nodes of an architecture report, as JSON: image, and reason (digest or name). Trust by
digest comes before trust by name, whatever the numbers of nodes. By its digest where a node knows it. Takes root,
architecture. */ -}}
{{- define "zarf-registry.cluster.pause" -}}
{{- include "zarf-registry.cluster.loadNodes" .root -}}
{{- $table := include "zarf-registry.pause.table" .root | fromJson -}}
{{- $own := include "zarf-registry.pause.own" .root -}}
{{- $count := dict "digest" dict "name" dict -}}
{{- range $node := .root.ClusterNodes -}}
{{- if eq (dig "status" "nodeInfo" "architecture" "" $node) $.architecture -}}
{{- $found := dict -}}
{{- range dig "status" "images" list $node -}}
{{- $tags := dict -}}
{{- $repositories := list -}}
{{- range .names -}}
{{- $parts := splitList "@" . -}}
{{- if gt (len $parts) 1 -}}
{{- if and (hasKey $table.digests (last $parts)) (not (regexMatch $own .)) -}}
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
{{- if and (has $repository $table.repositories) (not (has $repository $repositories)) (regexMatch "^[^:]+:[0-9A-Za-z_][0-9A-Za-z_.-]*$" $tag) -}}
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
{{- $answer := dict "image" "" -}}
{{- range $reason := list "name" "digest" -}}
{{- $rank := dict -}}
{{- range $image, $n := get $count $reason -}}
{{- $_ := set $rank (printf "%06d %s" (sub 999999 $n) $image) $image -}}
{{- end -}}
{{- with keys $rank | sortAlpha -}}
{{- $answer = dict "image" (get $rank (first .)) "reason" $reason -}}
{{- end -}}
{{- end -}}
{{- $answer | toJson -}}
{{- end -}}

{{- /* The ready nodes that report an image: JSON array of names. Takes root, image. */ -}}
{{- define "zarf-registry.cluster.ready" -}}
{{- include "zarf-registry.cluster.loadNodes" .root -}}
{{- $names := list -}}
{{- range $name, $node := .root.ClusterNodes -}}
{{- range include "zarf-registry.cluster.isReady" $node | empty | not | ternary (dig "status" "images" list $node) list -}}
{{- if has $.image .names -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}

{{- /* The architectures of nodes: sorted JSON array. Takes root, names (the nodes; empty: the ready nodes that have all
of labels). */ -}}
{{- define "zarf-registry.cluster.architectures" -}}
{{- include "zarf-registry.cluster.loadNodes" .root -}}
{{- $found := dict -}}
{{- range $name, $node := .root.ClusterNodes -}}
{{- $counts := has $name $.names -}}
{{- if not $.names -}}
{{- $counts = include "zarf-registry.cluster.isReady" $node -}}
{{- range $key, $value := $.labels -}}
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

{{- /* "true" for a ready node. */ -}}
{{- define "zarf-registry.cluster.isReady" -}}
{{- range dig "status" "conditions" list . -}}
{{- if and (eq .type "Ready") (eq .status "True") -}}true{{- end -}}
{{- end -}}
{{- end -}}
