{{- /* The pods of `helm test`. */ -}}

{{- /* Condition: the chart deploys a registry, and tests are enabled. */ -}}
{{- define "zarf-registry.tests" -}}
{{- if and (include "zarf-registry.internal" .) .Values.tests.enabled -}}true{{- end -}}
{{- end -}}

{{- /* Condition: init-hook's image is in the registry, so starting a pod of it pulls through the node's address. */ -}}
{{- define "zarf-registry.tests.pull" -}}
{{- if include "zarf-registry.tests" . -}}
{{- (include "zarf-registry.certificates.image" . | fromJson).pushed -}}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.tests.name" -}}
{{- printf "%s-test" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Not the name that it had as a test hook: Helm adopts no object that a hook has left. */ -}}
{{- define "zarf-registry.tests.serviceAccount" -}}
{{- printf "%s-tests" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Nodes can read the Secrets of a pod while it exists. Helm prints the log of a failed pod and deletes it. Others
stay until the next run: helm test --logs reads their logs after it has deleted what hook-succeeded names. It reads the
logs of all test hooks, so only pods may be test hooks. */ -}}
{{- define "zarf-registry.tests.annotations" -}}
helm.sh/hook: test
helm.sh/hook-delete-policy: before-hook-creation,hook-failed
helm.sh/hook-output-log-policy: hook-failed
{{- end -}}

{{- /* Arguments of the checks: the registry and its credentials. */ -}}
{{- define "zarf-registry.tests.args" -}}
{{- $fullname := include "zarf-registry.fullname" . -}}
- --registry={{ $fullname }}.{{ include "zarf-registry.namespace" . }}.svc:5000
- --push-dir=/etc/zarf-registry/push
- --node-dir=/etc/zarf-registry/node
- --credentials-dir=/etc/zarf-registry/credentials
- --timeout=1m
{{- end -}}

{{- /* The node port range is unknown here; the default is 30000-32767. */ -}}
{{- define "zarf-registry.tests.plain" -}}
{{- $port := int .Values.port -}}
{{- if and (include "zarf-registry.proxyMode" .) (include "zarf-registry.portOwned" .) (ge $port 30000) (le $port 32767) -}}
- --port-service={{ include "zarf-registry.fullname" . }}-nodeport
{{- end -}}
{{- if include "zarf-registry.nodePortMode" . -}}
- --plain={{ include "zarf-registry.fullname" . }}-nodeport.{{ include "zarf-registry.namespace" . }}.svc:5001
- --anonymous-pull={{ include "zarf-registry.anonymousPull" . | empty | not }}
{{- end -}}
{{- end -}}

{{- /* A pod. Takes root, test (the suffix of the name), args (list), more (helpers that return more arguments), secrets
("true" mounts the clients' Secrets), pull ("true" pulls the image in each run). */ -}}
{{- define "zarf-registry.tests.pod" -}}
{{- $image := include "zarf-registry.certificates.image" .root | fromJson -}}
{{- $hook := .root.Values.initHook -}}
{{- $fullname := include "zarf-registry.fullname" .root -}}
apiVersion: v1
kind: Pod
metadata:
  {{- include "zarf-registry.metadata" (dict "root" .root "name" (printf "%s-%s" (include "zarf-registry.tests.name" .root) .test) "component" "test" "labels" (include "zarf-registry.agentLabel" . | fromYaml) "annotations" (include "zarf-registry.tests.annotations" . | fromYaml)) | nindent 2 }}
spec:
  {{- /* The program stops at its own timeout and reports why. A pod whose image cannot be pulled stops a minute later,
  before Helm's timeout, which would report nothing. */}}
  activeDeadlineSeconds: 120
  restartPolicy: Never
  serviceAccountName: {{ include "zarf-registry.tests.serviceAccount" .root }}
  automountServiceAccountToken: false
  {{- /* The registry's address comes from the environment, as for proxies and Jobs. */}}
  enableServiceLinks: true
  {{- with include "zarf-registry.cronjob.pullSecrets" .root }}
  imagePullSecrets:
    {{- . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "zarf-registry.pod.securityContext" .root | nindent 4 }}
  nodeSelector:
    {{- include "zarf-registry.cronjob.nodeSelector" .root | nindent 4 }}
  {{- with include "zarf-registry.pod.tolerations" (dict "root" .root "tolerations" $hook.tolerations) }}
  tolerations:
    {{- . | nindent 4 }}
  {{- end }}
  affinity:
    {{- include "zarf-registry.certificates.affinity" .root | nindent 4 }}
  containers:
    - name: init-hook
      image: {{ $image.value | quote }}
      imagePullPolicy: {{ .pull | empty | ternary ($image.pushed | empty | ternary .root.Values.image.pullPolicy "IfNotPresent") "Always" }}
      command:
        - /init-hook
      args:
        {{- toYaml .args | nindent 8 }}
        {{- range .more }}
        {{- with include . $.root }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- end }}
      resources:
        requests:
          cpu: 10m
          memory: 32Mi
        limits:
          memory: 128Mi
      securityContext:
        {{- include "zarf-registry.container.securityContext" .root | nindent 8 }}
      terminationMessagePolicy: FallbackToLogsOnError
      {{- if .secrets }}
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
