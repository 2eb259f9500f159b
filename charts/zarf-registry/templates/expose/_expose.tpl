{{- /* Access from outside of the cluster: what is rendered, and what cannot work. */ -}}

{{- /* The values, with the defaults of values.yaml where `helm upgrade --reuse-values` takes over those of a release of
before. JSON: service, ingress, gateway and backendTLS as they stand; hosts; issuer; tlsSecret and usersSecret, the names of the Secrets
that the registry mounts, empty for none; anonymousPull. */ -}}
{{- define "zarf-registry.expose.settings" -}}
{{- $expose := default dict .Values.expose -}}
{{- $service := merge (deepCopy (default dict $expose.service)) (dict "enabled" false "type" "LoadBalancer" "port" 443) -}}
{{- $gateway := default dict $expose.gateway -}}
{{- $issuer := merge (deepCopy (dig "tls" "certManager" "issuerRef" dict $expose)) (dict "kind" "Issuer" "group" "cert-manager.io") -}}
{{- $secret := dig "tls" "existingSecret" "" $expose -}}
{{- if and $issuer.name (not $secret) -}}
{{- $secret = printf "%s-expose-tls" (include "zarf-registry.fullname" .) -}}
{{- end -}}
{{- dict
  "service" $service
  "ingress" (default dict $expose.ingress)
  "gateway" $gateway
  "backendTLS" (dict "enabled" (dig "backendTLSPolicy" "enabled" true $gateway) "caConfigMap" (dig "backendTLSPolicy" "caConfigMap" "" $gateway))
  "hosts" (default list $expose.hosts)
  "issuer" $issuer
  "tlsSecret" $secret
  "usersSecret" (default "" $expose.pullUsersSecret)
  "anonymousPull" (default false $expose.anonymousPull) | toJson -}}
{{- end -}}

{{- define "zarf-registry.expose.name" -}}
{{- printf "%s-expose" (include "zarf-registry.fullname" .) -}}
{{- end -}}

{{- /* Something leads to the registry from outside. */ -}}
{{- define "zarf-registry.expose.asked" -}}
{{- $expose := include "zarf-registry.expose.settings" . | fromJson -}}
{{- if or $expose.service.enabled $expose.ingress.enabled $expose.gateway.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose" -}}
{{- if and (include "zarf-registry.internal" .) (include "zarf-registry.expose.asked" .) -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.ingress" -}}
{{- if and (include "zarf-registry.expose" .) (include "zarf-registry.expose.settings" . | fromJson).ingress.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.gateway" -}}
{{- if and (include "zarf-registry.expose" .) (include "zarf-registry.expose.settings" . | fromJson).gateway.enabled -}}true{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.backendTLS" -}}
{{- if and (include "zarf-registry.expose.gateway" .) (include "zarf-registry.expose.settings" . | fromJson).backendTLS.enabled -}}true{{- end -}}
{{- end -}}

{{- /* cert-manager issues the certificate. */ -}}
{{- define "zarf-registry.expose.certificate" -}}
{{- if and (include "zarf-registry.expose" .) (include "zarf-registry.expose.settings" . | fromJson).issuer.name -}}true{{- end -}}
{{- end -}}

{{- /* Where clients outside find the registry, HOST[:PORT]; empty where nobody said. */ -}}
{{- define "zarf-registry.expose.address" -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := include "zarf-registry.expose.settings" . | fromJson -}}
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
{{- end -}}

{{- /* The user's Secrets that the registry mounts: JSON array of names. What cert-manager makes is not among them. */ -}}
{{- define "zarf-registry.expose.secrets" -}}
{{- $names := list -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := include "zarf-registry.expose.settings" . | fromJson -}}
{{- if not $expose.issuer.name -}}
{{- $names = append $names $expose.tlsSecret -}}
{{- end -}}
{{- $names = append $names $expose.usersSecret -}}
{{- end -}}
{{- $names | compact | uniq | toJson -}}
{{- end -}}

{{- /* The arguments of the registry. */ -}}
{{- define "zarf-registry.expose.args" -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := include "zarf-registry.expose.settings" . | fromJson -}}
- --expose-listen=:5443
{{- if $expose.tlsSecret }}
- --expose-tls-dir=/etc/zarf-registry/expose-tls
{{- end }}
{{- if $expose.usersSecret }}
- --expose-htpasswd=/etc/zarf-registry/expose-users/htpasswd
{{- end }}
{{- if $expose.anonymousPull }}
- --expose-anonymous-pull
{{- end }}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.volumeMounts" -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := include "zarf-registry.expose.settings" . | fromJson -}}
{{- if $expose.tlsSecret }}
- name: expose-tls
  mountPath: /etc/zarf-registry/expose-tls
  readOnly: true
{{- end }}
{{- if $expose.usersSecret }}
- name: expose-users
  mountPath: /etc/zarf-registry/expose-users
  readOnly: true
{{- end }}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.volumes" -}}
{{- if include "zarf-registry.expose" . -}}
{{- $expose := include "zarf-registry.expose.settings" . | fromJson -}}
{{- with $expose.tlsSecret }}
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
{{- with $expose.usersSecret }}
- name: expose-users
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
    {{- /* Whoever may only pull is no reason for the registry not to start. */}}
    optional: true
    items:
      - key: htpasswd
        path: htpasswd
{{- end }}
{{- end -}}
{{- end -}}

{{- define "zarf-registry.expose.validate" -}}
{{- if include "zarf-registry.expose.asked" . -}}
{{- $expose := include "zarf-registry.expose.settings" . | fromJson -}}
{{- $service := $expose.service -}}
{{- if not (include "zarf-registry.internal" .) -}}
{{- fail "zarf-registry: expose: with an external registry there is none of ours to expose; remove it" -}}
{{- end -}}
{{- if and $expose.issuer.name (dig "tls" "existingSecret" "" .Values.expose) -}}
{{- fail "zarf-registry: expose.tls.existingSecret: cert-manager is to issue the certificate (expose.tls.certManager.issuerRef.name); remove one of them" -}}
{{- end -}}
{{- if and $service.enabled (not $expose.tlsSecret) -}}
{{- fail "zarf-registry: expose.tls.existingSecret: clients outside verify the name that they ask for, which the registry's own certificate does not have; set it, or expose.tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if not $expose.hosts -}}
{{- if $expose.issuer.name -}}
{{- fail "zarf-registry: expose.hosts: cert-manager issues the certificate for these names, and there are none; set them" -}}
{{- else if or $expose.ingress.enabled $expose.gateway.enabled -}}
{{- fail "zarf-registry: expose.hosts: Ingress and HTTPRoute lead these names to the registry, and there are none; set them" -}}
{{- end -}}
{{- end -}}
{{- if and $expose.gateway.enabled (not $expose.gateway.parentRefs) -}}
{{- fail "zarf-registry: expose.gateway.parentRefs: an HTTPRoute without a Gateway leads nowhere; name the Gateway" -}}
{{- end -}}
{{- if and (include "zarf-registry.expose.backendTLS" .) (not $expose.tlsSecret) (not $expose.backendTLS.caConfigMap) -}}
{{- fail "zarf-registry: expose.gateway.backendTLSPolicy.caConfigMap: the registry's own certificate is of an authority that no gateway knows; set expose.tls, or name a ConfigMap with that authority, which init-hook certs ca prints" -}}
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
{{- fail (printf "zarf-registry: expose.service.%s: only a Service of type LoadBalancer has it; set expose.service.type=LoadBalancer, or remove it" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $service.externalTrafficPolicy (eq $service.type "ClusterIP") -}}
{{- fail "zarf-registry: expose.service.externalTrafficPolicy: nothing external comes to a Service of type ClusterIP; remove it" -}}
{{- end -}}
{{- end -}}
{{- $ours := list -}}
{{- range concat (include "zarf-registry.madeSecrets" . | fromJsonArray) (include "zarf-registry.issuedSecrets" . | fromJsonArray) -}}
{{- $ours = append $ours (printf "%s-%s" (include "zarf-registry.fullname" $) .) -}}
{{- end -}}
{{- range $path, $name := dict "tls.existingSecret" $expose.tlsSecret "pullUsersSecret" $expose.usersSecret "ingress.tlsSecret" (default "" $expose.ingress.tlsSecret) -}}
{{- if has $name $ours -}}
{{- fail (printf "zarf-registry: expose.%s: Secret %s is one that the Jobs make; name one of your own" $path $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
