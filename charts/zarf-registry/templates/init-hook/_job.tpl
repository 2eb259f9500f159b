{{- /* The hook Jobs and the objects that they need. */ -}}

{{- /* The annotations of a hook. Hooks of one weight run in the order of their names, so identity, rights and Jobs have
different weights. A failed Job stays until the next run, for its log. Takes a list: weight; optional: events (default:
those of all Jobs). */ -}}
{{- define "zarf-registry.hook.annotations" -}}
{{- $all := "pre-install,pre-upgrade,pre-rollback,post-install,post-upgrade,post-rollback,pre-delete" -}}
helm.sh/hook: {{ append . $all | rest | first }}
helm.sh/hook-weight: {{ first . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- /* One Job. Takes a list: root, step (the command, and the suffix of the name), events; optional: weight (default: 0). */ -}}
{{- define "zarf-registry.hook.job" -}}
{{- $step := index . 1 -}}
{{- $annotations := include "zarf-registry.hook.annotations" (list (append . 0 | rest | rest | rest | first) (index . 2)) | fromYaml -}}
{{- $_ := set $annotations "helm.sh/hook-output-log-policy" "hook-failed" -}}
{{- if eq $step "finish" -}}
{{- /* Argo CD would run PostSync hooks only when all else is healthy. finish waits itself, and not for nodes that are off. */ -}}
{{- $_ := set $annotations "argocd.argoproj.io/hook" "Sync" -}}
{{- $_ := set $annotations "argocd.argoproj.io/hook-delete-policy" "BeforeHookCreation,HookSucceeded" -}}
{{- end -}}
{{- with first . -}}
{{- $image := .zr.hookImage -}}
{{- $hook := .Values.initHook -}}
{{- $pod := .zr.pods.initHook -}}
{{- $architecture := $image.pushed -}}
{{- if and (eq $step "finish") .zr.certificates .zr.cronJobImage.pin -}}
{{- $architecture = default .zr.cronJobImage.architecture $architecture -}}
{{- end -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "zarf-registry.metadata" (list . "init-hook" (printf "%s-%s" .zr.name $step) $annotations) | nindent 2 }}
spec:
  {{- /* The program counts its timeout from the Job's start, over all attempts, and reports why it stops; this deadline
  is for pods that never start. A Job that exceeds its deadline loses its pod and log, so it leaves 45 s to report,
  switch back and delete pods. */}}
  activeDeadlineSeconds: {{ add (include "zarf-registry.seconds" .zr.hookTimeout) 45 }}
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
        {{- include "zarf-registry.podLabels" (list . "init-hook" $pod.labels) | nindent 8 }}
      {{- with $pod.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- /* With OnFailure, the pod and its log would be deleted when the Job fails. */}}
      restartPolicy: Never
      serviceAccountName: {{ .zr.name }}-hook
      automountServiceAccountToken: true
      {{- /* Pushes take the registry's address from the environment and do not depend on cluster DNS. */}}
      enableServiceLinks: true
      {{- with $pod.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      {{- with $image.pushed | empty | ternary .zr.pullSecrets (append .zr.pullSecrets (dict "name" (printf "%s-pull" .zr.name))) }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- include "zarf-registry.pod.securityContext" (list .) | nindent 8 }}
      {{- /* With a pushed image, the user has set no nodeSelector. Nodes without a proxy cannot pull it. */}}
      {{- $proxies := and (ne $image.pushed "") (eq .zr.state.mode "proxy") }}
      {{- $selector := merge dict ($proxies | ternary .Values.proxy.nodeSelector $hook.nodeSelector) }}
      {{- with $architecture }}
      {{- $_ := set $selector "kubernetes.io/arch" . }}
      {{- end }}
      nodeSelector:
        {{- merge (dict "kubernetes.io/os" "linux") $selector | toYaml | nindent 8 }}
      {{- with $pod.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- /* The Job's token is worth as much as a control-plane node, and any node can report that it has the image, and
      resources that outweigh every preference. So control-plane nodes are required where one can run the Job now. Others
      that have the image are preferred, since the rest may not be able to pull it, but not required: a rollback and
      cleanup run long after they were rendered, when these nodes may be gone. */}}
      {{- $down := include "zarf-registry.cluster.notReady" . | fromJsonArray }}
      {{- $required := "" }}
      {{- if not $hook.nodeSelector }}
      {{- $holders := $image.pushed | empty | ternary $image.nodes list }}
      {{- $required = include "zarf-registry.cluster.controlPlane" (list . $holders $selector $pod.tolerations) }}
      {{- end }}
      affinity:
        nodeAffinity:
          {{- if $required }}
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - key: node-role.kubernetes.io/control-plane
                    operator: Exists
          {{- end }}
          preferredDuringSchedulingIgnoredDuringExecution:
            {{- /* The Job tolerates the taints of nodes that are not ready, which would never start it. */}}
            {{- with $down }}
            - weight: 50
              preference:
                {{- include "zarf-registry.hook.notOn" . | nindent 16 }}
            {{- end }}
            {{- /* Any node is better than one that cannot get the image. */}}
            - weight: {{ and $image.nodes (not $image.pushed) | empty | ternary 100 10 }}
              preference:
                matchExpressions:
                  - key: node-role.kubernetes.io/control-plane
                    operator: Exists
                {{- with $down }}
                {{- include "zarf-registry.hook.notOn" . | nindent 16 }}
                {{- end }}
            {{- range $image.nodes }}
            - weight: {{ $image.pushed | empty | ternary 100 50 }}
              preference:
                {{- include "zarf-registry.pod.onNode" . | nindent 16 }}
            {{- end }}
      containers:
        - name: init-hook
          image: {{ $image.value | quote }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          command:
            - /init-hook
          args:
            - {{ $step }}
            {{- list (toJson .zr.settings | printf "--settings=%s") | toYaml | nindent 12 }}
            - --timeout={{ .zr.hookTimeout }}
            - --in-cluster
            - --log-format=json
          {{- with $pod.env }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          resources:
            {{- toYaml $hook.resources | nindent 12 }}
          securityContext:
            {{- include "zarf-registry.container.securityContext" . | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}
{{- end -}}

{{- /* The part of a node selector term that excludes nodes. Takes a list of names. */ -}}
{{- define "zarf-registry.hook.notOn" -}}
matchFields:
  {{- range . }}
  - key: metadata.name
    operator: NotIn
    values:
      - {{ . | quote }}
  {{- end }}
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
