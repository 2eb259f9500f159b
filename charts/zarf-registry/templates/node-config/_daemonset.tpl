{{- /* A DaemonSet that manages files of nodes. Takes a list: root, architecture, restores: it restores the original files,
as a hook before the release is deleted. */ -}}
{{- define "zarf-registry.nodeConfig.daemonset" -}}
{{- $architecture := index . 1 }}
{{- $restores := index . 2 }}
{{- with first . }}
{{- $config := .zr.nodeConfig.config }}
{{- $settings := .Values.nodeConfig }}
{{- $pod := .zr.pods.nodeConfig }}
{{- $program := list . "registry-node" $architecture }}
{{- $component := $restores | ternary "node-restore" "node-config" }}
{{- /* DaemonSets with equal selectors would adopt each other's pods. */}}
{{- $selector := dict "zarf-registry/nodes" $architecture }}
{{- $annotations := $restores | ternary (include "zarf-registry.nodeConfig.hook" "pre-delete" | fromYaml) dict -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- $name := printf "%s-%s-%s" .zr.nodeConfig.name $component $architecture }}
  {{- include "zarf-registry.metadata" (list . $component $name $annotations) | nindent 2 }}
spec:
  revisionHistoryLimit: 3
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: {{ $settings.updateStrategy.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "zarf-registry.selectorLabels" (list . $component) | nindent 6 }}
      {{- toYaml $selector | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "zarf-registry.podLabels" (list . $component $pod.labels $selector) | nindent 8 }}
      annotations:
        {{- $own := dict "zarf-registry/program" (include "zarf-registry.program.version" $program) }}
        {{- merge $own (dict "zarf-registry/node-config-checksum" .zr.nodeConfig.checksum) $pod.annotations | toYaml | nindent 8 }}
    spec:
      serviceAccountName: {{ .zr.name }}-node-config
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- /* pause stops at once, and writing files can be interrupted at any point. */}}
      terminationGracePeriodSeconds: 5
      {{- with $pod.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      {{- with .zr.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- /* The user of the pause image. No fsGroup: only root may read the volumes. */}}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65535
        runAsGroup: 65535
        seccompProfile:
          type: RuntimeDefault
      nodeSelector:
        kubernetes.io/arch: {{ $architecture }}
        kubernetes.io/os: linux
        {{- with $restores | ternary dict $settings.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- /* Restore on every node: any of them may have been configured before. */}}
      {{- with $restores | ternary (list (dict "operator" "Exists")) $pod.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  {{- include "zarf-registry.pod.noVirtualNodes" . | nindent 18 }}
                  {{- if and (not $restores) .zr.nodeConfig.agentsOnly }}
                  - key: node-role.kubernetes.io/control-plane
                    operator: DoesNotExist
                  - key: node-role.kubernetes.io/etcd
                    operator: DoesNotExist
                  {{- end }}
      initContainers:
        - name: configure
          {{- $mounts := list (dict "name" "config" "mountPath" "/etc/zarf-registry/node-config" "readOnly" true) }}
          {{- range $i, $path := $config.directories }}
          {{- $mounts = append $mounts (dict "name" (printf "directory-%d" $i) "mountPath" (printf "/host%s" $path)) }}
          {{- end }}
          {{- range $i, $path := $config.tlsDirectories }}
          {{- $mount := dict "name" (printf "certificates-%d" $i) "mountPath" (printf "/host%s" $path) "readOnly" true }}
          {{- $mounts = append $mounts $mount }}
          {{- end }}
          {{- include "zarf-registry.program.container" (dict "root" . "program" "registry-node"
            "architecture" $architecture "mounts" $mounts) | nindent 10 }}
          args:
            - configure
            - --config-dir=/etc/zarf-registry/node-config
            - --host-root=/host
            {{- if $restores }}
            - --restore
            {{- else }}
            - --config-sum={{ .zr.nodeConfig.sum }}
            {{- end }}
          resources:
            {{- toYaml $pod.resources | nindent 12 }}
          {{- /* Root, because it owns the files; without capabilities that is its only privilege. SELinux denies
          confined containers writing to a node's files. */}}
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
                - ALL
            privileged: false
            readOnlyRootFilesystem: true
            runAsNonRoot: false
            runAsUser: 0
            runAsGroup: 0
            seLinuxOptions:
              type: spc_t
            seccompProfile:
              type: RuntimeDefault
          terminationMessagePolicy: FallbackToLogsOnError
      containers:
        - name: pause
          {{- /* Not the image's own program: the healer may change this image. */}}
          {{- include "zarf-registry.program.container" (dict "root" . "program" "registry-node"
            "architecture" $architecture) | nindent 10 }}
          args:
            - pause
          resources:
            {{- toYaml $pod.resources | nindent 12 }}
          securityContext:
            {{- include "zarf-registry.container.securityContext" . | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
      volumes:
        {{- with include "zarf-registry.program.volumes" $program }}
        {{- . | nindent 8 }}
        {{- end }}
        - name: config
          projected:
            defaultMode: 0400
            sources:
              - secret:
                  name: {{ .zr.name }}-node-config
              {{- if $config.k3s.existingSecret }}
              {{- /* Optional, so that the program can report what is missing. */}}
              - secret:
                  name: {{ $config.k3s.existingSecret | quote }}
                  optional: true
                  items:
                    - key: {{ $config.k3s.existingSecretKey | quote }}
                      path: registries.yaml
              {{- end }}
              {{- if $config.crio.certsDirectory }}
              - secret:
                  name: {{ .zr.name }}-node-tls
                  items:
                    - key: ca.crt
                      path: ca.crt
              {{- end }}
        {{- range $i, $directory := $config.directories }}
        - name: directory-{{ $i }}
          hostPath:
            path: {{ $directory | quote }}
            type: DirectoryOrCreate
        {{- end }}
        {{- range $i, $directory := $config.tlsDirectories }}
        {{- /* Created if missing: then the program reports which file does not exist, instead of a pod that never
        starts. */}}
        - name: certificates-{{ $i }}
          hostPath:
            path: {{ $directory | quote }}
            type: DirectoryOrCreate
        {{- end }}
{{- end }}
{{- end -}}

{{- /* Created before the Jobs, which need it, and deleted in any case. Takes events. */ -}}
{{- define "zarf-registry.nodeConfig.hook" -}}
helm.sh/hook: {{ . }}
helm.sh/hook-weight: "-5"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end -}}
