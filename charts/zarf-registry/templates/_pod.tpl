{{- /* Parts shared by all pods. */ -}}

{{- /* 65532 is the conventional nonroot user of images built from scratch. */ -}}
{{- define "zarf-registry.pod.securityContext" -}}
{{- include "zarf-registry.pod.securityContextOf" (dict "root" . "user" 65532) -}}
{{- end -}}

{{- /* OpenShift assigns users and groups from the namespace's range and refuses others. Takes root, user. */ -}}
{{- define "zarf-registry.pod.securityContextOf" -}}
runAsNonRoot: true
{{- if not (include "zarf-registry.openshift" .root) }}
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
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

{{- /* The user's podLabels, podAnnotations, extraEnv and priorityClassName for the pods of a component, as JSON: those of
all pods, and the component's own, which take precedence. Takes root, values (the component's; may be omitted). */ -}}
{{- define "zarf-registry.pod.values" -}}
{{- $all := .root.Values -}}
{{- $own := default dict .values -}}
{{- $names := list -}}
{{- range $own.extraEnv -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $env := list -}}
{{- range $all.extraEnv -}}
{{- if not (has .name $names) -}}
{{- $env = append $env . -}}
{{- end -}}
{{- end -}}
{{- dict
  "podLabels" (merge dict (default dict $own.podLabels) (default dict $all.podLabels))
  "podAnnotations" (merge dict (default dict $own.podAnnotations) (default dict $all.podAnnotations))
  "extraEnv" (default list $own.extraEnv | concat $env | default list)
  "priorityClassName" (default $all.priorityClassName $own.priorityClassName) | toJson -}}
{{- end -}}

{{- /* The user's tolerations, and one of the startup taint unless they cover it: pods that serve a node must run before it
loses the taint. Takes root, tolerations. */ -}}
{{- define "zarf-registry.pod.tolerations" -}}
{{- $tolerations := default list .tolerations -}}
{{- if and .root.Values.startupTaint (not (has (dict "operator" "Exists") $tolerations)) -}}
{{- $tolerations = append $tolerations (dict "key" .root.Values.startupTaint "operator" "Exists") | uniq -}}
{{- end -}}
{{- with $tolerations -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{- /* Spreads a component's pods over nodes, as a preference: a pod next to another is better than none. Pods of another
revision do not count, or a rollout on two nodes could end with both on one. Takes root, component. */ -}}
{{- define "zarf-registry.pod.spread" -}}
- topologyKey: kubernetes.io/hostname
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "zarf-registry.selectorLabels" . | nindent 6 }}
  matchLabelKeys:
    - pod-template-hash
{{- end -}}

{{- /* An affinity that spreads a component's pods over zones, as JSON. Not a topology spread constraint: the scheduler
ignores all constraints on nodes that lack one of their topology labels, and on-premises nodes rarely have a zone. Takes
root, component. */ -}}
{{- define "zarf-registry.pod.apart" -}}
{{- $pods := dict "matchLabels" (include "zarf-registry.selectorLabels" . | fromYaml) -}}
{{- $term := dict "topologyKey" "topology.kubernetes.io/zone" "labelSelector" $pods -}}
{{- if semverCompare ">=1.31-0" .root.Capabilities.KubeVersion.Version -}}
{{- $_ := set $term "matchLabelKeys" (list "pod-template-hash") -}}
{{- end -}}
{{- $preferred := list (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) | toJson -}}
{{- end -}}

{{- /* One node selector term per node. Takes a list of names. */ -}}
{{- define "zarf-registry.pod.nodeTerms" -}}
{{- range . }}
- matchFields:
    - key: metadata.name
      operator: In
      values:
        - {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* What a container that runs a program consists of: the payload in the node's pause image or the program's own image,
environment and mounts. With supervise, the loader starts a changed payload beside the running program. The loader
passes on only the variables of env and those that the kubelet or an admission webhook sets and the program reads
(injected): an image may set any others. It also verifies the mounts. Takes root, program, pause, supervise, env (list),
injected (list of names), mounts (YAML, besides those of the payload). */ -}}
{{- define "zarf-registry.program.container" -}}
{{- $mounts := list (include "zarf-registry.program.volumeMounts" (dict "root" .root)) (default "" .mounts | trim) | compact | join "\n" -}}
{{- $variables := default list .injected -}}
{{- range .env -}}
{{- $variables = append $variables .name -}}
{{- end -}}
{{- if .root.Values.injector.enabled -}}
image: {{ .pause.value | quote }}
imagePullPolicy: {{ .pause.pullPolicy }}
command:
  - /payload/loader
  {{- if .supervise }}
  - -s
  {{- end }}
  {{- /* Kubelet and runtime mount these two in every container, and programs resolve names with them. */}}
  {{- range concat (list "/etc/hosts" "/etc/resolv.conf") (include "zarf-registry.program.mountPaths" $mounts | fromJsonArray) }}
  - {{ printf "--mount=%s" . | quote }}
  {{- end }}
  {{- range $variables | uniq }}
  - {{ printf "--env=%s" . | quote }}
  {{- end }}
  - /payload
  - /program/{{ .program }}
{{- /* Runtimes create the image's, even in a volume. */}}
workingDir: /
{{- else -}}
image: {{ include "zarf-registry.image" . | quote }}
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
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The paths of mounts, as JSON. Takes YAML. */ -}}
{{- define "zarf-registry.program.mountPaths" -}}
{{- $paths := list -}}
{{- range fromYamlArray . -}}
{{- $paths = append $paths (clean .mountPath) -}}
{{- end -}}
{{- $paths | toJson -}}
{{- end -}}

{{- /* The variable with the address of a Service that the kubelet sets. Takes the Service's name. */ -}}
{{- define "zarf-registry.program.serviceHost" -}}
{{- printf "%s_SERVICE_HOST" (upper . | replace "-" "_") -}}
{{- end -}}

{{- /* Takes root. */ -}}
{{- define "zarf-registry.program.volumeMounts" -}}
{{- if .root.Values.injector.enabled -}}
- name: payload
  mountPath: /payload
  readOnly: true
- name: program
  mountPath: /program
{{- end -}}
{{- end -}}

{{- /* Chunk 00 has the number of chunks and is written last: pods wait for it, and the others are optional. Takes root,
program, architecture. */ -}}
{{- define "zarf-registry.program.volumes" -}}
{{- if .root.Values.injector.enabled -}}
{{- /* Twice the current need. A chunk is 1 MB, and the loader writes a program next to the one it replaces. */ -}}
{{- $chunks := dict "registry" 16 "registry-node" 5 -}}
{{- $size := dict "registry" "128Mi" "registry-node" "64Mi" -}}
{{- /* The names of registry-node's are always the same: a pod cannot change its volumes. */ -}}
{{- $id := eq .program "registry-node" | ternary "" (printf "%s-" (include "zarf-registry.program.payloadID" .)) -}}
{{- $payload := printf "%s-payload-%s%s-%s" (include "zarf-registry.fullname" .root) $id .program .architecture -}}
- name: payload
  projected:
    defaultMode: 0555
    sources:
      {{- range until (get $chunks .program) }}
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
    sizeLimit: {{ get $size .program }}
{{- end -}}
{{- end -}}

{{- /* A Secret with tls.crt, tls.key and ca.crt, mounted as a whole: a subPath is never updated. Takes the name. */ -}}
{{- define "zarf-registry.tls.volume" -}}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end -}}

{{- define "zarf-registry.tls.volumeMount" -}}
- name: tls
  mountPath: /etc/zarf-registry/tls
  readOnly: true
{{- end -}}
