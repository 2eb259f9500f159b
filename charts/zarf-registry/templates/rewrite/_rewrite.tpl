{{- /* Rewriting of image references in new pods, by the API server. */ -}}

{{- /* The API that the cluster serves; nothing if it serves none. v1 if that is unknown, as in helm template. v1alpha1
(Kubernetes 1.32 and 1.33) is left out: 1.32 lacks the CEL functions that the policy needs. */ -}}
{{- define "zarf-registry.rewrite.apiVersion" -}}
{{- $known := .Capabilities.APIVersions.Has "v1/Pod" -}}
{{- $served := $known | ternary list (list "admissionregistration.k8s.io/v1") -}}
{{- range list "v1" "v1beta1" -}}
{{- $version := printf "admissionregistration.k8s.io/%s" . -}}
{{- if $.Capabilities.APIVersions.Has (printf "%s/MutatingAdmissionPolicy" $version) -}}
{{- $served = append $served $version -}}
{{- end -}}
{{- end -}}
{{- with $served -}}{{- first . -}}{{- end -}}
{{- end -}}

{{- /* A registry that is rewritten; nothing if none is. zarf-registry status asks the API server for a pod with an image of
it. */ -}}
{{- define "zarf-registry.rewrite.example" -}}
{{- $registries := .Values.rewrite.registries -}}
{{- $candidates := has "*" $registries | ternary (concat $registries (list "docker.io" "quay.io" "registry.example.com")) $registries -}}
{{- $examples := list -}}
{{- range $candidates -}}
{{- if not (or (eq . "*") (hasPrefix "!" .) (has (printf "!%s" .) $registries)) -}}
{{- $examples = append $examples . -}}
{{- end -}}
{{- end -}}
{{- with $examples -}}{{- first . -}}{{- end -}}
{{- end -}}

{{- /* A CEL expression: whether the registry in variable m.host is rewritten. All registries means those that nodes
reach over the network: a loopback address is another registry on the nodes. This registry's other names stay. */ -}}
{{- define "zarf-registry.rewrite.selected" -}}
{{- $all := false -}}
{{- $only := list -}}
{{- $except := list -}}
{{- range .Values.rewrite.registries -}}
{{- $host := trimPrefix "!" . | replace "index.docker.io" "docker.io" -}}
{{- if eq . "*" -}}
{{- $all = true -}}
{{- else if hasPrefix "!" . -}}
{{- $except = append $except $host -}}
{{- else -}}
{{- $only = append $only $host -}}
{{- end -}}
{{- end -}}
{{- $own := list (.zr.address | splitList "/" | first) -}}
{{- if .zr.internal -}}
{{- $service := printf "%s.%s.svc" .zr.name .zr.namespace -}}
{{- $own = concat (list $service (printf "%s.%s" $service .Values.clusterDomain)) .Values.expose.hosts -}}
{{- end -}}
{{- if $except -}}
!(m.host in {{ include "zarf-registry.rewrite.strings" $except }}) &&
{{ end -}}
{{- if $all -}}
({{- with $only -}}m.host in {{ include "zarf-registry.rewrite.strings" . }} || {{ end -}}
m.host.matches(r'^([a-zA-Z0-9]+(([.]|-+)[a-zA-Z0-9]+)*|\[[a-fA-F0-9:]+\])(:[0-9]+)?$') &&
!m.host.matches(r'^(localhost|127[.][0-9.]+|\[::1\])(:|$)') &&
![m.host, m.host.split(':')[0]].exists(h, h in {{ include "zarf-registry.rewrite.strings" $own }}))
{{- else -}}
m.host in {{ include "zarf-registry.rewrite.strings" $only }}
{{- end -}}
{{- end -}}

{{- /* A list of strings in CEL. */ -}}
{{- define "zarf-registry.rewrite.strings" -}}
{{- $quoted := list -}}
{{- range . -}}
{{- $quoted = append $quoted (squote .) -}}
{{- end -}}
[{{ join ", " $quoted }}]
{{- end -}}

{{- /* Which pods a policy is about, and the references in them that name a rewritten registry: a part of its spec. */ -}}
{{- define "zarf-registry.rewrite.references" -}}
{{- $address := .zr.address -}}
{{- $settings := .Values.rewrite -}}
{{- $selector := default dict $settings.namespaceSelector -}}
{{- $exempt := prepend $settings.excludedNamespaces .zr.namespace | uniq -}}
{{- /* With the API server's defaults: otherwise a server-side diff, such as Argo CD's, conflicts. */}}
matchConstraints:
  matchPolicy: Equivalent
  namespaceSelector:
    {{- with $selector.matchLabels }}
    matchLabels:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: NotIn
        values:
          {{- toYaml $exempt | nindent 10 }}
      - key: zarf-registry/rewrite
        operator: NotIn
        values: [disabled]
      {{- with $selector.matchExpressions }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  {{- /* Pods whose operator compares their images with its own: it would replace a rewritten pod again and again. */}}
  objectSelector:
    matchExpressions:
      - key: zarf-registry/rewrite
        operator: NotIn
        values: [disabled]
      - key: cnpg.io/podRole
        operator: NotIn
        values: [instance]
      - key: aerospike.com/cr
        operator: DoesNotExist
      - key: nifi_cr
        operator: DoesNotExist
      - key: olm.catalogSource
        operator: DoesNotExist
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
      scope: "*"
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [UPDATE]
      resources: [pods/ephemeralcontainers]
      scope: "*"
matchConditions:
  {{- /* A kubelet's copy of a static pod: the kubelet deletes what differs. */}}
  - name: no-mirror-pod
    expression: "!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}))"
  {{- /* Nothing of the registry runs on Windows nodes. */}}
  - name: no-windows-pod
    expression: >-
      object.spec.?os.?name.orValue('') != 'windows' &&
      object.spec.?nodeSelector.orValue({})[?'kubernetes.io/os'].orValue('') != 'windows'
  {{- /* Most pods of a cluster that has been converted cost no more than this. */}}
  - name: other-images
    expression: >-
      [object.spec.?containers, object.spec.?initContainers, object.spec.?ephemeralContainers].exists(l,
      l.orValue([]).exists(c, !c.image.startsWith('{{ $address }}/'))) ||
      object.spec.?volumes.orValue([]).exists(v, has(v.image))
variables:
  {{- /* What the kubelet would pull: the JSON pointer of each reference, and the annotation that keeps it. The API
  server accepts new ephemeral containers only, and no annotation with them. */}}
  - name: images
    expression: >-
      request.operation == 'UPDATE' ?
      object.spec.?ephemeralContainers.orValue([]).transformList(i, c,
      !oldObject.spec.?ephemeralContainers.orValue([]).exists(b, b.name == c.name),
      {'at': '/spec/ephemeralContainers/' + string(i) + '/image', 'key': '', 'image': string(c.image),
      'pull': string(c.?imagePullPolicy.orValue(''))}) :
      {{- range list "containers" "initContainers" }}
      object.spec.?{{ . }}.orValue([]).transformList(i, c,
      {'at': '/spec/{{ . }}/' + string(i) + '/image', 'key': 'original-image.zarf-registry/' + c.name,
      'image': string(c.image), 'pull': string(c.?imagePullPolicy.orValue(''))}) +
      {{- end }}
      object.spec.?volumes.orValue([]).transformList(i, v, has(v.image) && has(v.image.reference),
      {'at': '/spec/volumes/' + string(i) + '/image/reference', 'key': 'original-volume.zarf-registry/' + v.name,
      'image': string(v.image.reference), 'pull': string(v.image.?pullPolicy.orValue(''))})
  {{- /* As Docker and containerd split a reference. An image that is never pulled, and the ID of one, are names of
  what the node has. */}}
  - name: references
    expression: >-
      variables.images.filter(m, m.pull != 'Never' && !m.image.startsWith('{{ $address }}/') &&
      !m.image.matches('^(sha256:)?[a-f0-9]{64}$')).map(m,
      !m.image.matches('^([^/]*[.:A-Z][^/]*|localhost)/') ?
      {'at': m.at, 'key': m.key, 'image': m.image, 'host': 'docker.io', 'path': m.image} :
      {'at': m.at, 'key': m.key, 'image': m.image,
      'host': m.image.startsWith('index.docker.io/') ? 'docker.io' : m.image.split('/', 2)[0],
      'path': m.image.split('/', 2)[1]})
  - name: selected
    expression: >-
      variables.references.filter(m,
      {{- include "zarf-registry.rewrite.selected" . | nindent 6 }})
{{- end -}}

{{- /* A CEL expression: the repository and version that reference m has in the registry. */ -}}
{{- define "zarf-registry.rewrite.path" -}}
(m.host == 'docker.io' && !m.path.contains('/') ? 'library/' : '') + m.path
{{- end -}}
