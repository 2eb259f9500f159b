{{- /* A pod of helm test. Takes a list: root, test (the suffix of the name), imagePullPolicy, args; with an empty policy
that of CronJobs, and the clients' Secrets are mounted. */ -}}
{{- define "zarf-registry.tests.pod" -}}
{{- $test := index . 1 -}}
{{- $pullPolicy := index . 2 -}}
{{- $args := index . 3 -}}
{{- with first . -}}
{{- $image := .zr.cronJobImage -}}
{{- $fullname := .zr.name -}}
apiVersion: v1
kind: Pod
metadata:
  {{- /* Nodes can read the Secrets of a pod while it exists. Helm prints the log of a failed pod and deletes it. Others
  stay until the next run: helm test --logs reads their logs after it has deleted what hook-succeeded names. It reads the
  logs of all test hooks, so only pods may be test hooks. */}}
  {{- $annotations := dict
    "helm.sh/hook" "test"
    "helm.sh/hook-delete-policy" "before-hook-creation,hook-failed"
    "helm.sh/hook-output-log-policy" "hook-failed" }}
  {{- $labels := dict "zarf.dev/agent" "ignore" }}
  {{- include "zarf-registry.metadata" (list . "test" (printf "%s-test-%s" .zr.name $test) $annotations $labels) | nindent 2 }}
spec:
  {{- /* The program stops at its own timeout and reports why. A pod whose image cannot be pulled stops a minute later,
  before Helm's timeout, which would report nothing. */}}
  activeDeadlineSeconds: 120
  restartPolicy: Never
  {{- /* Not the name that it had as a test hook: Helm adopts no object that a hook has left. */}}
  serviceAccountName: {{ .zr.name }}-tests
  automountServiceAccountToken: false
  {{- /* The registry's address comes from the environment, as for proxies and Jobs. */}}
  enableServiceLinks: true
  {{- include "zarf-registry.cronjob.pod" . | nindent 2 }}
  containers:
    - name: init-hook
      image: {{ $image.value | quote }}
      imagePullPolicy: {{ default ($image.pushed | ternary "IfNotPresent" .Values.image.pullPolicy) $pullPolicy }}
      command:
        - /init-hook
      args:
        {{- toYaml $args | nindent 8 }}
      resources:
        requests:
          cpu: 10m
          memory: 32Mi
        limits:
          memory: 128Mi
      securityContext:
        {{- include "zarf-registry.container.securityContext" . | nindent 8 }}
      terminationMessagePolicy: FallbackToLogsOnError
      {{- if not $pullPolicy }}
      volumeMounts:
        {{- range list "push" "node" "credentials" }}
        - name: {{ . }}
          mountPath: /etc/zarf-registry/{{ . }}
          readOnly: true
        {{- end }}
  volumes:
    {{- range $volume, $suffix := dict "push" "push-tls" "node" "node-tls" "credentials" "credentials" }}
    - name: {{ $volume }}
      secret:
        secretName: {{ $fullname }}-{{ $suffix }}
        defaultMode: 0440
    {{- end }}
      {{- end }}
{{- end -}}
{{- end -}}

{{- /* Arguments of the checks: the registry and its credentials. Takes a list: root, check. */ -}}
{{- define "zarf-registry.tests.args" -}}
{{- $zr := (first .).zr -}}
- check
- {{ last . }}
- --registry={{ $zr.name }}.{{ $zr.namespace }}.svc:5000
- --push-dir=/etc/zarf-registry/push
- --node-dir=/etc/zarf-registry/node
- --credentials-dir=/etc/zarf-registry/credentials
- --timeout=1m
{{- end -}}
