{{- /* CronJobs that run init-hook. Their image is in the registry itself, once it is there. */ -}}

{{- /* The pull secrets for that image. */ -}}
{{- define "zarf-registry.cronjob.pullSecrets" -}}
{{- $secrets := include "zarf-registry.pullSecrets" . | fromJsonArray -}}
{{- if (include "zarf-registry.certificates.image" . | fromJson).pushed -}}
{{- $secrets = list -}}
{{- if and (include "zarf-registry.nodePortMode" .) (not (include "zarf-registry.anonymousPull" .)) -}}
{{- $secrets = list (dict "name" (printf "%s-pull" (include "zarf-registry.fullname" .))) -}}
{{- end -}}
{{- end -}}
{{- with $secrets -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{- /* The nodes that can run that image. */ -}}
{{- define "zarf-registry.cronjob.nodeSelector" -}}
{{- $image := include "zarf-registry.certificates.image" . | fromJson -}}
{{- $selector := dict "kubernetes.io/os" "linux" -}}
{{- with $image.architecture -}}
{{- $_ := set $selector "kubernetes.io/arch" . -}}
{{- end -}}
{{- $selector = merge $selector (default dict .Values.initHook.nodeSelector) -}}
{{- if and $image.pushed (include "zarf-registry.proxyMode" .) -}}
{{- /* Nodes without a proxy cannot pull from the registry. */ -}}
{{- $selector = merge $selector (default dict .Values.proxy.nodeSelector) -}}
{{- end -}}
{{- toYaml $selector -}}
{{- end -}}

{{- /* A CronJob. Takes root, name (also of its ServiceAccount), component, settings (schedule, timeout), command
(list), flags (list). */ -}}
{{- define "zarf-registry.cronjob" -}}
{{- $settings := .settings -}}
{{- $image := include "zarf-registry.certificates.image" .root | fromJson -}}
{{- $hook := .root.Values.initHook -}}
{{- $pod := include "zarf-registry.pod.values" (dict "root" .root) | fromJson -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" .name "component" .component) | nindent 2 }}
spec:
  schedule: {{ $settings.schedule | quote }}
  {{- /* One run at a time: the next one continues where this one stopped. */}}
  concurrencyPolicy: Forbid
  {{- /* Catch up a missed run, for example after control plane downtime. */}}
  startingDeadlineSeconds: 1800
  {{- /* A node can get tokens of a pod's ServiceAccount while the pod exists, even if it has ended. A failed one stays
  for an hour, for its log. */}}
  successfulJobsHistoryLimit: 0
  failedJobsHistoryLimit: 1
  jobTemplate:
    metadata:
      labels:
        {{- include "zarf-registry.podLabels" (dict "root" .root "component" .component) | nindent 8 }}
    spec:
      {{- /* Both attempts with their own timeout, and a minute to start: a Job that exceeds its deadline loses its pod and
      log. Nothing waits for this Job. */}}
      activeDeadlineSeconds: {{ add (mul 2 (include "zarf-registry.seconds" $settings.timeout)) 60 }}
      ttlSecondsAfterFinished: 3600
      {{- /* One retry, in case the registry was restarting. The next run comes soon. */}}
      backoffLimit: 1
      podFailurePolicy:
        {{- include "zarf-registry.hook.podFailurePolicy" .root | nindent 8 }}
      template:
        metadata:
          labels:
            {{- include "zarf-registry.podLabels" (dict "root" .root "component" .component "extra" $pod.podLabels) | nindent 12 }}
          {{- with $pod.podAnnotations }}
          annotations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
        spec:
          restartPolicy: Never
          serviceAccountName: {{ .name }}
          automountServiceAccountToken: true
          enableServiceLinks: false
          {{- with $pod.priorityClassName }}
          priorityClassName: {{ . | quote }}
          {{- end }}
          {{- with include "zarf-registry.cronjob.pullSecrets" .root }}
          imagePullSecrets:
            {{- . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- include "zarf-registry.pod.securityContext" .root | nindent 12 }}
          nodeSelector:
            {{- include "zarf-registry.cronjob.nodeSelector" .root | nindent 12 }}
          {{- with include "zarf-registry.pod.tolerations" (dict "root" .root "tolerations" $hook.tolerations) }}
          tolerations:
            {{- . | nindent 12 }}
          {{- end }}
          affinity:
            {{- include "zarf-registry.certificates.affinity" .root | nindent 12 }}
          containers:
            - name: init-hook
              image: {{ $image.value | quote }}
              imagePullPolicy: {{ $image.pushed | empty | ternary .root.Values.image.pullPolicy "IfNotPresent" }}
              command:
                - /init-hook
              args:
                {{- toYaml .command | nindent 16 }}
                - --namespace={{ include "zarf-registry.namespace" .root }}
                - --release={{ .root.Release.Name }}
                - --name={{ include "zarf-registry.fullname" .root }}
                {{- with .flags }}
                {{- toYaml . | nindent 16 }}
                {{- end }}
                - --timeout={{ $settings.timeout }}
                - --log-format=json
              {{- with $pod.extraEnv }}
              env:
                {{- toYaml . | nindent 16 }}
              {{- end }}
              resources:
                {{- toYaml $hook.resources | nindent 16 }}
              securityContext:
                {{- include "zarf-registry.container.securityContext" .root | nindent 16 }}
              terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}
