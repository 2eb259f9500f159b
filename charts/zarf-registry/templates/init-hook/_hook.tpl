{{- /* What the Jobs and the objects that they need have in common. */ -}}

{{- define "zarf-registry.hook.name" -}}
{{- printf "%s-hook" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* The name of what belongs to no namespace: with the namespace, so that two releases of one name do not take each
other's rights away. */ -}}
{{- define "zarf-registry.hook.clusterName" -}}
{{- printf "%s-%s" (include "zarf-registry.namespace" .) (include "zarf-registry.hook.name" .) -}}
{{- end -}}

{{- /* Hooks of one weight run in the order of their names, so each has a weight: identity, rights, Job. A Job that
failed stays, so that its log can be read until the next run. Takes events, weight. */ -}}
{{- define "zarf-registry.hook.annotations" -}}
helm.sh/hook: {{ .events }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "zarf-registry.hook.events" -}}
pre-install,pre-upgrade,pre-rollback,post-install,post-upgrade,post-rollback,pre-delete
{{- end -}}

{{- /* The annotations of the ServiceAccount (weight -20) and of the RBAC objects (-10), as an object. */ -}}
{{- define "zarf-registry.hook.identity" -}}
{{- include "zarf-registry.hook.annotations" (dict "events" (include "zarf-registry.hook.events" .) "weight" "-20") -}}
{{- end -}}

{{- define "zarf-registry.hook.rights" -}}
{{- include "zarf-registry.hook.annotations" (dict "events" (include "zarf-registry.hook.events" .) "weight" "-10") -}}
{{- end -}}

{{- /* The arguments that all Jobs share. */ -}}
{{- define "zarf-registry.hook.args" -}}
- --namespace={{ include "zarf-registry.namespace" . }}
- --release={{ .Release.Name }}
- --name={{ include "zarf-registry.fullname" . }}
- --pod-security-label={{ include "zarf-registry.podSecurityLabel" . | empty | not }}
- --timeout={{ .Values.initHook.timeout }}
- --log-format=json
{{- end -}}

{{- /* The arguments that prepare and finish have besides: what was decided, and by whom. With an external registry there
is no address of ours, and nothing to be injected but what configures nodes. */ -}}
{{- define "zarf-registry.hook.decisions" -}}
{{- $mode := include "zarf-registry.mode" . | fromJson -}}
{{- $family := include "zarf-registry.ipFamily" . | fromJson -}}
- --mode={{ $mode.value }}
- --mode-source={{ $mode.source }}
- --ip-family={{ $family.value }}
- --ip-family-source={{ $family.source }}
{{- if include "zarf-registry.openshift" . }}
- --openshift=true
{{- end }}
{{- with .Values.initHook.ignorePreflight }}
- --ignore-preflight={{ join "," . }}
{{- end }}
{{- if include "zarf-registry.internal" . }}
- --port={{ .Values.port }}
- --host-network={{ include "zarf-registry.hostNetwork" . }}
- --proxy-tls={{ (include "zarf-registry.tls" . | fromJson).value }}
- --anonymous-pull={{ include "zarf-registry.anonymousPull" . | empty | not }}
{{- include "zarf-registry.hook.payload" . }}
- --cluster-domain={{ .Values.clusterDomain }}
{{- $pki := include "zarf-registry.pki" . | fromJson }}
{{- $settings := include "zarf-registry.pki.settings" . | fromJson }}
- --pki-mode={{ $pki.value }}
- --pki-source={{ $pki.source }}
- --pki-leaf-lifetime={{ $settings.leaf }}
- --pki-authority-lifetime={{ $settings.authority }}
{{- if eq $pki.value "existingSecret" }}
{{- range $key, $name := $pki.existing }}
{{- if $name }}
- --pki-{{ $key }}-secret={{ $name }}
{{- end }}
{{- end }}
{{- end }}
{{- if $pki.issuer.name }}
- --pki-issuer={{ $pki.issuer.name }}
- --pki-issuer-kind={{ $pki.issuer.kind }}
- --pki-issuer-group={{ $pki.issuer.group }}
{{- end }}
{{- with include "zarf-registry.pushSecret" . }}
- --push-secret={{ . }}
{{- end }}
{{- include "zarf-registry.expose.hookArgs" . }}
{{- else }}
- --registry-url={{ $mode.url }}
{{- if include "zarf-registry.injects" . }}
{{- include "zarf-registry.hook.payload" . }}
{{- else }}
- --injector=false
{{- end }}
{{- end }}
{{- if include "zarf-registry.nodeConfig" . }}
- --node-directories={{ join "," .NodeConfig.config.directories }}
{{- with .NodeConfig.inUse }}
- --node-directories-in-use={{ join "," . }}
{{- end }}
{{- with .NodeConfig.config.k3s.existingSecret }}
- --node-registries-secret={{ . }}
- --node-registries-key={{ $.NodeConfig.config.k3s.existingSecretKey }}
{{- end }}
{{- if .NodeConfig.config.crio.certsDirectory }}
- --node-ca=true
{{- end }}
{{- end }}
{{- end -}}

{{- /* The arguments that cleanup has besides: what the pods run that put files of nodes back. */ -}}
{{- define "zarf-registry.hook.restores" -}}
{{- if and (include "zarf-registry.nodeConfig" .) .Values.injector.enabled -}}
- --payload-id={{ include "zarf-registry.payloadID" . }}
- --architectures={{ join "," .Values.injector.architectures }}
{{- end -}}
{{- end -}}

{{- /* What is injected, and into which images. */ -}}
{{- define "zarf-registry.hook.payload" }}
- --injector={{ .Values.injector.enabled }}
- --payload-id={{ include "zarf-registry.payloadID" . }}
- --architectures={{ join "," .Values.injector.architectures }}
{{- if .Values.injector.enabled }}
- --pause-images={{ include "zarf-registry.pauseImages" . | fromJsonArray | join "," }}
- --pause-image-source={{ (include "zarf-registry.registry.pause" . | fromJson).source }}
{{- end }}
{{- end -}}

{{- /* The arguments that finish has besides. */ -}}
{{- define "zarf-registry.hook.results" -}}
- --local-registry-hosting={{ include "zarf-registry.advertised" . | empty | not }}
{{ with include "zarf-registry.expose.address" . -}}
- --expose-address={{ . }}
{{ end -}}
{{- if include "zarf-registry.proxyMode" . -}}
{{- $names := list -}}
{{- range include "zarf-registry.proxies" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
- --proxies={{ join "," $names }}
{{ end -}}
{{- if include "zarf-registry.nodeConfig" . -}}
{{- $names := list -}}
{{- range include "zarf-registry.nodeConfig.daemonsets" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
- --node-configs={{ join "," $names }}
{{ end -}}
{{- if include "zarf-registry.internal" . -}}
- --prove={{ .Values.initHook.prove }}
- --push-images={{ .Values.initHook.pushImages }}
{{- end -}}
{{- end -}}

{{- /* One Job. Takes root, step (the command, and the suffix of the name), events, args (the names of the helpers that give
its arguments), stale (the Job may run long after it was rendered), and architecture, where only one will do. */ -}}
{{- define "zarf-registry.hook.job" -}}
{{- $image := include "zarf-registry.hookImage" .root | fromJson -}}
{{- $hook := .root.Values.initHook -}}
{{- $annotations := include "zarf-registry.hook.annotations" (dict "events" .events "weight" "0") | fromYaml -}}
{{- $_ := set $annotations "helm.sh/hook-output-log-policy" "hook-failed" -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" (printf "%s-%s" (include "zarf-registry.fullname" .root) .step) "component" "init-hook" "annotations" $annotations) | nindent 2 }}
spec:
  {{- /* The program ends by its own timeout, and says why; this is for the pod that never gets that far. Half a minute
  later, since the Job's end by a deadline takes its pod and log with it. */}}
  activeDeadlineSeconds: {{ add (include "zarf-registry.seconds" $hook.timeout) 30 }}
  {{- /* A week for reading the log of one that failed; Helm deletes the others. */}}
  ttlSecondsAfterFinished: 604800
  {{- /* A run continues what the last one left, so trying again can help. It cannot where the program refuses (2), and a
  pod that was evicted, or whose node went away, does not count. */}}
  backoffLimit: 2
  podFailurePolicy:
    {{- include "zarf-registry.hook.podFailurePolicy" . | nindent 4 }}
  template:
    metadata:
      labels:
        {{- include "zarf-registry.podLabels" (dict "root" .root "component" "init-hook" "extra" $hook.podLabels) | nindent 8 }}
      {{- with $hook.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- /* Never: with OnFailure the pod, and with it the log, is deleted when the Job has failed. */}}
      restartPolicy: Never
      serviceAccountName: {{ include "zarf-registry.hook.name" .root }}
      automountServiceAccountToken: true
      {{- /* The registry's address comes from the environment: pushing must not wait for the cluster's DNS. */}}
      enableServiceLinks: true
      {{- with $hook.priorityClassName }}
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
      {{- with $hook.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with include "zarf-registry.hook.affinity" . }}
      affinity:
        {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: init-hook
          image: {{ $image.value | quote }}
          imagePullPolicy: {{ $hook.image.pullPolicy }}
          command:
            - /init-hook
          args:
            - {{ .step }}
            {{- range .args }}
            {{- with include . $.root }}
            {{- . | trim | nindent 12 }}
            {{- end }}
            {{- end }}
          {{- with $hook.extraEnv }}
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

{{- /* The nodes that have the image already. They are only preferred by a Job that may run long after it was rendered, when
they may be gone, and where the image can be pulled from the registry. Takes root, stale. */ -}}
{{- define "zarf-registry.hook.affinity" -}}
{{- $image := include "zarf-registry.hookImage" .root | fromJson -}}
{{- if .root.Values.initHook.affinity -}}
{{- toYaml .root.Values.initHook.affinity -}}
{{- else if and $image.nodes (or .stale $image.pushed) -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    {{- range include "zarf-registry.pod.nodeTerms" $image.nodes | fromYamlArray }}
    - weight: 100
      preference:
        {{- toYaml . | nindent 8 }}
    {{- end }}
{{- else if $image.nodes -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- include "zarf-registry.pod.nodeTerms" $image.nodes | trim | nindent 6 }}
{{- end -}}
{{- end -}}
