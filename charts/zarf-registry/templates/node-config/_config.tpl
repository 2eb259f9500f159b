{{- /* The node configuration and its directories, computed once per rendering and kept in the root context. Messages
never contain what the user wrote: it may be secret. */ -}}

{{- /* "true" for a path that can be mounted: absolute, without . and .., and without separators of lists. */ -}}
{{- define "zarf-registry.nodeConfig.isPath" -}}
{{- if and (regexMatch "^(/[^/:,\\\\[:cntrl:]]+)+/?$" .) (not (regexMatch "/\\.\\.?(/|$)" .)) -}}true{{- end -}}
{{- end -}}

{{- /* "true" for a directory that may be written to: the configuration directories of container runtimes. */ -}}
{{- define "zarf-registry.nodeConfig.allowed" -}}
{{- $roots := "^/(etc/(containerd|containers|rancher|k0s|crio)|var/lib/rancher|var/snap/(microk8s|k8s))(/|$)" -}}
{{- $listed := include "zarf-registry.nodeConfig.containerd.listed" . -}}
{{- if or (eq . $listed) (and (include "zarf-registry.nodeConfig.isPath" .) (regexMatch $roots .)) -}}true{{- end -}}
{{- end -}}

{{- /* Where config_path is unset, containerd since 2.2 uses the list /etc/containerd/certs.d:/etc/docker/certs.d, which
its transfer service takes for the name of one directory (containerd/containerd#12808). */ -}}
{{- define "zarf-registry.nodeConfig.containerd.listed" -}}
/etc/containerd/certs.d:/etc/docker/certs.d
{{- end -}}

{{- /* The nodes' runtimes: JSON array. If unknown: k3s if that is configured, else containerd. */ -}}
{{- define "zarf-registry.nodeConfig.runtimes" -}}
{{- $settings := .Values.nodeConfig -}}
{{- $runtimes := $settings.runtimes -}}
{{- if not $runtimes -}}
{{- $runtimes = include "zarf-registry.cluster.runtimes" . | fromJsonArray -}}
{{- end -}}
{{- if not $runtimes -}}
{{- $runtimes = list (or $settings.k3s.registries $settings.k3s.existingSecret | empty | ternary "containerd" "k3s") -}}
{{- end -}}
{{- $runtimes | toJson -}}
{{- end -}}

{{- /* k3s or rke2: their paths differ. */ -}}
{{- define "zarf-registry.nodeConfig.distribution" -}}
{{- $runtimes := include "zarf-registry.nodeConfig.runtimes" . | fromJsonArray -}}
{{- and (has "rke2" $runtimes) (not (has "k3s" $runtimes)) | ternary "rke2" "k3s" -}}
{{- end -}}

{{- define "zarf-registry.nodeConfig.livePath" -}}
{{- with .Values.nodeConfig.k3s.livePath -}}
{{- clean . -}}
{{- else -}}
{{- printf "/var/lib/rancher/%s/agent/etc/containerd/certs.d" (include "zarf-registry.nodeConfig.distribution" .) -}}
{{- end -}}
{{- end -}}

{{- /* containerd's configuration directories on all nodes: JSON array. */ -}}
{{- define "zarf-registry.nodeConfig.containerd" -}}
{{- $settings := .Values.nodeConfig -}}
{{- $directories := list -}}
{{- if $settings.containerd.path -}}
{{- $directories = list (clean $settings.containerd.path) -}}
{{- else -}}
{{- range include "zarf-registry.nodeConfig.runtimes" . | fromJsonArray -}}
{{- if eq . "containerd" -}}
{{- $directories = append $directories "/etc/containerd/certs.d" -}}
{{- $directories = append $directories (include "zarf-registry.nodeConfig.containerd.listed" $) -}}
{{- else if ne . "crio" -}}
{{- $directories = append $directories (include "zarf-registry.nodeConfig.livePath" $) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $directories | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- /* "true" if nodes must trust the proxies' certificates: CRI-O that refuses plain HTTP from loopback needs
it. */ -}}
{{- define "zarf-registry.nodeConfig.ca" -}}
{{- $settings := .Values.nodeConfig -}}
{{- if kindIs "bool" $settings.crio.ca -}}
{{- if $settings.crio.ca -}}true{{- end -}}
{{- else if and (include "zarf-registry.proxyMode" .) (eq (include "zarf-registry.tls" . | fromJson).value "always") -}}
{{- if $settings.runtimes -}}
{{- if has "crio" $settings.runtimes -}}true{{- end -}}
{{- else if include "zarf-registry.cluster.tls" . -}}true{{- end -}}
{{- end -}}
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

{{- /* Places of registries.yaml in the values where a text goes and a number or a truth value is: JSON array. Helm has
read such a value already, 0123 as 83 and 1.50 as 1.5, and what was written is lost. Hosts are named as far as they look
like some. */ -}}
{{- define "zarf-registry.nodeConfig.unquoted" -}}
{{- $registries := .Values.nodeConfig.k3s.registries -}}
{{- $texts := dict -}}
{{- if kindIs "map" $registries -}}
{{- range $section, $sections := dict
  "mirrors" (dict "mirrors" (list "endpoint" "rewrite"))
  "configs" (dict "auth" (list "username" "password" "auth" "identity_token" "token") "tls" (list "ca_file" "cert_file" "key_file"))
  "auths" (dict "auths" (list "username" "password" "auth" "identity_token" "token")) -}}
{{- $hosts := get $registries $section -}}
{{- range $host, $entry := kindIs "map" $hosts | ternary $hosts dict -}}
{{- $place := printf "%s.%s" $section (regexMatch "^[A-Za-z0-9*._:\\[\\]-]+$" $host | ternary ($host | quote) "<REDACTED>") -}}
{{- range $part, $keys := $sections -}}
{{- $in := $place -}}
{{- $fields := $entry -}}
{{- if and (ne $part $section) (kindIs "map" $entry) -}}
{{- $in = printf "%s.%s" $place $part -}}
{{- $fields = get $entry $part -}}
{{- end -}}
{{- range $key := kindIs "map" $fields | ternary $keys list -}}
{{- $value := get $fields $key -}}
{{- if kindIs "map" $value -}}
{{- $value = values $value -}}
{{- end -}}
{{- range kindIs "slice" $value | ternary $value (list $value) -}}
{{- if or (kindIs "bool" .) (kindIs "float64" .) -}}
{{- $_ := set $texts (printf "nodeConfig.k3s.registries.%s.%s" $in $key) "" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- keys $texts | sortAlpha | toJson -}}
{{- end -}}

{{- /* Puts into .NodeConfig
  config       what the pods are told, internal/node/noderuntime.Config
  inUse        the directories that files are written to
  registries   registries.yaml of the values, empty where there is none */ -}}
{{- define "zarf-registry.nodeConfig.load" -}}
{{- if not (hasKey . "NodeConfig") -}}
{{- $settings := .Values.nodeConfig -}}
{{- $config := dict "release" (printf "%s/%s" (include "zarf-registry.namespace" .) .Release.Name) "force" $settings.force "containerd" dict "k3s" dict "crio" dict -}}
{{- if include "zarf-registry.internal" . -}}
{{- $_ := set $config "address" (include "zarf-registry.address" .) -}}
{{- end -}}
{{- $inUse := list -}}
{{- $registries := "" -}}
{{- if or $settings.k3s.registries $settings.k3s.existingSecret -}}
{{- $registries = kindIs "string" $settings.k3s.registries | ternary $settings.k3s.registries (empty $settings.k3s.registries | ternary "" (toYaml $settings.k3s.registries | printf "%s\n")) -}}
{{- $file := $settings.k3s.path -}}
{{- if not $file -}}
{{- $file = printf "/etc/rancher/%s/registries.yaml" (include "zarf-registry.nodeConfig.distribution" .) -}}
{{- end -}}
{{- $k3s := dict "file" (clean $file) -}}
{{- $inUse = append $inUse (dir (clean $file)) -}}
{{- if $settings.k3s.existingSecret -}}
{{- $_ := set $k3s "existingSecret" $settings.k3s.existingSecret -}}
{{- $_ := set $k3s "existingSecretKey" $settings.k3s.existingSecretKey -}}
{{- end -}}
{{- if $settings.k3s.live -}}
{{- $_ := set $k3s "live" true -}}
{{- $_ := set $k3s "liveDirectory" (include "zarf-registry.nodeConfig.livePath" .) -}}
{{- $inUse = append $inUse $k3s.liveDirectory -}}
{{- end -}}
{{- $_ := set $config "k3s" $k3s -}}
{{- end -}}
{{- if or $settings.mirrors $settings.containerd.hosts -}}
{{- $containerd := dict -}}
{{- with include "zarf-registry.nodeConfig.containerd" . | fromJsonArray -}}
{{- $_ := set $containerd "directories" . -}}
{{- $inUse = concat $inUse . -}}
{{- end -}}
{{- with $settings.containerd.hosts -}}
{{- $_ := set $containerd "hosts" . -}}
{{- end -}}
{{- $_ := set $config "containerd" $containerd -}}
{{- with $settings.mirrors -}}
{{- $_ := set $config "mirrors" . -}}
{{- end -}}
{{- end -}}
{{- if include "zarf-registry.nodeConfig.ca" . -}}
{{- $_ := set $config.crio "certsDirectory" "/etc/containers/certs.d" -}}
{{- $inUse = append $inUse $config.crio.certsDirectory -}}
{{- end -}}
{{- $conf := $settings.crio.insecure -}}
{{- if and $settings.mirrors (not $conf) -}}
{{- $conf = has "crio" (include "zarf-registry.nodeConfig.runtimes" . | fromJsonArray) -}}
{{- end -}}
{{- if $conf -}}
{{- $_ := set $config.crio "confDirectory" "/etc/containers/registries.conf.d" -}}
{{- $_ := set $config.crio "insecure" $settings.crio.insecure -}}
{{- $inUse = append $inUse $config.crio.confDirectory -}}
{{- end -}}
{{- /* Directories that may have files of previous revisions. A rendering that cannot see the cluster depends on the
value. */ -}}
{{- $previous := default list $settings.directories -}}
{{- if or $previous (kindIs "invalid" $settings.directories) -}}
{{- $previous = default list (include "zarf-registry.cluster.state" . | fromJson).nodeDirectories | concat $previous -}}
{{- end -}}
{{- $directories := $inUse -}}
{{- range $previous -}}
{{- $directories = append $directories (clean .) -}}
{{- end -}}
{{- $directories = $directories | uniq | sortAlpha -}}
{{- $_ := set $config "directories" $directories -}}
{{- /* Directories inside mounted ones need no mount. */ -}}
{{- $certificates := list -}}
{{- range $settings.tlsDirectories -}}
{{- $certificates = append $certificates (clean .) -}}
{{- end -}}
{{- $certificates = include "zarf-registry.nodeConfig.certificates" . | fromJsonArray | concat $certificates | uniq | sortAlpha -}}
{{- $outer := list -}}
{{- range $directory := $certificates -}}
{{- $inside := false -}}
{{- range concat $directories $outer -}}
{{- $inside = or $inside (eq $directory .) (hasPrefix (printf "%s/" .) $directory) -}}
{{- end -}}
{{- if not $inside -}}
{{- $outer = append $outer $directory -}}
{{- end -}}
{{- end -}}
{{- with $outer -}}
{{- $_ := set $config "tlsDirectories" . -}}
{{- end -}}
{{- $_ := set . "NodeConfig" (dict "config" $config "inUse" ($inUse | uniq | sortAlpha) "registries" $registries) -}}
{{- end -}}
{{- end -}}

{{- /* "true" if nodes get files, or may have files that must be removed. */ -}}
{{- define "zarf-registry.nodeConfig" -}}
{{- include "zarf-registry.nodeConfig.load" . -}}
{{- if .NodeConfig.config.directories -}}true{{- end -}}
{{- end -}}

{{- /* "true" if control-plane nodes are left out: on servers of K3s and RKE2 a directory in use contains an
administrator's kubeconfig or keys. Directories that are no longer in use are restored on every node. */ -}}
{{- define "zarf-registry.nodeConfig.agentsOnly" -}}
{{- include "zarf-registry.nodeConfig.load" . -}}
{{- if not .Values.nodeConfig.k3s.controlPlane -}}
{{- $found := false -}}
{{- range concat .NodeConfig.inUse (default list .NodeConfig.config.tlsDirectories) -}}
{{- $found = or $found (regexMatch "^/(etc(/rancher(/(k3s|rke2))?)?|var(/lib(/rancher(/(k3s|rke2)(/server(/.*)?)?)?)?)?)$" .) -}}
{{- end -}}
{{- if $found -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The data of the Secret with the node configuration, and of its proposal for prepare. Pods wait until the kubelet
has mounted the sum in their arguments. */ -}}
{{- define "zarf-registry.nodeConfig.data" -}}
{{- include "zarf-registry.nodeConfig.load" . -}}
sum: {{ include "zarf-registry.nodeConfig.sum" . | b64enc }}
config.json: {{ .NodeConfig.config | toJson | b64enc }}
{{- with .NodeConfig.registries }}
registries.yaml: {{ b64enc . }}
{{- end }}
{{- with include "zarf-registry.nodeConfig.salt" . }}
salt: {{ b64enc . }}
{{- end }}
{{- end -}}

{{- /* A random value that is kept in the Secret with the node configuration. Without passwords in the values, or without
a cluster, where a random value would differ in each rendering, there is none. */ -}}
{{- define "zarf-registry.nodeConfig.salt" -}}
{{- if not (hasKey . "NodeConfigSalt") -}}
{{- include "zarf-registry.nodeConfig.load" . -}}
{{- $salt := "" -}}
{{- if and (or .NodeConfig.registries .NodeConfig.config.containerd.hosts) (include "zarf-registry.cluster.seen" .) -}}
{{- $salt = include "zarf-registry.cluster.salt" . | default (randAlphaNum 32) -}}
{{- end -}}
{{- $_ := set . "NodeConfigSalt" $salt -}}
{{- end -}}
{{- .NodeConfigSalt -}}
{{- end -}}

{{- /* Identifies the configuration, and stands in pods: who may read pods must not be able to guess passwords with it.
Without a salt, derivePassword (scrypt, salted with the release) makes each guess expensive. */ -}}
{{- define "zarf-registry.nodeConfig.sum" -}}
{{- if not (hasKey . "NodeConfigSum") -}}
{{- include "zarf-registry.nodeConfig.load" . -}}
{{- $content := printf "%s\n%s" (.NodeConfig.config | toJson) .NodeConfig.registries -}}
{{- with include "zarf-registry.nodeConfig.salt" . -}}
{{- $content = printf "%s\n%s" . $content -}}
{{- else -}}
{{- if or .NodeConfig.registries .NodeConfig.config.containerd.hosts -}}
{{- $content = derivePassword 1 "maximum" $content .NodeConfig.config.release "node-config" -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "NodeConfigSum" (sha256sum $content | trunc 32) -}}
{{- end -}}
{{- .NodeConfigSum -}}
{{- end -}}

{{- /* Pods are replaced when this changes. Includes the user's Secret if it can be seen. */ -}}
{{- define "zarf-registry.nodeConfig.checksum" -}}
{{- $version := "" -}}
{{- with .Values.nodeConfig.k3s.existingSecret -}}
{{- $version = include "zarf-registry.cluster.secretVersion" (dict "root" $ "name" .) -}}
{{- end -}}
{{- printf "%s\n%s" (include "zarf-registry.nodeConfig.sum" .) $version | sha256sum | trunc 32 -}}
{{- end -}}

{{- /* The node DaemonSets, with the name of those that configure and of those that restore. Their suffixes are longer than
the full name leaves room for. */ -}}
{{- define "zarf-registry.nodeConfig.daemonsets" -}}
{{- $fullname := include "zarf-registry.fullname" . | trunc 35 | trimSuffix "-" -}}
{{- $found := include "zarf-registry.daemonsets" (dict "root" . "name" (printf "%s-node-config" $fullname)) | fromJsonArray -}}
{{- range $found -}}
{{- $_ := set . "restore" (printf "%s-node-restore-%s" $fullname .architecture) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}
