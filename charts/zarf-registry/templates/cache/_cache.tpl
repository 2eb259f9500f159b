{{- /* Cache pods stand between the proxies and the registry, in proxy mode. */ -}}

{{- /* The values ask for caches: in a Deployment, or in a DaemonSet for each group of nodes. */ -}}
{{- define "zarf-registry.cache.wanted" -}}
{{- if or (gt (int .Values.cache.replicas) 0) .Values.cache.nodeSelector -}}true{{- end -}}
{{- end -}}

{{- /* Condition: the chart deploys caches. */ -}}
{{- define "zarf-registry.cache" -}}
{{- if and (include "zarf-registry.proxyMode" .) (include "zarf-registry.cache.wanted" .) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.cache.deployment" -}}
{{- if and (include "zarf-registry.cache" .) (gt (int .Values.cache.replicas) 0) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.cache.daemonSets" -}}
{{- if and (include "zarf-registry.cache" .) .Values.cache.nodeSelector -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.cache.name" -}}
{{- printf "%s-cache" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Where proxies find the caches. */ -}}
{{- define "zarf-registry.cache.address" -}}
{{- printf "%s.%s.svc:5000" (include "zarf-registry.cache.name" .) (include "zarf-registry.namespace" .) -}}
{{- end -}}

{{- /* Clients reach the caches of their zone, if it has any. PreferSameZone is the name from 1.34; only from 1.35 can no
feature gate withhold it. Empty below 1.31, whose API server does not know the field. */ -}}
{{- define "zarf-registry.cache.trafficDistribution" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if semverCompare ">=1.35-0" $version -}}PreferSameZone
{{- else if semverCompare ">=1.31-0" $version -}}PreferClose
{{- end -}}
{{- end -}}

{{- /* The size of the volume: an eighth more than what the cache stores, for downloads in progress and for what a file
system needs for itself. Its unit is smaller than that of cache.size, so that it is an integer. */ -}}
{{- define "zarf-registry.cache.volumeSize" -}}
{{- $size := .Values.cache.size -}}
{{- $smaller := dict "Mi" "Ki" "Gi" "Mi" "Ti" "Gi" -}}
{{- printf "%d%s" (regexFind "^[0-9]+" $size | atoi | mul 1152) (get $smaller (regexFind "[A-Za-z]+$" $size)) -}}
{{- end -}}

{{- /* What a cache mounts, besides the payload. */ -}}
{{- define "zarf-registry.cache.volumeMounts" -}}
{{- include "zarf-registry.tls.volumeMount" . }}
- name: cache
  mountPath: /var/cache/zarf-registry
{{- end -}}

{{- /* The pod template. Takes root, architecture, pause, selector (labels besides selectorLabels), affinity and spread
(YAML; may be empty). */ -}}
{{- define "zarf-registry.cache.template" -}}
{{- $fullname := include "zarf-registry.fullname" .root }}
{{- $values := .root.Values }}
{{- $settings := $values.cache }}
{{- $pod := include "zarf-registry.pod.values" (dict "root" .root) | fromJson -}}
metadata:
  labels:
    {{- include "zarf-registry.podLabels" (dict "root" .root "component" "cache" "selector" .selector "extra" $pod.podLabels) | nindent 4 }}
  annotations:
    {{- /* Port on which init-hook asks what the pod has loaded. */}}
    {{- merge (dict "zarf-registry/metrics-port" "9102") $pod.podAnnotations | toYaml | nindent 4 }}
spec:
  serviceAccountName: {{ include "zarf-registry.cache.name" .root }}
  automountServiceAccountToken: false
  {{- /* Requests take the registry's address from the environment and do not depend on cluster DNS. */}}
  enableServiceLinks: true
  {{- /* --drain-timeout, plus time to exit. */}}
  terminationGracePeriodSeconds: 30
  {{- with $pod.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with include "zarf-registry.pullSecrets" .root | fromJsonArray }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "zarf-registry.pod.securityContext" .root | nindent 4 }}
  nodeSelector:
    {{- with .architecture }}
    kubernetes.io/arch: {{ . }}
    {{- end }}
    kubernetes.io/os: linux
    {{- with $settings.nodeSelector }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $tolerations := kindIs "slice" $settings.tolerations | ternary $settings.tolerations $values.registry.tolerations }}
  {{- with include "zarf-registry.pod.tolerations" (dict "root" .root "tolerations" $tolerations) }}
  tolerations:
    {{- . | nindent 4 }}
  {{- end }}
  {{- with .affinity }}
  affinity:
    {{- . | nindent 4 }}
  {{- end }}
  {{- with .spread }}
  topologySpreadConstraints:
    {{- . | nindent 4 }}
  {{- end }}
  {{- $hosts := list (include "zarf-registry.program.serviceHost" $fullname) }}
  containers:
    - name: cache
      {{- include "zarf-registry.program.container" (dict "root" .root "program" "registry-node" "pause" .pause "supervise" true "env" $pod.extraEnv "injected" $hosts "mounts" (include "zarf-registry.cache.volumeMounts" .)) | nindent 6 }}
      args:
        - cache
        {{- if $values.injector.enabled }}
        {{- /* Nothing here changes with the program: the loader hands the port over to a changed one. */}}
        - --ready-fd=3
        {{- else }}
        - --program-version={{ include "zarf-registry.program.version" (dict "root" .root "program" "registry-node" "architecture" .architecture) }}
        {{- end }}
        - --listen=:5000
        - --metrics-listen=:9102
        - --registry={{ $fullname }}.{{ include "zarf-registry.namespace" .root }}.svc:5000
        - --tls-dir=/etc/zarf-registry/tls
        - --dir=/var/cache/zarf-registry
        - --size={{ $settings.size }}
        - --stale-for={{ $settings.staleFor }}
        - --drain-timeout=20s
        - --log-level={{ $values.logLevel }}
        - --log-format=json
      ports:
        - name: registry
          containerPort: 5000
          protocol: TCP
        - name: metrics
          containerPort: 9102
          protocol: TCP
      {{- /* Two minutes to start: the loader may wait 20 s for chunks, more than once. */}}
      startupProbe:
        httpGet:
          path: /healthz
          port: metrics
        periodSeconds: 1
        failureThreshold: 120
      livenessProbe:
        httpGet:
          path: /healthz
          port: metrics
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet:
          path: /readyz
          port: metrics
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      resources:
        {{- toYaml $settings.resources | nindent 8 }}
      securityContext:
        {{- include "zarf-registry.container.securityContext" .root | nindent 8 }}
      terminationMessagePolicy: FallbackToLogsOnError
  volumes:
    {{- with include "zarf-registry.program.volumes" (dict "root" .root "program" "registry-node" "architecture" .architecture) }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- include "zarf-registry.tls.volume" (printf "%s-cache-tls" $fullname) | nindent 4 }}
    - name: cache
      {{- if $settings.storageClass }}
      {{- /* Deleted with the pod: another one fetches what it needs. */}}
      ephemeral:
        volumeClaimTemplate:
          spec:
            accessModes:
              - ReadWriteOnce
            storageClassName: {{ $settings.storageClass | quote }}
            resources:
              requests:
                storage: {{ include "zarf-registry.cache.volumeSize" .root }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ include "zarf-registry.cache.volumeSize" .root }}
      {{- end }}
{{- end -}}

{{- define "zarf-registry.cache.validate" -}}
{{- $settings := .Values.cache -}}
{{- if and (gt (int $settings.replicas) 0) $settings.nodeSelector -}}
{{- fail (printf "zarf-registry: cache.nodeSelector: it runs one cache on each selected node, and cache.replicas asks for %d anywhere; remove one of them" (int $settings.replicas)) -}}
{{- end -}}
{{- end -}}
