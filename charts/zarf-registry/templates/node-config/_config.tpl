{{- /* Files of container runtimes on the nodes. Messages never contain what the user wrote: it may be secret. */ -}}

{{- /* Sets .zr.nodeConfig:
  enabled     nodes get files, or may have files that must be removed
  config      what the pods are told, internal/node/noderuntime.Config
  inUse       the directories that files are written to
  registries  registries.yaml of the values, or empty
  containerd  containerd's configuration directories on all nodes
  ca          nodes must trust the proxies' certificates: CRI-O that refuses plain HTTP from loopback needs it
  agentsOnly  control-plane nodes are left out: on servers of K3s and RKE2 a directory in use contains an administrator's
              kubeconfig or keys. Directories that are no longer in use are restored on every node
  salt        a random value that is kept in the Secret with the node configuration. Empty without passwords in the values,
              and without a cluster
  sum         identifies the configuration, and stands in pods: who may read pods must not be able to guess passwords
              with it. Without a salt, derivePassword (scrypt, salted with the release) makes each guess expensive
  checksum    pods are replaced when this changes. Includes the user's Secret if it can be seen
  name        the prefix of the DaemonSets: their suffixes are longer than the full name leaves room for */ -}}
{{- define "zarf-registry.decide.nodeConfig" -}}
{{- $settings := .Values.nodeConfig -}}
{{- $k3s := $settings.k3s -}}
{{- $configures := or (not (empty $k3s.registries)) (not (empty $k3s.existingSecret)) -}}
{{- $mirrors := default list $settings.mirrors -}}
{{- $hosts := $settings.containerd.hosts -}}
{{- $release := printf "%s/%s" .zr.namespace .Release.Name -}}
{{- $config := dict "release" $release "force" $settings.force "containerd" dict "k3s" dict "crio" dict -}}
{{- if .zr.internal -}}
{{- $_ := set $config "address" .zr.address -}}
{{- end -}}
{{- $inUse := list -}}

{{- /* The nodes' runtimes, and where theirs differ, the paths. If unknown: k3s if that is configured, else containerd. */ -}}
{{- $runtimes := $settings.runtimes -}}
{{- if and (not $runtimes) (or $configures $mirrors $hosts) -}}
{{- include "zarf-registry.cluster.loadRuntimes" . -}}
{{- $runtimes = default (list ($configures | ternary "k3s" "containerd")) .zr.cluster.runtimes -}}
{{- end -}}
{{- $distribution := and (has "rke2" $runtimes) (not (has "k3s" $runtimes)) | ternary "rke2" "k3s" -}}
{{- $containerd := list -}}
{{- range $settings.containerd.path | empty | ternary $runtimes list -}}
{{- if eq . "containerd" -}}
{{- /* Where config_path is unset, containerd since 2.2 uses the list /etc/containerd/certs.d:/etc/docker/certs.d, which
its transfer service takes for the name of one directory (containerd/containerd#12808). */ -}}
{{- $containerd = concat $containerd (list "/etc/containerd/certs.d" "/etc/containerd/certs.d:/etc/docker/certs.d") -}}
{{- else if ne . "crio" -}}
{{- $containerd = append $containerd (printf "/var/lib/rancher/%s/agent/etc/containerd/certs.d" $distribution) -}}
{{- end -}}
{{- end -}}
{{- with $settings.containerd.path -}}
{{- $containerd = list (clean .) -}}
{{- end -}}
{{- $containerd = $containerd | uniq | sortAlpha -}}

{{- $registries := "" -}}
{{- if $configures -}}
{{- if $k3s.registries -}}
{{- $registries = kindIs "string" $k3s.registries | ternary $k3s.registries (toYaml $k3s.registries | printf "%s\n") -}}
{{- end -}}
{{- $file := default (printf "/etc/rancher/%s/registries.yaml" $distribution) $k3s.path | clean -}}
{{- $inUse = append $inUse (dir $file) -}}
{{- $_ := set $config.k3s "file" $file -}}
{{- if $k3s.existingSecret -}}
{{- $_ := merge $config.k3s (pick $k3s "existingSecret" "existingSecretKey") -}}
{{- end -}}
{{- end -}}

{{- if or $mirrors $hosts -}}
{{- if $containerd -}}
{{- $_ := set $config.containerd "directories" $containerd -}}
{{- $inUse = concat $inUse $containerd -}}
{{- end -}}
{{- if $hosts -}}
{{- $_ := set $config.containerd "hosts" $hosts -}}
{{- end -}}
{{- if $mirrors -}}
{{- $_ := set $config "mirrors" $mirrors -}}
{{- end -}}
{{- end -}}

{{- $ca := $settings.crio.ca -}}
{{- if not (kindIs "bool" $ca) -}}
{{- $ca = and .zr.proxyMode (eq .zr.tls.value "always") -}}
{{- if and $ca $settings.runtimes -}}
{{- $ca = has "crio" $settings.runtimes -}}
{{- else if $ca -}}
{{- $ca = eq (include "zarf-registry.cluster.tls" .) "always" -}}
{{- end -}}
{{- end -}}
{{- if $ca -}}
{{- $_ := set $config.crio "certsDirectory" "/etc/containers/certs.d" -}}
{{- $inUse = append $inUse $config.crio.certsDirectory -}}
{{- end -}}
{{- if or $settings.crio.insecure (and $mirrors (has "crio" $runtimes)) -}}
{{- $_ := merge $config.crio (dict
  "confDirectory" "/etc/containers/registries.conf.d" "insecure" $settings.crio.insecure) -}}
{{- $inUse = append $inUse $config.crio.confDirectory -}}
{{- end -}}
{{- $inUse = $inUse | uniq | sortAlpha -}}

{{- /* Directories that may have files of previous revisions. A rendering that cannot see the cluster depends on the
value. */ -}}
{{- $directories := $inUse -}}
{{- $previous := default list $settings.directories -}}
{{- if or $previous (kindIs "invalid" $settings.directories) -}}
{{- $previous = default list .zr.state.nodeDirectories | concat $previous -}}
{{- end -}}
{{- range $previous -}}
{{- $directories = append $directories (clean .) -}}
{{- end -}}
{{- $directories = $directories | uniq | sortAlpha -}}
{{- $_ := set $config "directories" $directories -}}

{{- $certificates := include "zarf-registry.nodeConfig.certificates" . | fromJsonArray -}}
{{- range $settings.tlsDirectories -}}
{{- $certificates = append $certificates (clean .) -}}
{{- end -}}
{{- /* Directories inside mounted ones need no mount. */ -}}
{{- $outer := list -}}
{{- range $directory := $certificates | uniq | sortAlpha -}}
{{- $inside := false -}}
{{- range concat $directories $outer -}}
{{- $inside = or $inside (eq $directory .) (hasPrefix (printf "%s/" .) $directory) -}}
{{- end -}}
{{- if not $inside -}}
{{- $outer = append $outer $directory -}}
{{- end -}}
{{- end -}}
{{- if $outer -}}
{{- $_ := set $config "tlsDirectories" $outer -}}
{{- end -}}

{{- $agentsOnly := false -}}
{{- $servers := "^/(etc(/rancher(/(k3s|rke2))?)?|var(/lib(/rancher(/(k3s|rke2)(/server(/.*)?)?)?)?)?)$" -}}
{{- range concat $inUse $outer -}}
{{- $agentsOnly = or $agentsOnly (and (not $k3s.controlPlane) (regexMatch $servers .)) -}}
{{- end -}}

{{- $salt := "" -}}
{{- $sum := "" -}}
{{- $version := "" -}}
{{- if $directories -}}
{{- $content := printf "%s\n%s" (toJson $config) $registries -}}
{{- if or $registries $hosts -}}
{{- $salt = include "zarf-registry.cluster.salt" . -}}
{{- if $salt -}}
{{- $content = printf "%s\n%s" $salt $content -}}
{{- else -}}
{{- $content = derivePassword 1 "maximum" $content $release "node-config" -}}
{{- end -}}
{{- end -}}
{{- $sum = sha256sum $content | trunc 32 -}}
{{- with $k3s.existingSecret -}}
{{- $version = include "zarf-registry.cluster.secretVersion" (list $ .) -}}
{{- end -}}
{{- end -}}

{{- $_ := set .zr "nodeConfig" (dict
  "enabled" (not (empty $directories))
  "config" $config
  "inUse" $inUse
  "registries" $registries
  "containerd" $containerd
  "ca" $ca
  "agentsOnly" $agentsOnly
  "salt" $salt
  "sum" $sum
  "checksum" (printf "%s\n%s" $sum $version | sha256sum | trunc 32)
  "name" (.zr.name | trunc 35 | trimSuffix "-")) -}}
{{- end -}}

{{- /* "true" for a path that can be mounted: absolute, without . and .., and without separators of lists. */ -}}
{{- define "zarf-registry.nodeConfig.isPath" -}}
{{- if and (regexMatch "^(/[^/:,\\\\[:cntrl:]]+)+/?$" .) (not (regexMatch "/\\.\\.?(/|$)" .)) -}}true{{- end -}}
{{- end -}}

{{- /* "true" for a directory that may be written to: the configuration directories of container runtimes. */ -}}
{{- define "zarf-registry.nodeConfig.allowed" -}}
{{- $roots := "^/(etc/(containerd|containers|rancher|k0s|crio)|var/lib/rancher|var/snap/(microk8s|k8s))(/|$)" -}}
{{- $listed := eq . "/etc/containerd/certs.d:/etc/docker/certs.d" -}}
{{- if or $listed (and (include "zarf-registry.nodeConfig.isPath" .) (regexMatch $roots .)) -}}true{{- end -}}
{{- end -}}

{{- /* Directories of the certificates that the configuration names: JSON array. Paths that cannot be mounted are left
out, and not checked. */ -}}
{{- define "zarf-registry.nodeConfig.certificates" -}}
{{- $settings := .Values.nodeConfig -}}
{{- $files := list -}}
{{- $registries := default dict $settings.k3s.registries -}}
{{- if kindIs "string" $registries -}}
{{- $registries = fromYaml $registries -}}
{{- end -}}
{{- if kindIs "map" $registries.configs -}}
{{- range $entry := $registries.configs -}}
{{- if kindIs "map" $entry -}}
{{- if kindIs "map" $entry.tls -}}
{{- $files = concat $files (list $entry.tls.ca_file $entry.tls.cert_file $entry.tls.key_file) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* Only the values of these two keys of hosts.toml: nothing else in it may leak. */ -}}
{{- range $text := $settings.containerd.hosts -}}
{{- range regexFindAll "(?m)^[ \\t]*(ca|client)[ \\t]*=[^=]*" (toString $text) -1 -}}
{{- range regexFindAll "[\"']/[^\"'\\n]+[\"']" . -1 -}}
{{- $files = append $files (trimAll "\"'" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $directories := list -}}
{{- range $files -}}
{{- if kindIs "string" . -}}
{{- if include "zarf-registry.nodeConfig.isPath" . -}}
{{- $directories = append $directories (dir .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- without ($directories | uniq | sortAlpha) "/" | toJson -}}
{{- end -}}

{{- /* The data of the Secret with the node configuration, and of its proposal for prepare. Pods wait until the kubelet
has mounted the sum in their arguments. */ -}}
{{- define "zarf-registry.nodeConfig.data" -}}
{{- with .zr.nodeConfig -}}
sum: {{ b64enc .sum }}
config.json: {{ .config | toJson | b64enc }}
{{- with .registries }}
registries.yaml: {{ b64enc . }}
{{- end }}
{{- with .salt }}
salt: {{ b64enc . }}
{{- end }}
{{- end -}}
{{- end -}}
