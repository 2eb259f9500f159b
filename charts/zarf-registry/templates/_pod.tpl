{{- /* What the pods have in common. */ -}}

{{- /* 65532 is the user of nobody in particular that images from scratch agree on. OpenShift takes users and groups from the namespace's range,
and refuses others. */ -}}
{{- define "zarf-registry.pod.securityContext" -}}
runAsNonRoot: true
{{- if not (include "zarf-registry.openshift" .) }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
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

{{- /* A required node affinity for the terms of the user, each with the nodes left out that are named. Takes affinity,
excluded. */ -}}
{{- define "zarf-registry.pod.affinity" -}}
{{- $affinity := deepCopy (default dict .affinity) -}}
{{- if .excluded -}}
{{- $fields := list -}}
{{- range .excluded -}}
{{- /* A field may be compared with one value only. */ -}}
{{- $fields = append $fields (dict "key" "metadata.name" "operator" "NotIn" "values" (list .)) -}}
{{- end -}}
{{- $terms := list -}}
{{- range dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $terms = append $terms (set . "matchFields" (concat (default list .matchFields) $fields)) -}}
{{- end -}}
{{- $node := default dict $affinity.nodeAffinity -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- with $affinity -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{- /* One node selector term for each node that is named. Takes a list of names. */ -}}
{{- define "zarf-registry.pod.nodeTerms" -}}
{{- range . }}
- matchFields:
    - key: metadata.name
      operator: In
      values:
        - {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* How a container gets its program: from the payload, in the image that the node has for pause, or from an image
of its own. Takes root, program, image (the program's own), pause. */ -}}
{{- define "zarf-registry.program.container" -}}
{{- if .root.Values.injector.enabled -}}
image: {{ .pause | quote }}
imagePullPolicy: IfNotPresent
command:
  - /payload/loader
  - /payload
  - /program/{{ .program }}
{{- else -}}
image: {{ include "zarf-registry.image" . | quote }}
imagePullPolicy: {{ .image.pullPolicy }}
command:
  - /{{ .program }}
{{- end -}}
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

{{- /* Chunk 00 says how many there are and is written last, so a pod waits for it and takes of the others what there is.
Takes root, program, architecture. */ -}}
{{- define "zarf-registry.program.volumes" -}}
{{- if .root.Values.injector.enabled -}}
{{- /* Twice what the programs need today: a chunk is 1 MB, and the loader writes the program beside the one it replaces. */ -}}
{{- $chunks := dict "registry" 16 "registry-node" 5 -}}
{{- $size := dict "registry" "128Mi" "registry-node" "64Mi" -}}
{{- $payload := printf "%s-payload-%s-%s-%s" (include "zarf-registry.fullname" .root) (include "zarf-registry.payloadID" .root) .program .architecture -}}
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
- name: program
  emptyDir:
    sizeLimit: {{ get $size .program }}
{{- end -}}
{{- end -}}

{{- /* A Secret with tls.crt, tls.key and ca.crt, mounted whole: a subPath would never change. Takes a Secret's name. */ -}}
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
