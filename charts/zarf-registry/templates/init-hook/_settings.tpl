{{- /* Sets .zr.settings to the decisions of the chart for all Jobs, with their sources: internal/release/settings. They
stand as JSON in the arguments of Jobs, so they name Secrets and hold none. Templates render what init-hook must create or
check; what init-hook can derive from it is not in here. Empty fields may be left out. */ -}}
{{- define "zarf-registry.decide.settings" -}}
{{- $zr := .zr -}}
{{- $settings := dict
  "namespace" $zr.namespace
  "release" .Release.Name
  "name" $zr.name
  "mode" $zr.mode.value
  "modeSource" $zr.mode.source
  "address" $zr.address
  "port" (int .Values.port)
  "ipFamily" $zr.ipFamily.value
  "ipFamilySource" $zr.ipFamily.source
  "architectures" .Values.injector.architectures
  "openShift" $zr.openshift
  "injector" dict
  "push" dict
  "preflight" (dict "ignore" .Values.initHook.ignorePreflight "labelNamespace" .Values.podSecurity.label)
  "finish" (dict
    "verifyPulls" .Values.initHook.verifyPulls
    "maxFailedNodes" (default 0 .Values.initHook.maxFailedNodes | toString)
    "localRegistryHosting" $zr.advertised) -}}
{{- $_ := set .zr "settings" $settings -}}
{{- with $zr.mode.reason -}}
{{- $_ := set $settings "modeReason" . -}}
{{- end -}}
{{- if not (regexMatch "^v?[23]\\." .Capabilities.HelmVersion.Version) -}}
{{- $_ := set $settings "helmAdopts" true -}}
{{- end -}}
{{- with omit $zr.hookDigests "index" -}}
{{- $_ := set $settings.push "hookDigests" . -}}
{{- end -}}
{{- include "zarf-registry.settings.injector" . -}}
{{- include "zarf-registry.settings.workloads" . -}}
{{- if $zr.internal -}}
{{- include "zarf-registry.settings.registry" . -}}
{{- else -}}
{{- $_ := set $settings "registryURL" $zr.mode.url -}}
{{- end -}}

{{- with $zr.nodeConfig -}}
{{- if .enabled -}}
{{- $names := list -}}
{{- range $.Values.injector.architectures -}}
{{- $names = append $names (printf "%s-node-config-%s" $zr.nodeConfig.name .) -}}
{{- end -}}
{{- $_ := set $settings "nodeConfig" (dict
  "directories" .config.directories "directoriesInUse" .inUse "ca" .ca "daemonSets" $names) -}}
{{- with .config.mirrors -}}
{{- $_ := set $settings.nodeConfig "mirrors" . -}}
{{- end -}}
{{- if .agentsOnly -}}
{{- $_ := set $settings.nodeConfig "agentsOnly" true -}}
{{- end -}}
{{- with .config.k3s.existingSecret -}}
{{- $key := $.Values.nodeConfig.k3s.existingSecretKey -}}
{{- $_ := merge $settings.nodeConfig (dict "registriesSecret" . "registriesKey" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.settings.injector" -}}
{{- $injector := .zr.settings.injector -}}
{{- $_ := set $injector "enabled" (and .Values.injector.enabled .zr.injects) -}}
{{- if .zr.injects -}}
{{- $_ := set $injector "payloadID" .zr.payloadID -}}
{{- end -}}
{{- if .zr.healer -}}
{{- $_ := set $injector "healer" true -}}
{{- end -}}
{{- if $injector.enabled -}}
{{- with .zr.payloadDigests -}}
{{- $_ := set $injector "digests" . -}}
{{- end -}}
{{- if .zr.internal -}}
{{- $_ := set $injector "registryArchitecture" .zr.architecture.value -}}
{{- end -}}
{{- $images := dict -}}
{{- range $architecture, $image := .zr.pause.images -}}
{{- $_ := set $images $architecture (dict "reference" $image.value "source" $image.source "reason" $image.reason) -}}
{{- end -}}
{{- $_ := merge $injector (dict "pauseImages" $images "pauseRules" .zr.pause.rules) -}}
{{- end -}}
{{- end -}}

{{- /* What the values say about the placement and size of each workload's pods. values is the path of its values. */ -}}
{{- define "zarf-registry.settings.workloads" -}}
{{- $workloads := list -}}
{{- range $workload := list
  (list "registry" "registry" .zr.internal)
  (list "proxy" "proxy" .zr.proxyMode)
  (list "cache" "cache" .zr.cache.enabled)
  (list "healer" "healer" .zr.healer)
  (list "nodeConfig" "node-config" .zr.nodeConfig.enabled)
  (list "initHook" "certificates" .zr.certificates)
  (list "initHook" "init-hook" true) -}}
{{- $values := index $workload 0 -}}
{{- $component := index $workload 1 -}}
{{- $own := get $.Values $values -}}
{{- $pod := get $.zr.pods $values -}}
{{- $all := dict
  "values" $values
  "component" $component
  "resources" $pod.resources
  "tolerations" $pod.tolerations
  "priorityClassName" $pod.priorityClassName -}}
{{- if ne $component "certificates" -}}
{{- $nodeAffinity := default dict (default dict $own.affinity).nodeAffinity -}}
{{- $terms := dig "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list $nodeAffinity -}}
{{- $_ := merge $all (dict "nodeSelector" $own.nodeSelector "nodeTerms" $terms) -}}
{{- end -}}
{{- if and (eq $component "registry") (or $.Values.injector.enabled $own.architecture) -}}
{{- $_ := set $all "architecture" $.zr.architecture.value -}}
{{- end -}}
{{- $set := dict -}}
{{- range $key, $value := $all -}}
{{- if $value -}}
{{- $_ := set $set $key $value -}}
{{- end -}}
{{- end -}}
{{- if last $workload -}}
{{- $workloads = append $workloads $set -}}
{{- end -}}
{{- end -}}
{{- $_ := set .zr.settings "workloads" $workloads -}}
{{- end -}}

{{- define "zarf-registry.settings.registry" -}}
{{- $zr := .zr -}}
{{- $settings := $zr.settings -}}
{{- if not $zr.portOwned -}}
{{- $_ := set $settings "unreservedPort" true -}}
{{- end -}}
{{- $_ := set $settings "anonymousPull" .Values.auth.anonymousPull -}}
{{- $_ := set $settings.push "secret" .Values.auth.existingSecret -}}
{{- $names := list -}}
{{- range $zr.proxyMode | ternary .Values.injector.architectures list -}}
{{- $names = append $names (printf "%s-proxy-%s" $zr.name .) -}}
{{- end -}}
{{- $_ := set $settings "proxy" (dict "hostNetwork" $zr.hostNetwork "daemonSets" $names) -}}
{{- with $zr.nodePorts -}}
{{- $_ := set $settings.proxy "nodePorts" . -}}
{{- end -}}
{{- if $zr.cache.enabled -}}
{{- $_ := set $settings "cache" (dict "enabled" true) -}}
{{- end -}}

{{- $_ := set $settings "pki" (dict
  "mode" $zr.pki.value
  "source" $zr.pki.source
  "leafLifetime" .Values.pki.lifetime.certificate
  "caLifetime" .Values.pki.lifetime.ca
  "clusterDomain" .Values.clusterDomain
  "serveTLS" (eq $zr.tls.value "always")) -}}
{{- if eq $zr.pki.value "existingSecret" -}}
{{- $_ := set $settings.pki "existing" $zr.pki.existing -}}
{{- end -}}
{{- if $zr.zarf -}}
{{- $_ := set $settings.pki "zarf" true -}}
{{- end -}}
{{- if $zr.pki.issuer.name -}}
{{- $_ := set $settings.pki "issuer" $zr.pki.issuer -}}
{{- end -}}

{{- $expose := dict -}}
{{- if $zr.expose.enabled -}}
{{- $expose = dict "address" $zr.expose.address -}}
{{- if not .Values.expose.tls.certManager.issuerRef.name -}}
{{- $_ := set $expose "tlsSecret" $zr.expose.tlsSecret -}}
{{- end -}}
{{- end -}}
{{- $_ := set $settings "expose" $expose -}}

{{- /* Where the registry stores images. Without an endpoint if the registry connects through an HTTP proxy, because only
the proxy may reach it. */ -}}
{{- $storage := dict -}}
{{- if $zr.registry.mountsClaim -}}
{{- $claim := .Values.registry.persistence -}}
{{- $wanted := dict "name" $zr.name "accessModes" $claim.accessModes "size" $claim.size -}}
{{- if not (kindIs "invalid" $claim.storageClass) -}}
{{- $_ := set $wanted "storageClass" $claim.storageClass -}}
{{- end -}}
{{- if $claim.existingClaim -}}
{{- $wanted = dict "name" $claim.existingClaim "existing" true -}}
{{- end -}}
{{- if $zr.registry.several -}}
{{- $_ := set $wanted "shared" true -}}
{{- end -}}
{{- $_ := set $storage "claim" $wanted -}}
{{- end -}}
{{- with .Values.registry.storage -}}
{{- if eq .type "s3" -}}
{{- $endpoint := .s3.regionEndpoint -}}
{{- range $zr.pods.registry.env -}}
{{- if has (upper .name) (list "HTTP_PROXY" "HTTPS_PROXY") -}}
{{- $endpoint = "" -}}
{{- end -}}
{{- end -}}
{{- $s3 := dict "endpoint" $endpoint "secret" .s3.existingSecret "caSecret" .s3.caSecret -}}
{{- $_ := set $storage "s3" $s3 -}}
{{- end -}}
{{- end -}}
{{- if and $zr.cache.enabled .Values.cache.storageClass -}}
{{- $_ := set $storage "cacheClass" .Values.cache.storageClass -}}
{{- end -}}
{{- if $storage -}}
{{- $_ := set $settings "storage" $storage -}}
{{- end -}}
{{- end -}}
