{{- /* What the cluster says. The only file that calls lookup, so the only one whose output depends on the cluster.
Every fact is empty where there is no cluster (helm template, Argo CD) or nothing to be known, and nothing here is asked
for when a value says it already.

Objects are read once in a rendering and kept in the root context, so that all templates see the same cluster. */ -}}

{{- /* Puts the Linux nodes into .ClusterNodes: name → node. */ -}}
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

{{- /* Puts the Service that every cluster has, default/kubernetes, into .ClusterService. */ -}}
{{- define "zarf-registry.cluster.loadService" -}}
{{- if not (hasKey . "ClusterService") -}}
{{- $_ := set . "ClusterService" (lookup "v1" "Service" "default" "kubernetes") -}}
{{- end -}}
{{- end -}}

{{- /* "true" where there is a cluster to be seen: only there does no answer mean that there is nothing. */ -}}
{{- define "zarf-registry.cluster.seen" -}}
{{- include "zarf-registry.cluster.loadService" . -}}
{{- if .ClusterService -}}true{{- end -}}
{{- end -}}

{{- /* What the hook remembers: JSON that is empty where nothing is remembered, else
  mode, address, ipFamily  the desired settings
  hookImage                reference and architecture of init-hook's image in the registry, where it was pushed
  pki                      where certificates come from: mode, existing (names of the user's Secrets), issuer
  nodeDirectories          where nodes may have files of this release
or, for a Secret that cannot be read, problem and remedy only: validate.yaml refuses those. The Jobs read it once more, and
more strictly (internal/state). */ -}}
{{- define "zarf-registry.cluster.state" -}}
{{- if not (hasKey . "ClusterState") -}}
{{- $state := dict -}}
{{- with lookup "v1" "Secret" (include "zarf-registry.namespace" .) (printf "%s-state" (include "zarf-registry.fullname" .)) -}}
{{- $saved := dig "data" "state.json" "" . | b64dec | fromJson -}}
{{- $desired := kindIs "map" $saved.desired | ternary $saved.desired dict -}}
{{- $pki := kindIs "map" $saved.pki | ternary $saved.pki dict -}}
{{- $nodes := kindIs "map" $saved.nodeConfig | ternary $saved.nodeConfig dict -}}
{{- $directories := kindIs "slice" $nodes.directories | ternary $nodes.directories list -}}
{{- $problem := "" -}}
{{- $remedy := "put it right; or delete it and say what it said, with registryProxy or registryURL, and pki.mode" -}}
{{- if hasKey $saved "Error" -}}
{{- $problem = printf "its key state.json cannot be read as JSON (%s)" $saved.Error -}}
{{- else if and (kindIs "float64" $saved.version) (gt (toString $saved.version | float64) 1.0) -}}
{{- $problem = printf "it has version %v, and this chart reads up to version 1" $saved.version -}}
{{- $remedy = "use the chart that wrote it, or a newer one" -}}
{{- else if ne (toString $saved.version) "1" -}}
{{- $problem = printf "its version is %v" $saved.version -}}
{{- else if not (has $desired.mode (list "proxy" "nodeport" "external")) -}}
{{- $problem = printf "its mode is %v, which there is not" $desired.mode -}}
{{- else if not (has $desired.ipFamily (list "IPv4" "IPv6" "DualStack")) -}}
{{- $problem = printf "its IP family is %v, which there is not" $desired.ipFamily -}}
{{- else if not (and (kindIs "string" $desired.address) $desired.address) -}}
{{- $problem = "it has no address" -}}
{{- else if and $saved.pki (not (has $pki.mode (list "internal" "existingSecret" "certManager"))) -}}
{{- $problem = printf "its PKI mode is %v, which there is not" $pki.mode -}}
{{- else if or (not (kindIs "slice" (default list $nodes.directories))) (and $saved.nodeConfig (not (kindIs "map" $saved.nodeConfig))) -}}
{{- $problem = "its directories of nodes are no list" -}}
{{- else -}}
{{- /* They are mounted into pods that run as root. */ -}}
{{- range $directories -}}
{{- if not (include "zarf-registry.nodeConfig.allowed" (toString .)) -}}
{{- $problem = printf "it names %v, which is no directory of a container runtime's configuration" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $problem -}}
{{- $state = dict "problem" $problem "remedy" $remedy -}}
{{- else -}}
{{- $state = pick $desired "mode" "address" "ipFamily" -}}
{{- $_ := set $state "hookImage" (kindIs "map" $saved.hookImage | ternary $saved.hookImage dict) -}}
{{- $_ := set $state "pki" (pick $pki "mode" "existing" "issuer") -}}
{{- $_ := set $state "nodeDirectories" $directories -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "ClusterState" $state -}}
{{- end -}}
{{- .ClusterState | toJson -}}
{{- end -}}

{{- /* The release's namespace, where this release is remembered there and its objects are to be in another one. Where it was before
that is of no release is not known. */ -}}
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

{{- /* The IP family that is remembered. */ -}}
{{- define "zarf-registry.cluster.savedIPFamily" -}}
{{- default "" (include "zarf-registry.cluster.state" . | fromJson).ipFamily -}}
{{- end -}}

{{- /* The IP family: DualStack only where pods are seen to have both, since everything else may have a second address
that leads nowhere. */ -}}
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

{{- /* "always" where a node runs a CRI-O that refuses plain HTTP from loopback: 1.35 and later. */ -}}
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

{{- /* The runtimes of the nodes, as nodeConfig.runtimes calls them: JSON array, sorted. */ -}}
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

{{- /* The version of a Secret of this namespace, which changes with each change of it. Takes root, name. */ -}}
{{- define "zarf-registry.cluster.secretVersion" -}}
{{- $key := printf "ClusterSecretVersion-%s" .name -}}
{{- if not (hasKey .root $key) -}}
{{- $_ := set .root $key (dig "metadata" "resourceVersion" "" (lookup "v1" "Secret" (include "zarf-registry.namespace" .root) .name)) -}}
{{- end -}}
{{- get .root $key -}}
{{- end -}}

{{- /* The running registry: JSON of its architecture and image. It stays where its volume is for as long as it can. */ -}}
{{- define "zarf-registry.cluster.registry" -}}
{{- if not (hasKey . "ClusterRegistry") -}}
{{- $pod := dig "spec" "template" "spec" dict (lookup "apps/v1" "Deployment" (include "zarf-registry.namespace" .) (include "zarf-registry.fullname" .)) -}}
{{- $image := "" -}}
{{- range $pod.containers -}}
{{- if eq .name "registry" -}}
{{- $image = .image -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "ClusterRegistry" (dict "architecture" (dig "nodeSelector" "kubernetes.io/arch" "" $pod) "image" $image) -}}
{{- end -}}
{{- .ClusterRegistry | toJson -}}
{{- end -}}

{{- /* The architecture for the registry. */ -}}
{{- define "zarf-registry.cluster.architecture" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $present := dict -}}
{{- range $node := .ClusterNodes -}}
{{- $_ := set $present (dig "status" "nodeInfo" "architecture" "" $node) true -}}
{{- end -}}
{{- $running := (include "zarf-registry.cluster.registry" . | fromJson).architecture -}}
{{- $answer := "" -}}
{{- range list "arm64" "amd64" $running -}}
{{- if and (hasKey $present .) (has . $.Values.injector.architectures) -}}
{{- $answer = . -}}
{{- end -}}
{{- end -}}
{{- $answer -}}
{{- end -}}

{{- /* The names of an image as a node reports it that a pod may use: tagged names, or digests where there is no tag.
Those that lead to this registry are left out, since what brings the registry up must not come from it. Takes the names,
returns a JSON array. */ -}}
{{- define "zarf-registry.cluster.imageNames" -}}
{{- $tagged := list -}}
{{- $digests := list -}}
{{- range . -}}
{{- if not (or (contains "<none>" .) (hasPrefix "127.0.0.1:" .) (hasPrefix "[::1]:" .)) -}}
{{- if contains "@" . -}}
{{- $digests = append $digests . -}}
{{- else -}}
{{- $tagged = append $tagged . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- default $digests $tagged | toJson -}}
{{- end -}}

{{- /* The images that injected programs run in, for one architecture: JSON of
  image       the newest pause image that any node reports: new nodes are likely to have it
  nodes       those that report a pause image
  exceptions  image → the nodes that report other pause images but not that one, by the newest of their own; and the nodes
              that report images but no pause image, by the smallest image that they have in common
The kubelet reports the 50 largest images only, and pause is the smallest; CRI-O may have none. Any image will do, since
its programs are not used. Where no node reports a pause image, that smallest image is for all. Takes root, architecture. */ -}}
{{- define "zarf-registry.cluster.pause" -}}
{{- $key := printf "ClusterPause-%s" .architecture -}}
{{- if not (hasKey .root $key) -}}
{{- include "zarf-registry.cluster.loadNodes" .root -}}
{{- $nodes := dict -}}
{{- $count := dict -}}
{{- $without := dict -}}
{{- range $name, $node := .root.ClusterNodes -}}
{{- if eq (dig "status" "nodeInfo" "architecture" "" $node) $.architecture -}}
{{- $images := list -}}
{{- range dig "status" "images" list $node -}}
{{- $pause := list -}}
{{- range .names -}}
{{- if include "zarf-registry.isPause" . -}}
{{- $pause = append $pause . -}}
{{- end -}}
{{- end -}}
{{- if $pause -}}
{{- $images = concat $images (include "zarf-registry.cluster.imageNames" $pause | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- if $images -}}
{{- $_ := set $nodes $name ($images | uniq) -}}
{{- range $images | uniq -}}
{{- $_ := set $count . (add 1 (default 0 (get $count .))) -}}
{{- end -}}
{{- else if dig "status" "images" list $node -}}
{{- $_ := set $without $name $node -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* Sorts as text in the order that is wanted: newest, then on most nodes, then by name. */ -}}
{{- $rank := dict -}}
{{- range $image, $n := $count -}}
{{- $version := list -}}
{{- range regexFind "[0-9]+(\\.[0-9]+)*" (regexFind ":v?[0-9][^/@]*$" $image) | splitList "." -}}
{{- $version = append $version (printf "%06d" (atoi .)) -}}
{{- end -}}
{{- $_ := set $rank (printf "%s %06d %s" (join "." $version) $n $image) $image -}}
{{- end -}}
{{- $newest := "" -}}
{{- with keys $rank | sortAlpha -}}
{{- $newest = get $rank (last .) -}}
{{- end -}}
{{- $exceptions := dict -}}
{{- range $name, $images := $nodes -}}
{{- if not (has $newest $images) -}}
{{- $own := "" -}}
{{- range keys $rank | sortAlpha -}}
{{- if has (get $rank .) $images -}}
{{- $own = get $rank . -}}
{{- end -}}
{{- end -}}
{{- $_ := set $exceptions $own (append (default list (get $exceptions $own)) $name) -}}
{{- end -}}
{{- end -}}
{{- with include "zarf-registry.cluster.smallest" $without -}}
{{- if $newest -}}
{{- $_ := set $exceptions . (keys $without | sortAlpha) -}}
{{- else -}}
{{- $newest = . -}}
{{- end -}}
{{- end -}}
{{- $_ := set .root $key (dict "image" $newest "nodes" (keys $nodes | sortAlpha) "exceptions" $exceptions) -}}
{{- end -}}
{{- get .root $key | toJson -}}
{{- end -}}

{{- /* The smallest image that all these nodes report, or nothing. Takes nodes, name → node. */ -}}
{{- define "zarf-registry.cluster.smallest" -}}
{{- $count := dict -}}
{{- $bytes := dict -}}
{{- range $node := . -}}
{{- $own := dict -}}
{{- range dig "status" "images" list $node -}}
{{- $size := default 0 .sizeBytes -}}
{{- range include "zarf-registry.cluster.imageNames" .names | fromJsonArray -}}
{{- $_ := set $own . $size -}}
{{- end -}}
{{- end -}}
{{- range $image, $size := $own -}}
{{- $_ := set $count $image (add 1 (default 0 (get $count $image))) -}}
{{- $_ := set $bytes $image (max $size (default 0 (get $bytes $image))) -}}
{{- end -}}
{{- end -}}
{{- /* Sorts as text in the order that is wanted: smallest, then a tag before a digest, then by name. */ -}}
{{- $rank := dict -}}
{{- range $image, $n := $count -}}
{{- if eq (int $n) (len $) -}}
{{- $_ := set $rank (printf "%016d %t %s" (get $bytes $image) (contains "@" $image) $image) $image -}}
{{- end -}}
{{- end -}}
{{- with keys $rank | sortAlpha -}}
{{- get $rank (first .) -}}
{{- end -}}
{{- end -}}

{{- /* What the nodes of an architecture say of an image: JSON of the nodes that are known to be with it, and without it,
and unknown. A list of 50 images may have been cut short, so it says nothing of what is not in it, unless it reaches down
to a pause image. Takes root, architecture, image. */ -}}
{{- define "zarf-registry.cluster.holders" -}}
{{- include "zarf-registry.cluster.loadNodes" .root -}}
{{- $pauses := (include "zarf-registry.cluster.pause" . | fromJson).nodes -}}
{{- $answer := dict "with" list "without" list "unknown" list -}}
{{- range $name, $node := .root.ClusterNodes -}}
{{- with dig "status" "images" list $node -}}
{{- if eq (dig "status" "nodeInfo" "architecture" "" $node) $.architecture -}}
{{- $key := (or (has $name $pauses) (lt (len .) 50)) | ternary "without" "unknown" -}}
{{- range . -}}
{{- if has $.image .names -}}
{{- $key = "with" -}}
{{- end -}}
{{- end -}}
{{- $_ := set $answer $key (append (get $answer $key) $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $answer | toJson -}}
{{- end -}}

{{- /* The nodes that are ready and report an image: JSON array of names. Takes root, image. */ -}}
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

{{- /* The architectures of nodes: JSON array, sorted. Takes root; names, those nodes, or where there are none the ready ones
with all of labels. */ -}}
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

{{- /* "true" for a node that is ready. */ -}}
{{- define "zarf-registry.cluster.isReady" -}}
{{- range dig "status" "conditions" list . -}}
{{- if and (eq .type "Ready") (eq .status "True") -}}true{{- end -}}
{{- end -}}
{{- end -}}
