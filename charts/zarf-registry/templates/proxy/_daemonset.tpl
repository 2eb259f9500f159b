{{- /* A DaemonSet of proxies. Takes root and an element of "zarf-registry.proxies". */ -}}
{{- define "zarf-registry.proxy.daemonset" -}}
{{- $fullname := include "zarf-registry.fullname" .root }}
{{- $values := .root.Values }}
{{- $proxy := $values.proxy }}
{{- $pod := include "zarf-registry.pod.values" (dict "root" .root "values" $proxy) | fromJson }}
{{- $hostPort := include "zarf-registry.hostPort" .root }}
{{- $family := (include "zarf-registry.ipFamily" .root | fromJson).value }}
{{- /* DaemonSets with equal selectors would adopt each other's pods. */}}
{{- $selector := include "zarf-registry.selectorLabels" (dict "root" .root "component" "proxy") | fromYaml }}
{{- $_ := set $selector "zarf-registry/proxies" .architecture }}
{{- /* Kept when a switch to nodeport mode no longer renders them: nodes pull through them until finish has verified a
pull through the node port on each, and deletes them. */}}
{{- $annotations := include "zarf-registry.kept" .root | fromYaml -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" .name "component" "proxy" "annotations" $annotations) | nindent 2 }}
spec:
  revisionHistoryLimit: 3
  {{- if $hostPort }}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      {{- /* No maxSurge: two pods cannot share a hostPort, and the rollout would never finish. */}}
      maxUnavailable: {{ $proxy.updateStrategy.maxUnavailable }}
  {{- else }}
  {{- /* Old and new pods briefly share the port. Probes use that port too, so the old pod may answer for the new one:
  the exec probe waits for the program, and these seconds until it listens. */}}
  minReadySeconds: 3
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  {{- end }}
  selector:
    matchLabels:
      {{- toYaml $selector | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "zarf-registry.podLabels" (dict "root" .root "component" "proxy" "selector" $selector "extra" $pod.podLabels) | nindent 8 }}
      annotations:
        {{- /* Port on which init-hook asks what the pod has loaded. */}}
        {{- merge (dict "zarf-registry/metrics-port" (int $proxy.metricsPort | toString)) $pod.podAnnotations | toYaml | nindent 8 }}
    spec:
      serviceAccountName: {{ $fullname }}-proxy
      automountServiceAccountToken: false
      {{- /* Pulls take the registry's address from the environment and do not depend on cluster DNS. */}}
      enableServiceLinks: true
      {{- if not $hostPort }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- /* --drain-timeout, plus time to exit. */}}
      terminationGracePeriodSeconds: 30
      {{- with $pod.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      {{- with include "zarf-registry.pullSecrets" .root | fromJsonArray }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- /* On the node's network, every process of the same user can share the port (SO_REUSEPORT). So proxies there
        have a user of their own: 60847 is in a range that neither distributions nor systemd, container images by
        convention, or the kubelet's user namespaces use. */}}
        {{- include "zarf-registry.pod.securityContextOf" (dict "root" .root "user" (empty $hostPort | ternary 60847 65532)) | nindent 8 }}
      nodeSelector:
        kubernetes.io/arch: {{ .architecture }}
        kubernetes.io/os: linux
        {{- with $proxy.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with include "zarf-registry.pod.tolerations" (dict "root" .root "tolerations" $proxy.tolerations) }}
      tolerations:
        {{- . | nindent 8 }}
      {{- end }}
      {{- $hosts := list (include "zarf-registry.program.serviceHost" $fullname) }}
      {{- if include "zarf-registry.cache" .root }}
      {{- $hosts = append $hosts (include "zarf-registry.program.serviceHost" (include "zarf-registry.cache.name" .root)) }}
      {{- end }}
      containers:
        - name: proxy
          {{- include "zarf-registry.program.container" (dict "root" .root "program" "registry-node" "pause" .pause "supervise" true "env" $pod.extraEnv "injected" $hosts "mounts" (include "zarf-registry.tls.volumeMount" .)) | nindent 10 }}
          args:
            - proxy
            {{- if $values.injector.enabled }}
            {{- /* Nothing here changes with the program: the loader hands the port over to a changed one. */}}
            - --ready-fd=3
            {{- else }}
            - --program-version={{ include "zarf-registry.program.version" (dict "root" .root "program" "registry-node" "architecture" .architecture) }}
            {{- end }}
            {{- if $hostPort }}
            - --listen=:5000
            - --metrics-listen=:{{ $proxy.metricsPort }}
            {{- else }}
            {{- /* Loopback only, since this is the node's network. */}}
            {{- if ne $family "IPv6" }}
            - --listen=127.0.0.1:{{ $values.port }}
            {{- end }}
            {{- if ne $family "IPv4" }}
            - --listen=[::1]:{{ $values.port }}
            {{- end }}
            - --metrics-listen={{ eq $family "IPv6" | ternary "[::1]" "127.0.0.1" }}:{{ $proxy.metricsPort }}
            {{- end }}
            {{- if or $values.injector.enabled (not $hostPort) }}
            - --reuse-port
            {{- end }}
            - --registry={{ $fullname }}.{{ include "zarf-registry.namespace" .root }}.svc:5000
            {{- if include "zarf-registry.cache" .root }}
            - --cache={{ include "zarf-registry.cache.address" .root }}
            {{- end }}
            - --tls-dir=/etc/zarf-registry/tls
            - --tls={{ (include "zarf-registry.tls" .root | fromJson).value }}
            - --retry-timeout={{ $proxy.retryTimeout }}
            - --drain-timeout=20s
            - --log-level={{ $values.logLevel }}
            - --log-format=json
          {{- if $hostPort }}
          ports:
            - name: registry
              containerPort: 5000
              hostIP: 127.0.0.1
              hostPort: {{ $values.port }}
              protocol: TCP
            - name: metrics
              containerPort: {{ $proxy.metricsPort }}
              protocol: TCP
          {{- else }}
          {{- /* No ports: the scheduler would keep a second pod off the node. */}}
          {{- end }}
          startupProbe:
            {{- if $hostPort }}
            {{- include "zarf-registry.proxy.probe" (dict "root" .root "path" "/healthz") | nindent 12 }}
            {{- else }}
            exec:
              command:
                - {{ $values.injector.enabled | ternary "/program" "" }}/registry-node
                - version
            timeoutSeconds: 5
            {{- end }}
            {{- /* Two minutes to start: the loader may wait 20 s for chunks, more than once. */}}
            periodSeconds: 1
            failureThreshold: 120
          livenessProbe:
            {{- include "zarf-registry.proxy.probe" (dict "root" .root "path" "/healthz") | nindent 12 }}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            {{- include "zarf-registry.proxy.probe" (dict "root" .root "path" "/readyz") | nindent 12 }}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 2
          resources:
            {{- toYaml $proxy.resources | nindent 12 }}
          securityContext:
            {{- include "zarf-registry.container.securityContext" .root | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
      volumes:
        {{- with include "zarf-registry.program.volumes" (dict "root" .root "program" "registry-node" "architecture" .architecture) }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- include "zarf-registry.tls.volume" (printf "%s-node-tls" $fullname) | nindent 8 }}
{{- end -}}

{{- /* Takes root, path. */ -}}
{{- define "zarf-registry.proxy.probe" -}}
httpGet:
  path: {{ .path }}
  {{- if include "zarf-registry.hostPort" .root }}
  port: metrics
  {{- else }}
  {{- /* Probes come from the node, whose loopback interface the pod shares. */}}
  host: {{ eq (include "zarf-registry.ipFamily" .root | fromJson).value "IPv6" | ternary "::1" "127.0.0.1" | quote }}
  port: {{ .root.Values.proxy.metricsPort }}
  {{- end }}
{{- end -}}
