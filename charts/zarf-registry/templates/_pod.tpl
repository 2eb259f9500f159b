{{- /* Parts shared by all pods. */ -}}

{{- /* 65532 is the conventional nonroot user of images built from scratch. OpenShift assigns users and groups from the
namespace's range and refuses others. Takes a list: root; optional: user. */ -}}
{{- define "zarf-registry.pod.securityContext" -}}
{{- $user := append . 65532 | rest | first -}}
runAsNonRoot: true
{{- if not (first .).zr.openshift }}
runAsUser: {{ $user }}
runAsGroup: {{ $user }}
fsGroup: {{ $user }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "zarf-registry.container.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop:
    - ALL
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* The probes of a server, which has two minutes to start: the loader may wait 20 s for chunks, more than once. Takes a
list: port. */ -}}
{{- define "zarf-registry.container.probes" -}}
startupProbe:
  httpGet:
    path: /healthz
    port: {{ first . }}
  periodSeconds: 1
  failureThreshold: 120
{{ include "zarf-registry.container.healthProbes" . }}
{{- end -}}

{{- /* Those of a server that has started. Takes a list: port; optional: host. */ -}}
{{- define "zarf-registry.container.healthProbes" -}}
livenessProbe:
  httpGet:
    path: /healthz
    {{- with rest . | first }}
    host: {{ . | quote }}
    {{- end }}
    port: {{ first . }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /readyz
    {{- with rest . | first }}
    host: {{ . | quote }}
    {{- end }}
    port: {{ first . }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- /* Spreads a component's pods over nodes, as a preference: a pod next to another is better than none. Pods of another
revision do not count, or a rollout on two nodes could end with both on one. Takes a list: root, component; optional:
whenUnsatisfiable. */ -}}
{{- define "zarf-registry.pod.spread" -}}
- topologyKey: kubernetes.io/hostname
  maxSkew: 1
  {{- $otherwise := append . "ScheduleAnyway" | rest | rest | first }}
  whenUnsatisfiable: {{ $otherwise }}
  {{- if eq $otherwise "DoNotSchedule" }}
  {{- /* Nodes that are cordoned or down do not count. */}}
  nodeTaintsPolicy: Honor
  {{- end }}
  labelSelector:
    matchLabels:
      {{- include "zarf-registry.selectorLabels" . | nindent 6 }}
  matchLabelKeys:
    - pod-template-hash
{{- end -}}

{{- /* An affinity that spreads a component's pods over zones. Not a topology spread constraint: the scheduler ignores all
constraints on nodes that lack one of their topology labels, and on-premises nodes rarely have a zone. Takes a list:
root, component; optional: another component, whose nodes the pods avoid. */ -}}
{{- define "zarf-registry.pod.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: topology.kubernetes.io/zone
        labelSelector:
          matchLabels:
            {{- include "zarf-registry.selectorLabels" . | nindent 12 }}
        {{- if semverCompare ">=1.31-0" (first .).Capabilities.KubeVersion.Version }}
        matchLabelKeys:
          - pod-template-hash
        {{- end }}
    {{- range $other := rest . | rest }}
    - weight: 50
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "zarf-registry.selectorLabels" (list (first $) $other) | nindent 12 }}
    {{- end }}
{{- end -}}

{{- /* What a container that runs a program consists of: the payload in the node's pause image or the program's own image,
environment and mounts. With supervise, the loader starts a changed payload beside the running program. The loader
passes on only the variables of env and those that the kubelet or an admission webhook sets and the program reads
(injected): an image may set any others. It also verifies the mounts. Takes a dict: root, program, architecture; optional:
supervise, env (list), injected (list of names), mounts (list, besides those of the payload). */ -}}
{{- define "zarf-registry.program.container" -}}
{{- $mounts := default list .mounts -}}
{{- if .root.Values.injector.enabled -}}
{{- $payload := dict "name" "payload" "mountPath" "/payload" "readOnly" true -}}
{{- $mounts = concat (list $payload (dict "name" "program" "mountPath" "/program")) $mounts -}}
{{- $pause := get .root.zr.pause.images .architecture -}}
image: {{ $pause.value | quote }}
imagePullPolicy: {{ $pause.pullPolicy }}
command:
  - /payload/loader
  {{- if .supervise }}
  - -s
  {{- end }}
  {{- /* Kubelet and runtime mount these two in every container, and programs resolve names with them. */}}
  - --mount=/etc/hosts
  - --mount=/etc/resolv.conf
  {{- range $mounts }}
  - {{ clean .mountPath | printf "--mount=%s" | quote }}
  {{- end }}
  {{- $variables := default list .injected }}
  {{- range .env }}
  {{- $variables = append $variables .name }}
  {{- end }}
  {{- range $variables | uniq }}
  - {{ printf "--env=%s" . | quote }}
  {{- end }}
  - /payload
  - /program/{{ .program }}
{{- /* Runtimes create the image's, even in a volume. */}}
workingDir: /
{{- else -}}
image: {{ include "zarf-registry.image" (list .root .program) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command:
  - /{{ .program }}
{{- end }}
{{- with .env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $mounts }}
volumeMounts:
  {{- range . }}
  - name: {{ .name }}
    mountPath: {{ .mountPath }}
    {{- if .readOnly }}
    readOnly: true
    {{- end }}
    {{- with .subPath }}
    subPath: {{ . | quote }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Chunk 00 has the number of chunks and is written last: pods wait for it, and the others are optional. Takes a list:
root, program, architecture. */ -}}
{{- define "zarf-registry.program.volumes" -}}
{{- $root := first . -}}
{{- $program := index . 1 -}}
{{- if $root.Values.injector.enabled -}}
{{- /* The names of registry-node's are always the same: a pod cannot change its volumes. */ -}}
{{- $id := eq $program "registry" | ternary (printf "%s-" (include "zarf-registry.program.payloadID" .)) "" -}}
{{- $payload := printf "%s-payload-%s%s-%s" $root.zr.name $id $program (last .) -}}
- name: payload
  projected:
    defaultMode: 0555
    sources:
      {{- /* Twice the current need. A chunk is 1 MB, and the loader writes a program next to the one it replaces. */}}
      {{- range until (eq $program "registry" | ternary 16 5) }}
      - configMap:
          name: {{ printf "%s-%02d" $payload . }}
          {{- if . }}
          optional: true
          {{- end }}
      {{- end }}
{{- /* On disk, the kubelet's directory may be mounted noexec, which runc keeps up to 1.1. */}}
- name: program
  emptyDir:
    medium: Memory
    sizeLimit: {{ eq $program "registry" | ternary "128Mi" "64Mi" }}
{{- end -}}
{{- end -}}

{{- /* A Secret with tls.crt, tls.key and ca.crt, mounted as a whole: a subPath is never updated. Takes the name. */ -}}
{{- define "zarf-registry.tls.volume" -}}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end -}}

{{- /* Expressions of a node selector term that exclude virtual nodes, which have neither a loopback address nor files:
virtual-kubelet and Fargate. They match nodes without these labels. */ -}}
{{- define "zarf-registry.pod.noVirtualNodes" -}}
- key: type
  operator: NotIn
  values:
    - virtual-kubelet
- key: eks.amazonaws.com/compute-type
  operator: NotIn
  values:
    - fargate
{{- end -}}

{{- /* A node selector term, or a preference, of one node. Takes its name. */ -}}
{{- define "zarf-registry.pod.onNode" -}}
matchFields:
  - key: metadata.name
    operator: In
    values:
      - {{ . | quote }}
{{- end -}}

{{- /* The variable with the address of a Service that the kubelet sets. Takes the Service's name. */ -}}
{{- define "zarf-registry.program.serviceHost" -}}
{{- printf "%s_SERVICE_HOST" (upper . | replace "-" "_") -}}
{{- end -}}
