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

{{- /* The IP family: DualStack only where pods are seen to have both, since everything else may have a second address
that leads nowhere. */ -}}
{{- define "zarf-registry.cluster.ipFamily" -}}
{{- if not (hasKey . "ClusterIPFamily") -}}
{{- $family := "" -}}
{{- with dig "spec" "ipFamilies" list (lookup "v1" "Service" "default" "kubernetes") -}}
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

{{- /* The running registry: JSON of its architecture and image. It stays where its volume is for as long as it can. */ -}}
{{- define "zarf-registry.cluster.registry" -}}
{{- if not (hasKey . "ClusterRegistry") -}}
{{- $pod := dig "spec" "template" "spec" dict (lookup "apps/v1" "Deployment" .Release.Namespace (include "zarf-registry.fullname" .)) -}}
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

{{- /* The pause images of one architecture: JSON of
  image       the newest that any node reports: new nodes are likely to have it
  nodes       node → all the pause images that it reports; nodes that report none are left out (the kubelet reports the
              50 largest images only, and pause is the smallest)
  exceptions  image → the nodes that report other pause images but not the newest, by the newest of their own
Takes root, architecture. */ -}}
{{- define "zarf-registry.cluster.pause" -}}
{{- $key := printf "ClusterPause-%s" .architecture -}}
{{- if not (hasKey .root $key) -}}
{{- include "zarf-registry.cluster.loadNodes" .root -}}
{{- $nodes := dict -}}
{{- $count := dict -}}
{{- range $name, $node := .root.ClusterNodes -}}
{{- if eq (dig "status" "nodeInfo" "architecture" "" $node) $.architecture -}}
{{- $images := list -}}
{{- range dig "status" "images" list $node -}}
{{- $tagged := list -}}
{{- $digests := list -}}
{{- range .names -}}
{{- if regexMatch "(^|/)(mirrored-)?pause(-amd64|-arm64)?[:@]" . -}}
{{- if contains "@" . -}}
{{- $digests = append $digests . -}}
{{- else -}}
{{- $tagged = append $tagged . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $images = concat $images (default $digests $tagged) -}}
{{- end -}}
{{- with $images | uniq | sortAlpha -}}
{{- $_ := set $nodes $name . -}}
{{- range . -}}
{{- $_ := set $count . (add 1 (default 0 (get $count .))) -}}
{{- end -}}
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
{{- $_ := set .root $key (dict "image" $newest "nodes" $nodes "exceptions" $exceptions) -}}
{{- end -}}
{{- get .root $key | toJson -}}
{{- end -}}

{{- /* The nodes that are ready and report the image that the Jobs run: JSON array of names. */ -}}
{{- define "zarf-registry.cluster.hookNodes" -}}
{{- include "zarf-registry.cluster.loadNodes" . -}}
{{- $image := include "zarf-registry.image" (dict "root" . "image" .Values.initHook.image) -}}
{{- $names := list -}}
{{- range $name, $node := .ClusterNodes -}}
{{- $ready := false -}}
{{- range dig "status" "conditions" list $node -}}
{{- if and (eq .type "Ready") (eq .status "True") -}}
{{- $ready = true -}}
{{- end -}}
{{- end -}}
{{- range $ready | ternary (dig "status" "images" list $node) list -}}
{{- if has $image .names -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}
