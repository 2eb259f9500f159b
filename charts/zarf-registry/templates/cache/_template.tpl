{{- /* The pod template of caches, which stand between the proxies and the registry in proxy mode. Takes a list: root,
architecture; optional: a label of the selector besides selectorLabels, which places one pod on each node. */ -}}
{{- define "zarf-registry.cache.template" -}}
{{- $architecture := index . 1 -}}
{{- $selector := append . dict | rest | rest | first -}}
{{- with first . -}}
{{- $settings := .Values.cache -}}
{{- $pod := .zr.pods.cache -}}
{{- /* A payload is for one architecture; an image is for all, but the nodes of a DaemonSet have its architecture. */ -}}
{{- $only := or .Values.injector.enabled (not (empty $selector)) | ternary $architecture "" -}}
{{- /* An eighth more than what the cache stores, for downloads in progress and for what a file system needs for itself.
The unit is smaller than that of cache.size, so that the size is an integer. */ -}}
{{- $smaller := dict "Mi" "Ki" "Gi" "Mi" "Ti" "Gi" -}}
{{- $unit := get $smaller (regexFind "[A-Za-z]+$" $settings.size) -}}
{{- $size := printf "%d%s" (regexFind "^[0-9]+" $settings.size | atoi | mul 1152) $unit -}}
metadata:
  labels:
    {{- include "zarf-registry.podLabels" (list . "cache" $pod.labels $selector) | nindent 4 }}
  annotations:
    {{- /* Port on which init-hook asks what the pod has loaded. */}}
    {{- merge (dict "zarf-registry/metrics-port" "9102") $pod.annotations | toYaml | nindent 4 }}
spec:
  serviceAccountName: {{ .zr.name }}-cache
  automountServiceAccountToken: false
  {{- /* Requests take the registry's address from the environment and do not depend on cluster DNS. */}}
  enableServiceLinks: true
  {{- /* --drain-timeout, plus time to exit. */}}
  terminationGracePeriodSeconds: 30
  {{- with $pod.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .zr.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "zarf-registry.pod.securityContext" (list .) | nindent 4 }}
  nodeSelector:
    {{- with $only }}
    kubernetes.io/arch: {{ . }}
    {{- end }}
    kubernetes.io/os: linux
    {{- with $settings.nodeSelector }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $pod.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not $selector }}
  affinity:
    {{- /* A cache that is lost together with the registry does not help. */}}
    {{- include "zarf-registry.pod.apart" (list . "cache" "registry") | nindent 4 }}
  topologySpreadConstraints:
    {{- include "zarf-registry.pod.spread" (list . "cache") | nindent 4 }}
  {{- end }}
  containers:
    - name: cache
      {{- $hosts := list (include "zarf-registry.program.serviceHost" .zr.name) }}
      {{- $tls := dict "name" "tls" "mountPath" "/etc/zarf-registry/tls" "readOnly" true }}
      {{- $mounts := list $tls (dict "name" "cache" "mountPath" "/var/cache/zarf-registry") }}
      {{- include "zarf-registry.program.container" (dict "root" . "program" "registry-node" "architecture" $architecture
        "supervise" true "env" $pod.env "injected" $hosts "mounts" $mounts) | nindent 6 }}
      args:
        - cache
        {{- if .Values.injector.enabled }}
        {{- /* Nothing here changes with the program: the loader hands the port over to a changed one. */}}
        - --ready-fd=3
        {{- else }}
        - --program-version={{ include "zarf-registry.program.version" (list . "registry-node" $architecture) }}
        {{- end }}
        - --listen=:5000
        - --metrics-listen=:9102
        - --registry={{ .zr.name }}.{{ .zr.namespace }}.svc:5000
        - --tls-dir=/etc/zarf-registry/tls
        - --dir=/var/cache/zarf-registry
        - --size={{ $settings.size }}
        - --stale-for={{ $settings.staleFor }}
        - --drain-timeout=20s
        - --log-level={{ .Values.logLevel }}
        - --log-format=json
      ports:
        - name: registry
          containerPort: 5000
          protocol: TCP
        - name: metrics
          containerPort: 9102
          protocol: TCP
      {{- include "zarf-registry.container.probes" (list "metrics") | nindent 6 }}
      resources:
        {{- toYaml $settings.resources | nindent 8 }}
      securityContext:
        {{- include "zarf-registry.container.securityContext" . | nindent 8 }}
      terminationMessagePolicy: FallbackToLogsOnError
  volumes:
    {{- with include "zarf-registry.program.volumes" (list . "registry-node" $architecture) }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- include "zarf-registry.tls.volume" (printf "%s-cache-tls" .zr.name) | nindent 4 }}
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
                storage: {{ $size }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ $size }}
      {{- end }}
{{- end -}}
{{- end -}}
