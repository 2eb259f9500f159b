{{- /* CronJobs that run init-hook, and the pods of helm test. Their image is in the registry itself, once it is there. */ -}}

{{- /* The part of the pod spec that depends on that image: pull secrets, nodes and user. */ -}}
{{- define "zarf-registry.cronjob.pod" -}}
{{- $image := .zr.cronJobImage -}}
{{- $hook := .Values.initHook -}}
{{- $secrets := .zr.pullSecrets -}}
{{- $selector := dict "kubernetes.io/os" "linux" -}}
{{- if $image.architecture -}}
{{- $_ := set $selector "kubernetes.io/arch" $image.architecture -}}
{{- end -}}
{{- $selector = merge $selector $hook.nodeSelector -}}
{{- if $image.pushed -}}
{{- $credential := and .zr.nodePortMode (not .Values.auth.anonymousPull) -}}
{{- $secrets = $credential | ternary (list (dict "name" (printf "%s-pull" .zr.name))) list -}}
{{- /* Nodes without a proxy cannot pull from the registry. */ -}}
{{- $selector = merge $selector (.zr.proxyMode | ternary .Values.proxy.nodeSelector dict) -}}
{{- end -}}
securityContext:
  {{- include "zarf-registry.pod.securityContext" (list .) | nindent 2 }}
{{- with $secrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- toYaml $selector | nindent 2 }}
{{- with .zr.pods.initHook.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* Prefer the registry's node: it is alive, which the tolerations do not ensure, and has the image from the last run.
An image from elsewhere prefers the nodes that have it. */}}
affinity:
  podAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          labelSelector:
            matchLabels:
              {{- include "zarf-registry.selectorLabels" (list . "registry") | nindent 14 }}
          topologyKey: kubernetes.io/hostname
  {{- with $image.pushed | ternary list .zr.hookImage.nodes }}
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- range . }}
      - weight: 100
        preference:
          {{- include "zarf-registry.pod.onNode" . | nindent 10 }}
      {{- end }}
  {{- end }}
{{- end -}}

{{- /* A CronJob. Takes a list: root, component, name (also of its ServiceAccount), settings (schedule, timeout), command,
flags. */ -}}
{{- define "zarf-registry.cronjob" -}}
{{- $component := index . 1 -}}
{{- $name := index . 2 -}}
{{- $settings := index . 3 -}}
{{- $command := index . 4 -}}
{{- $flags := index . 5 -}}
{{- with first . -}}
{{- $image := .zr.cronJobImage -}}
{{- $pod := .zr.pods.initHook -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  {{- include "zarf-registry.metadata" (list . $component $name) | nindent 2 }}
spec:
  schedule: {{ $settings.schedule | quote }}
  {{- /* One run at a time: the next one continues where this one stopped. */}}
  concurrencyPolicy: Forbid
  {{- /* No startingDeadlineSeconds: the last run that the control plane missed while it was off is made up for, however
  long ago it was. */}}
  {{- /* A node can get tokens of a pod's ServiceAccount while the pod exists, even if it has ended. A failed one stays
  for an hour, for its log. */}}
  successfulJobsHistoryLimit: 0
  failedJobsHistoryLimit: 1
  jobTemplate:
    metadata:
      labels:
        {{- include "zarf-registry.podLabels" (list . $component dict) | nindent 8 }}
    spec:
      {{- /* Both attempts with their own timeout, and a minute to start: a Job that exceeds its deadline loses its pod and
      log. Nothing waits for this Job. */}}
      activeDeadlineSeconds: {{ add (mul 2 (include "zarf-registry.seconds" $settings.timeout)) 60 }}
      ttlSecondsAfterFinished: 3600
      {{- /* One retry, in case the registry was restarting. The next run comes soon. */}}
      backoffLimit: 1
      podFailurePolicy:
        {{- include "zarf-registry.hook.podFailurePolicy" . | nindent 8 }}
      template:
        metadata:
          labels:
            {{- include "zarf-registry.podLabels" (list . $component $pod.labels) | nindent 12 }}
          {{- with $pod.annotations }}
          annotations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
        spec:
          restartPolicy: Never
          serviceAccountName: {{ $name }}
          automountServiceAccountToken: true
          enableServiceLinks: false
          {{- with $pod.priorityClassName }}
          priorityClassName: {{ . | quote }}
          {{- end }}
          {{- include "zarf-registry.cronjob.pod" . | nindent 10 }}
          containers:
            - name: init-hook
              image: {{ $image.value | quote }}
              imagePullPolicy: {{ $image.pushed | ternary "IfNotPresent" .Values.image.pullPolicy }}
              command:
                - /init-hook
              args:
                {{- toYaml $command | nindent 16 }}
                - --namespace={{ .zr.namespace }}
                - --release={{ .Release.Name }}
                - --name={{ .zr.name }}
                {{- with $flags }}
                {{- toYaml . | nindent 16 }}
                {{- end }}
                - --timeout={{ $settings.timeout }}
                - --log-format=json
              {{- with $pod.env }}
              env:
                {{- toYaml . | nindent 16 }}
              {{- end }}
              resources:
                {{- toYaml .Values.initHook.resources | nindent 16 }}
              securityContext:
                {{- include "zarf-registry.container.securityContext" . | nindent 16 }}
              terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}
{{- end -}}
