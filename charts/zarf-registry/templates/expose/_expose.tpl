{{- /* Access from outside of the cluster: what is rendered, and what cannot work. */ -}}

{{- /* The Secret with the certificate for clients outside; may be empty. */ -}}
{{- define "zarf-registry.expose.tlsSecret" -}}
{{- with .Values.expose.tls -}}
{{- if or .existingSecret (not .certManager.issuerRef.name) -}}
{{- .existingSecret -}}
{{- else -}}
{{- printf "%s-expose-tls" (include "zarf-registry.fullname" $) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.name" -}}
{{- printf "%s-expose" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Access from outside of the cluster is enabled. */ -}}
{{- define "zarf-registry.expose.asked" -}}
{{- $expose := .Values.expose -}}
{{- if or $expose.service.enabled $expose.ingress.enabled $expose.gateway.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose" -}}
{{- if and (include "zarf-registry.internal" .) (include "zarf-registry.expose.asked" .) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.ingress" -}}
{{- if and (include "zarf-registry.expose" .) .Values.expose.ingress.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.gateway" -}}
{{- if and (include "zarf-registry.expose" .) .Values.expose.gateway.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.backendTLS" -}}
{{- if and (include "zarf-registry.expose.gateway" .) .Values.expose.gateway.backendTLSPolicy.enabled -}}true{{- end -}}
{{- end -}}

{{- /* cert-manager issues the certificate. */ -}}
{{- define "zarf-registry.expose.certificate" -}}
{{- if and (include "zarf-registry.expose" .) .Values.expose.tls.certManager.issuerRef.name -}}true{{- end -}}
{{- end -}}

{{- /* The registry's address for clients outside, HOST[:PORT]; empty if unknown. Only with zarf-registry.expose. */ -}}
{{- define "zarf-registry.expose.address" -}}
{{- $expose := .Values.expose -}}
{{- $host := first $expose.hosts -}}
{{- $service := $expose.service -}}
{{- if not $host -}}
{{- else if or $expose.ingress.enabled $expose.gateway.enabled -}}
{{- $host -}}
{{- else if and (eq $service.type "NodePort") $service.nodePort -}}
{{- printf "%s:%d" $host (int $service.nodePort) -}}
{{- else if eq $service.type "LoadBalancer" -}}
{{- eq (int $service.port) 443 | ternary $host (printf "%s:%d" $host (int $service.port)) -}}
{{- end -}}
{{- end -}}

{{- /* The user's Secrets that the registry mounts: JSON array of names. Without the one that cert-manager
writes. */ -}}
{{- define "zarf-registry.expose.secrets" -}}
{{- $names := list -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := .Values.expose -}}
{{- if not $expose.tls.certManager.issuerRef.name -}}
{{- $names = append $names (include "zarf-registry.expose.tlsSecret" .) -}}
{{- end -}}
{{- $names = append $names $expose.pullUsersSecret -}}
{{- end -}}
{{- $names | compact | uniq | toJson -}}
{{- end -}}

{{- /* Arguments of the registry. */ -}}
{{- define "zarf-registry.expose.args" -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := .Values.expose -}}
- --expose-listen=:5443
{{- if include "zarf-registry.expose.tlsSecret" . }}
- --expose-tls-dir=/etc/zarf-registry/expose-tls
{{- end }}
{{- if $expose.pullUsersSecret }}
- --expose-htpasswd=/etc/zarf-registry/expose-users/htpasswd
{{- end }}
{{- if $expose.anonymousPull }}
- --expose-anonymous-pull
{{- end }}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.volumeMounts" -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := .Values.expose -}}
{{- if include "zarf-registry.expose.tlsSecret" . }}
- name: expose-tls
  mountPath: /etc/zarf-registry/expose-tls
  readOnly: true
{{- end }}
{{- if $expose.pullUsersSecret }}
- name: expose-users
  mountPath: /etc/zarf-registry/expose-users
  readOnly: true
{{- end }}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.volumes" -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := .Values.expose -}}
{{- with include "zarf-registry.expose.tlsSecret" . }}
- name: expose-tls
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
    items:
      - key: tls.crt
        path: tls.crt
      - key: tls.key
        path: tls.key
{{- end }}
{{- with $expose.pullUsersSecret }}
- name: expose-users
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
    {{- /* The registry starts without it: it affects only users who pull. */}}
    optional: true
    items:
      - key: htpasswd
        path: htpasswd
{{- end }}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.validate" -}}
{{- if include "zarf-registry.expose.asked" . -}}
{{- $expose := .Values.expose -}}
{{- $service := $expose.service -}}
{{- if not (include "zarf-registry.internal" .) -}}
{{- fail "zarf-registry: expose: an external registry cannot be exposed; remove it" -}}
{{- end -}}
{{- if and $expose.tls.certManager.issuerRef.name $expose.tls.existingSecret -}}
{{- fail "zarf-registry: expose.tls.existingSecret: cert-manager issues the certificate (expose.tls.certManager.issuerRef.name); remove one of them" -}}
{{- end -}}
{{- if and $service.enabled (not (include "zarf-registry.expose.tlsSecret" .)) -}}
{{- fail "zarf-registry: expose.tls.existingSecret: clients outside verify the host name, which the registry's own certificate lacks; set it, or expose.tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if not $expose.hosts -}}
{{- if $expose.tls.certManager.issuerRef.name -}}
{{- fail "zarf-registry: expose.hosts: cert-manager needs names for the certificate; set them" -}}
{{- else if or $expose.ingress.enabled $expose.gateway.enabled -}}
{{- fail "zarf-registry: expose.hosts: Ingress and HTTPRoute need host names; set them" -}}
{{- end -}}
{{- end -}}
{{- if and $expose.gateway.enabled (not $expose.gateway.parentRefs) -}}
{{- fail "zarf-registry: expose.gateway.parentRefs: an HTTPRoute needs a Gateway; name it" -}}
{{- end -}}
{{- if and (include "zarf-registry.expose.backendTLS" .) (not (include "zarf-registry.expose.tlsSecret" .)) (not $expose.gateway.backendTLSPolicy.caConfigMap) -}}
{{- fail "zarf-registry: expose.gateway.backendTLSPolicy.caConfigMap: gateways do not trust the CA of the registry's own certificate; set expose.tls, or name a ConfigMap with that CA, which zarf-registry certs ca prints" -}}
{{- end -}}
{{- if $service.enabled -}}
{{- if $service.nodePort -}}
{{- if eq $service.type "ClusterIP" -}}
{{- fail "zarf-registry: expose.service.nodePort: a Service of type ClusterIP has no node port; set expose.service.type=NodePort, or remove it" -}}
{{- else if eq (int $service.nodePort) (int .Values.port) -}}
{{- fail (printf "zarf-registry: expose.service.nodePort: %d is the port on the nodes' loopback addresses; set another" (int .Values.port)) -}}
{{- end -}}
{{- end -}}
{{- if ne $service.type "LoadBalancer" -}}
{{- range list "loadBalancerClass" "loadBalancerSourceRanges" -}}
{{- if get $service . -}}
{{- fail (printf "zarf-registry: expose.service.%s: it needs a Service of type LoadBalancer; set expose.service.type=LoadBalancer, or remove it" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $service.externalTrafficPolicy (eq $service.type "ClusterIP") -}}
{{- fail "zarf-registry: expose.service.externalTrafficPolicy: a Service of type ClusterIP has no external traffic; remove it" -}}
{{- end -}}
{{- end -}}
{{- $ours := list -}}
{{- range concat (include "zarf-registry.madeSecrets" . | fromJsonArray) (include "zarf-registry.issuedSecrets" . | fromJsonArray) -}}
{{- $ours = append $ours (printf "%s-%s" (include "zarf-registry.fullname" $) .) -}}
{{- end -}}
{{- range $path, $name := dict "tls.existingSecret" (include "zarf-registry.expose.tlsSecret" .) "pullUsersSecret" $expose.pullUsersSecret "ingress.tlsSecret" (default "" $expose.ingress.tlsSecret) -}}
{{- if has $name $ours -}}
{{- fail (printf "zarf-registry: expose.%s: Secret %s is created by the Jobs; name one of your own" $path $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
