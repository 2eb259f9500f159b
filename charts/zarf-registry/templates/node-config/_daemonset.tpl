{{- /* A DaemonSet that manages files of nodes. Takes root, an element of "zarf-registry.nodeConfig.daemonsets", and
restores: it restores the original files, as a hook before the release is deleted. */ -}}
{{- define "zarf-registry.nodeConfig.daemonset" -}}
{{- include "zarf-registry.nodeConfig.load" .root }}
{{- $fullname := include "zarf-registry.fullname" .root }}
{{- $config := .root.NodeConfig.config }}
{{- $values := .root.Values }}
{{- $settings := $values.nodeConfig }}
{{- $pod := include "zarf-registry.pod.values" (dict "root" .root) | fromJson }}
{{- $component := .restores | ternary "node-restore" "node-config" }}
{{- /* DaemonSets with equal selectors would adopt each other's pods. */}}
{{- $selector := include "zarf-registry.selectorLabels" (dict "root" .root "component" $component) | fromYaml }}
{{- $_ := set $selector "zarf-registry/nodes" .architecture }}
{{- $annotations := dict }}
{{- if .restores }}
{{- $annotations = include "zarf-registry.nodeConfig.hook" (dict "events" "pre-delete") | fromYaml }}
{{- end -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" (.restores | ternary .restore .name) "component" $component "annotations" $annotations) | nindent 2 }}
spec:
  revisionHistoryLimit: 3
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: {{ $settings.updateStrategy.maxUnavailable }}
  selector:
    matchLabels:
      {{- toYaml $selector | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "zarf-registry.podLabels" (dict "root" .root "component" $component "selector" $selector "extra" $pod.podLabels) | nindent 8 }}
      annotations:
        {{- $program := include "zarf-registry.program.version" (dict "root" .root "program" "registry-node" "architecture" .architecture) }}
        {{- merge (dict "zarf-registry/node-config-checksum" (include "zarf-registry.nodeConfig.checksum" .root) "zarf-registry/program" $program) $pod.podAnnotations | toYaml | nindent 8 }}
    spec:
      serviceAccountName: {{ $fullname }}-node-config
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- /* pause stops at once, and writing files can be interrupted at any point. */}}
      terminationGracePeriodSeconds: 5
      {{- with $pod.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      {{- with include "zarf-registry.pullSecrets" .root | fromJsonArray }}
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
        kubernetes.io/arch: {{ .architecture }}
        kubernetes.io/os: linux
        {{- with .restores | ternary dict $settings.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- /* Restore on every node: any of them may have been configured before. */}}
      {{- with include "zarf-registry.pod.tolerations" (dict "root" .root "tolerations" (.restores | ternary (list (dict "operator" "Exists")) $settings.tolerations)) }}
      tolerations:
        {{- . | nindent 8 }}
      {{- end }}
      {{- if and (not .restores) (include "zarf-registry.nodeConfig.agentsOnly" .root) }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - key: node-role.kubernetes.io/control-plane
                    operator: DoesNotExist
                  - key: node-role.kubernetes.io/etcd
                    operator: DoesNotExist
      {{- end }}
      initContainers:
        - name: configure
          {{- include "zarf-registry.program.container" (dict "root" .root "program" "registry-node" "pause" .pause "mounts" (include "zarf-registry.nodeConfig.volumeMounts" $config)) | nindent 10 }}
          args:
            - configure
            - --config-dir=/etc/zarf-registry/node-config
            - --host-root=/host
            {{- if .restores }}
            - --restore
            {{- else }}
            - --config-sum={{ include "zarf-registry.nodeConfig.sum" .root }}
            {{- end }}
          resources:
            {{- toYaml $settings.resources | nindent 12 }}
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
          {{- include "zarf-registry.program.container" (dict "root" .root "program" "registry-node" "pause" .pause) | nindent 10 }}
          args:
            - pause
          resources:
            {{- toYaml $settings.resources | nindent 12 }}
          securityContext:
            {{- include "zarf-registry.container.securityContext" .root | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
      volumes:
        {{- with include "zarf-registry.program.volumes" (dict "root" .root "program" "registry-node" "architecture" .architecture) }}
        {{- . | nindent 8 }}
        {{- end }}
        - name: config
          projected:
            defaultMode: 0400
            sources:
              - secret:
                  name: {{ $fullname }}-node-config
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
                  name: {{ $fullname }}-node-tls
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
{{- end -}}

{{- /* What the program mounts, besides the payload. Takes the node configuration. */ -}}
{{- define "zarf-registry.nodeConfig.volumeMounts" -}}
- name: config
  mountPath: /etc/zarf-registry/node-config
  readOnly: true
{{- range $i, $directory := .directories }}
- name: directory-{{ $i }}
  mountPath: {{ printf "/host%s" $directory | quote }}
{{- end }}
{{- range $i, $directory := .tlsDirectories }}
- name: certificates-{{ $i }}
  mountPath: {{ printf "/host%s" $directory | quote }}
  readOnly: true
{{- end }}
{{- end -}}

{{- /* Created before the Jobs, which need it, and deleted in any case. Takes events. */ -}}
{{- define "zarf-registry.nodeConfig.hook" -}}
helm.sh/hook: {{ .events }}
helm.sh/hook-weight: "-5"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end -}}
