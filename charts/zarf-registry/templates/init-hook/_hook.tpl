{{- /* Parts shared by the hook Jobs and the objects that they need. */ -}}

{{- define "zarf-registry.hook.name" -}}
{{- printf "%s-hook" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* The name of cluster-scoped objects, with the namespace: releases of one name in two namespaces must not share
rights. */ -}}
{{- define "zarf-registry.hook.clusterName" -}}
{{- printf "%s-%s" (include "zarf-registry.namespace" .) (include "zarf-registry.hook.name" .) -}}
{{- end -}}

{{- /* Hooks of one weight run in the order of their names, so identity, rights and Jobs have different weights. A
failed Job stays until the next run, for its log. Takes events, weight. */ -}}
{{- define "zarf-registry.hook.annotations" -}}
helm.sh/hook: {{ .events }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "zarf-registry.hook.events" -}}
pre-install,pre-upgrade,pre-rollback,post-install,post-upgrade,post-rollback,pre-delete
{{- end -}}

{{- /* Annotations of the ServiceAccount (weight -20) and of the RBAC objects (-10). */ -}}
{{- define "zarf-registry.hook.identity" -}}
{{- include "zarf-registry.hook.annotations" (dict "events" (include "zarf-registry.hook.events" .) "weight" "-20") -}}
{{- end -}}

{{- define "zarf-registry.hook.rights" -}}
{{- include "zarf-registry.hook.annotations" (dict "events" (include "zarf-registry.hook.events" .) "weight" "-10") -}}
{{- end -}}

{{- /* The decisions of the chart for all Jobs, with their sources: internal/release/settings, as JSON. It stands in the
arguments of Jobs, so it names Secrets and holds none. Templates render what init-hook must create or check; what
init-hook can derive from it is not in here. */ -}}
{{- define "zarf-registry.hook.settings" -}}
{{- $mode := include "zarf-registry.mode" . | fromJson -}}
{{- $family := include "zarf-registry.ipFamily" . | fromJson -}}
{{- $injector := dict "enabled" (and .Values.injector.enabled (include "zarf-registry.injects" . | empty | not)) -}}
{{- if include "zarf-registry.injects" . -}}
{{- $_ := set $injector "payloadID" (include "zarf-registry.payloadID" .) -}}
{{- end -}}
{{- if include "zarf-registry.healer" . -}}
{{- $_ := set $injector "healer" true -}}
{{- end -}}
{{- if $injector.enabled -}}
{{- with include "zarf-registry.payloadDigests" . | fromJson -}}
{{- $_ := set $injector "digests" . -}}
{{- end -}}
{{- if include "zarf-registry.internal" . -}}
{{- $_ := set $injector "registryArchitecture" (include "zarf-registry.architecture" . | fromJson).value -}}
{{- end -}}
{{- $images := dict -}}
{{- range .Values.injector.architectures -}}
{{- $pause := include "zarf-registry.pause" (dict "root" $ "architecture" .) | fromJson -}}
{{- $_ := set $images . (dict "reference" $pause.value "source" $pause.source "reason" $pause.reason) -}}
{{- end -}}
{{- $_ := set $injector "pauseImages" $images -}}
{{- $_ := set $injector "pauseRules" (include "zarf-registry.pause.rules" . | fromJson) -}}
{{- end -}}
{{- $settings := dict
  "namespace" (include "zarf-registry.namespace" .)
  "release" .Release.Name
  "name" (include "zarf-registry.fullname" .)
  "mode" $mode.value
  "modeSource" $mode.source
  "address" (include "zarf-registry.address" .)
  "port" (int .Values.port)
  "ipFamily" $family.value
  "ipFamilySource" $family.source
  "architectures" .Values.injector.architectures
  "openShift" (include "zarf-registry.openshift" . | empty | not)
  "injector" $injector
  "push" (dict "images" .Values.initHook.pushImages)
  "preflight" (dict
    "ignore" (default list .Values.initHook.ignorePreflight)
    "labelNamespace" (include "zarf-registry.podSecurityLabel" . | empty | not))
  "finish" (dict
    "verifyPulls" .Values.initHook.verifyPulls
    "localRegistryHosting" (include "zarf-registry.advertised" . | empty | not)) -}}
{{- with omit (include "zarf-registry.hookDigests" . | fromJson) "index" -}}
{{- $_ := set $settings.push "hookDigests" . -}}
{{- end -}}
{{- with include "zarf-registry.releaseNamespace" . -}}
{{- $_ := set $settings "releaseNamespace" . -}}
{{- end -}}
{{- if include "zarf-registry.internal" . -}}
{{- if not (include "zarf-registry.portOwned" .) -}}
{{- $_ := set $settings "unreservedPort" true -}}
{{- end -}}
{{- $_ := set $settings "anonymousPull" (include "zarf-registry.anonymousPull" . | empty | not) -}}
{{- $_ := set $settings "proxy" (include "zarf-registry.hook.settings.proxy" . | fromJson) -}}
{{- if include "zarf-registry.cache" . -}}
{{- $_ := set $settings "cache" (dict "enabled" true) -}}
{{- end -}}
{{- $_ := set $settings "pki" (include "zarf-registry.hook.settings.pki" . | fromJson) -}}
{{- $_ := set $settings.push "secret" (include "zarf-registry.pushSecret" .) -}}
{{- with include "zarf-registry.pushCredentials" . | fromJsonArray -}}
{{- $_ := set $settings.push "credentials" . -}}
{{- end -}}
{{- $_ := set $settings "expose" (include "zarf-registry.hook.settings.expose" . | fromJson) -}}
{{- if include "zarf-registry.signatures" . -}}
{{- $_ := set $settings "signatures" (dict "keysSecret" (include "zarf-registry.signatures.secret" .)) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $settings "registryURL" $mode.url -}}
{{- end -}}
{{- with include "zarf-registry.hook.settings.workloads" . | fromJsonArray -}}
{{- $_ := set $settings "workloads" . -}}
{{- end -}}
{{- with include "zarf-registry.hook.settings.pullSecrets" . | fromJsonArray -}}
{{- $_ := set $settings "pullSecrets" . -}}
{{- end -}}
{{- with include "zarf-registry.hook.settings.storage" . | fromJson -}}
{{- $_ := set $settings "storage" . -}}
{{- end -}}
{{- with $mode.reason -}}
{{- $_ := set $settings "modeReason" . -}}
{{- end -}}
{{- if include "zarf-registry.nodeConfig" . -}}
{{- $_ := set $settings "nodeConfig" (include "zarf-registry.hook.settings.nodeConfig" . | fromJson) -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- /* What the values say about the placement and size of each workload's pods, as a JSON array. values is the path of
its values. */ -}}
{{- define "zarf-registry.hook.settings.workloads" -}}
{{- $all := list -}}
{{- $hook := .Values.initHook -}}
{{- if include "zarf-registry.internal" . -}}
{{- $registry := .Values.registry -}}
{{- $all = append $all (dict "values" "registry" "component" "registry" "from" $registry "tolerations" $registry.tolerations "affinity" $registry.affinity "architecture" (or .Values.injector.enabled (ne $registry.architecture "auto") | ternary (include "zarf-registry.architecture" . | fromJson).value "")) -}}
{{- end -}}
{{- if include "zarf-registry.proxyMode" . -}}
{{- $all = append $all (dict "values" "proxy" "component" "proxy" "from" .Values.proxy "tolerations" .Values.proxy.tolerations) -}}
{{- end -}}
{{- if include "zarf-registry.cache" . -}}
{{- $cache := .Values.cache -}}
{{- $tolerations := kindIs "invalid" $cache.tolerations | ternary .Values.registry.tolerations $cache.tolerations -}}
{{- $all = append $all (dict "values" "cache" "component" "cache" "from" $cache "tolerations" $tolerations) -}}
{{- end -}}
{{- if include "zarf-registry.healer" . -}}
{{- $all = append $all (dict "values" "healer" "component" "healer" "from" .Values.healer "tolerations" .Values.healer.tolerations) -}}
{{- end -}}
{{- if include "zarf-registry.nodeConfig" . -}}
{{- $all = append $all (dict "values" "nodeConfig" "component" "node-config" "from" .Values.nodeConfig "tolerations" .Values.nodeConfig.tolerations) -}}
{{- end -}}
{{- if include "zarf-registry.certificates" . -}}
{{- $all = append $all (dict "values" "initHook" "component" "certificates" "from" (pick $hook "resources") "tolerations" $hook.tolerations) -}}
{{- end -}}
{{- $all = append $all (dict "values" "initHook" "component" "init-hook" "from" $hook "tolerations" $hook.tolerations "affinity" $hook.affinity) -}}
{{- $rendered := list -}}
{{- range $all -}}
{{- $one := dict "values" .values "component" .component -}}
{{- with .architecture -}}
{{- $_ := set $one "architecture" . -}}
{{- end -}}
{{- range $key, $value := pick .from "nodeSelector" "resources" -}}
{{- if $value -}}
{{- $_ := set $one $key $value -}}
{{- end -}}
{{- end -}}
{{- with (include "zarf-registry.pod.values" (dict "root" $ "values" .from) | fromJson).priorityClassName -}}
{{- $_ := set $one "priorityClassName" . -}}
{{- end -}}
{{- with include "zarf-registry.pod.tolerations" (dict "root" $ "tolerations" .tolerations) | fromYamlArray -}}
{{- $_ := set $one "tolerations" . -}}
{{- end -}}
{{- with dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list (default dict .affinity) -}}
{{- $_ := set $one "nodeTerms" . -}}
{{- end -}}
{{- $rendered = append $rendered $one -}}
{{- end -}}
{{- toJson $rendered -}}
{{- end -}}

{{- /* The names of the pull secrets of the registry and the proxies, as a JSON array. Injected programs need none. */ -}}
{{- define "zarf-registry.hook.settings.pullSecrets" -}}
{{- $names := list -}}
{{- if and (not .Values.injector.enabled) (include "zarf-registry.injects" .) -}}
{{- range include "zarf-registry.pullSecrets" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- uniq $names | toJson -}}
{{- end -}}

{{- /* Where the registry stores images, as JSON; empty if it needs neither a claim nor S3. Without an endpoint if the
registry connects through an HTTP proxy, because only the proxy may reach it. */ -}}
{{- define "zarf-registry.hook.settings.storage" -}}
{{- $storage := dict -}}
{{- if include "zarf-registry.internal" . -}}
{{- with .Values.registry -}}
{{- if include "zarf-registry.mountsClaim" $ -}}
{{- $claim := .persistence -}}
{{- if $claim.existingClaim -}}
{{- $_ := set $storage "claim" (dict "name" $claim.existingClaim "existing" true) -}}
{{- else -}}
{{- $wanted := dict "name" (include "zarf-registry.fullname" $) "accessModes" $claim.accessModes "size" $claim.size -}}
{{- if not (kindIs "invalid" $claim.storageClass) -}}
{{- $_ := set $wanted "storageClass" $claim.storageClass -}}
{{- end -}}
{{- $_ := set $storage "claim" $wanted -}}
{{- end -}}
{{- if include "zarf-registry.several" $ -}}
{{- $_ := set $storage.claim "shared" true -}}
{{- end -}}
{{- end -}}
{{- if eq .storage.type "s3" -}}
{{- $s3 := .storage.s3 -}}
{{- $_ := set $storage "s3" (dict "endpoint" $s3.regionEndpoint "secret" $s3.existingSecret "caSecret" $s3.caSecret) -}}
{{- range (include "zarf-registry.pod.values" (dict "root" $ "values" .) | fromJson).extraEnv -}}
{{- if has (upper .name) (list "HTTP_PROXY" "HTTPS_PROXY") -}}
{{- $_ := set $storage.s3 "endpoint" "" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with include "zarf-registry.cache" . | empty | ternary "" .Values.cache.storageClass -}}
{{- $_ := set $storage "cacheClass" . -}}
{{- end -}}
{{- toJson $storage -}}
{{- end -}}

{{- define "zarf-registry.hook.settings.proxy" -}}
{{- $names := list -}}
{{- if include "zarf-registry.proxyMode" . -}}
{{- range include "zarf-registry.proxies" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- dict "hostNetwork" (eq (include "zarf-registry.hostNetwork" .) "true") "daemonSets" $names | toJson -}}
{{- end -}}

{{- define "zarf-registry.hook.settings.pki" -}}
{{- $pki := include "zarf-registry.pki" . | fromJson -}}
{{- $settings := dict
  "mode" $pki.value
  "source" $pki.source
  "leafLifetime" .Values.pki.lifetime.certificate
  "caLifetime" .Values.pki.lifetime.ca
  "clusterDomain" .Values.clusterDomain
  "serveTLS" (eq (include "zarf-registry.tls" . | fromJson).value "always") -}}
{{- if eq $pki.value "existingSecret" -}}
{{- $_ := set $settings "existing" $pki.existing -}}
{{- end -}}
{{- if include "zarf-registry.zarf" . -}}
{{- $_ := set $settings "zarf" true -}}
{{- end -}}
{{- if $pki.issuer.name -}}
{{- $_ := set $settings "issuer" $pki.issuer -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- define "zarf-registry.hook.settings.expose" -}}
{{- $settings := dict -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := .Values.expose -}}
{{- $settings = dict
  "hosts" $expose.hosts
  "usersSecret" $expose.pullUsersSecret
  "address" (include "zarf-registry.expose.address" .) -}}
{{- if not $expose.tls.certManager.issuerRef.name -}}
{{- $_ := set $settings "tlsSecret" (include "zarf-registry.expose.tlsSecret" .) -}}
{{- end -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- define "zarf-registry.hook.settings.nodeConfig" -}}
{{- $config := .NodeConfig.config -}}
{{- $names := list -}}
{{- range include "zarf-registry.nodeConfig.daemonsets" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $settings := dict
  "directories" $config.directories
  "directoriesInUse" .NodeConfig.inUse
  "ca" (empty $config.crio.certsDirectory | not)
  "daemonSets" $names -}}
{{- with $config.mirrors -}}
{{- $_ := set $settings "mirrors" . -}}
{{- end -}}
{{- if include "zarf-registry.nodeConfig.agentsOnly" . -}}
{{- $_ := set $settings "agentsOnly" true -}}
{{- end -}}
{{- if $config.k3s.existingSecret -}}
{{- $_ := set $settings "registriesSecret" $config.k3s.existingSecret -}}
{{- $_ := set $settings "registriesKey" $config.k3s.existingSecretKey -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- /* One Job. Takes root, step (the command, and the suffix of the name), events, stale (the Job may run long after it
was rendered), and architecture, where only one will do. */ -}}
{{- define "zarf-registry.hook.job" -}}
{{- $image := include "zarf-registry.hookImage" .root | fromJson -}}
{{- $hook := .root.Values.initHook -}}
{{- $pod := include "zarf-registry.pod.values" (dict "root" .root) | fromJson -}}
{{- $annotations := include "zarf-registry.hook.annotations" (dict "events" .events "weight" "0") | fromYaml -}}
{{- $_ := set $annotations "helm.sh/hook-output-log-policy" "hook-failed" -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" (printf "%s-%s" (include "zarf-registry.fullname" .root) .step) "component" "init-hook" "annotations" $annotations) | nindent 2 }}
spec:
  {{- /* The program counts its timeout from the Job's start, over all attempts, and reports why it stops; this deadline
  is for pods that never start. A Job that exceeds its deadline loses its pod and log, so it leaves 45 s to report,
  switch back and delete pods. */}}
  activeDeadlineSeconds: {{ add (include "zarf-registry.seconds" $hook.timeout) 45 }}
  {{- /* Failed Jobs keep their log for a week; Helm deletes the others. */}}
  ttlSecondsAfterFinished: 604800
  {{- /* A run continues the previous one, so retries help, except after a refusal (exit code 3). Evicted pods and lost
  nodes do not count. */}}
  backoffLimit: 2
  podFailurePolicy:
    {{- include "zarf-registry.hook.podFailurePolicy" . | nindent 4 }}
  template:
    metadata:
      labels:
        {{- include "zarf-registry.podLabels" (dict "root" .root "component" "init-hook" "extra" $pod.podLabels) | nindent 8 }}
      {{- with $pod.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- /* With OnFailure, the pod and its log would be deleted when the Job fails. */}}
      restartPolicy: Never
      serviceAccountName: {{ include "zarf-registry.hook.name" .root }}
      automountServiceAccountToken: true
      {{- /* Pushes take the registry's address from the environment and do not depend on cluster DNS. */}}
      enableServiceLinks: true
      {{- with $pod.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      {{- $secrets := include "zarf-registry.pullSecrets" .root | fromJsonArray }}
      {{- if $image.pushed }}
      {{- $secrets = append $secrets (dict "name" (printf "%s-pull" (include "zarf-registry.fullname" .root))) }}
      {{- end }}
      {{- with $secrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- include "zarf-registry.pod.securityContext" .root | nindent 8 }}
      nodeSelector:
        kubernetes.io/os: linux
        {{- with default .architecture $image.pushed }}
        kubernetes.io/arch: {{ . }}
        {{- end }}
        {{- with $hook.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with include "zarf-registry.pod.tolerations" (dict "root" .root "tolerations" $hook.tolerations) }}
      tolerations:
        {{- . | nindent 8 }}
      {{- end }}
      {{- with include "zarf-registry.hook.affinity" . }}
      affinity:
        {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: init-hook
          image: {{ $image.value | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command:
            - /init-hook
          args:
            - {{ .step }}
            {{- list (include "zarf-registry.hook.settings" .root | printf "--settings=%s") | toYaml | nindent 12 }}
            - --timeout={{ $hook.timeout }}
            - --in-cluster
            - --log-format=json
          {{- with $pod.extraEnv }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          resources:
            {{- toYaml $hook.resources | nindent 12 }}
          securityContext:
            {{- include "zarf-registry.container.securityContext" .root | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}

{{- define "zarf-registry.hook.podFailurePolicy" -}}
rules:
  - action: Ignore
    onPodConditions:
      - type: DisruptionTarget
        status: "True"
  - action: FailJob
    onExitCodes:
      containerName: init-hook
      operator: In
      values:
        - 3
{{- end -}}

{{- /* Control-plane nodes are preferred: the Job's token is worth as much as they are, and any node can report that it
has the image. The nodes that have it are required, since others may not be able to pull it; but preferred only if the
Job may run long after it was rendered, when they may be gone, or if the registry has it. Takes root, stale. */ -}}
{{- define "zarf-registry.hook.affinity" -}}
{{- $image := include "zarf-registry.hookImage" .root | fromJson -}}
{{- if .root.Values.initHook.affinity -}}
{{- toYaml .root.Values.initHook.affinity -}}
{{- else -}}
{{- $terms := include "zarf-registry.pod.nodeTerms" $image.nodes | fromYamlArray -}}
{{- $optional := or .stale $image.pushed -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    {{- /* Any node is better than one that cannot get the image. */}}
    - weight: {{ and $optional $terms (not $image.pushed) | empty | ternary 100 10 }}
      preference:
        matchExpressions:
          - key: node-role.kubernetes.io/control-plane
            operator: Exists
    {{- range $optional | empty | ternary list $terms }}
    - weight: {{ $image.pushed | empty | ternary 100 50 }}
      preference:
        {{- toYaml . | nindent 8 }}
    {{- end }}
  {{- if and $terms (not $optional) }}
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- toYaml $terms | nindent 6 }}
  {{- end }}
{{- end -}}
{{- end -}}
