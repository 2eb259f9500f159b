{{- /* Which images may carry the project's programs. An image decides how a program starts: it can replace the loader.
So content is trusted, not names: users who run pods decide which names nodes report, and a compromised node reports
any.

Three implementations follow one rule: these templates, internal/release/nodeimages, and the healer's admission policy. Tests of
templates-tests compare them. */ -}}

{{- /* files/pause-images.json, with the repositories that this release does not serve, as JSON. */ -}}
{{- define "zarf-registry.pause.table" -}}
{{- if not (hasKey . "PauseTable") -}}
{{- $table := .Files.Get "files/pause-images.json" | fromJson -}}
{{- $repositories := list -}}
{{- range $table.repositories -}}
{{- if not (include "zarf-registry.pause.served" (dict "root" $ "image" .)) -}}
{{- $repositories = append $repositories . -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "PauseTable" (set $table "repositories" $repositories) -}}
{{- end -}}
{{- .PauseTable | toJson -}}
{{- end -}}

{{- /* A regular expression of the images at an address of this release's registry, in any spelling: the registry must
not depend on itself. */ -}}
{{- define "zarf-registry.pause.own" -}}
{{- $hosts := list "([^/:]*[.])?localhost" "127[.][^/:]*" "0[0-9a-fx.]*" "[0-9]+" "\\[[^/]*\\]" -}}
{{- if include "zarf-registry.internal" . -}}
{{- $service := printf "%s(-[a-z]+)?" (include "zarf-registry.fullname" . | regexQuoteMeta) -}}
{{- $hosts = append $hosts (printf "%s([.]%s([.][^/:]*)?)?" $service (include "zarf-registry.namespace" . | regexQuoteMeta)) -}}
{{- $hosts = append $hosts (printf "[^/]*:%d" (int .Values.port)) -}}
{{- range .Values.expose.hosts -}}
{{- $hosts = append $hosts (regexQuoteMeta .) -}}
{{- end -}}
{{- end -}}
{{- printf "(?i)^(%s)[.]?(:[0-9]+)?/" (join "|" $hosts) -}}
{{- end -}}

{{- /* "true" if pulls of an image may reach this release's registry: by its own addresses, mirrors, or rewriting. What
the chart cannot read counts. Takes root, image. */ -}}
{{- define "zarf-registry.pause.served" -}}
{{- $node := .root.Values.nodeConfig -}}
{{- $registries := concat (default list $node.mirrors) (default dict $node.containerd.hosts | keys) -}}
{{- with $node.k3s.registries -}}
{{- $mirrors := (kindIs "string" . | ternary (fromYaml (toString .)) .).mirrors -}}
{{- $registries = concat $registries (kindIs "map" $mirrors | ternary $mirrors dict | keys) -}}
{{- end -}}
{{- if $node.k3s.existingSecret -}}
{{- $registries = append $registries "*" -}}
{{- end -}}
{{- $rewritten := list -}}
{{- if include "zarf-registry.rewrite" .root -}}
{{- $rewritten = .root.Values.rewrite.registries -}}
{{- end -}}
{{- $host := include "zarf-registry.pause.host" (splitList "/" .image | first) -}}
{{- $served := regexMatch (include "zarf-registry.pause.own" .root) .image -}}
{{- range list $registries $rewritten -}}
{{- $hosts := list -}}
{{- range . -}}
{{- $except := hasPrefix "!" . | ternary "!" "" -}}
{{- $hosts = append $hosts (printf "%s%s" $except (include "zarf-registry.pause.host" (trimPrefix "!" .))) -}}
{{- end -}}
{{- $all := and (or (has "*" $hosts) (has "_default" $hosts)) (not (has (printf "!%s" $host) $hosts)) -}}
{{- $served = or $served $all (has $host $hosts) -}}
{{- end -}}
{{- if $served -}}true{{- end -}}
{{- end -}}

{{- /* The host of a registry without the port, in the form that all spellings share. Docker Hub's is left out of many
names, whose first component is then a user. Takes the host. */ -}}
{{- define "zarf-registry.pause.host" -}}
{{- $host := lower . | splitList ":" | first | trimSuffix "." -}}
{{- if or (has $host (list "index.docker.io" "registry-1.docker.io")) (regexMatch "^[a-z0-9-]+$" $host) -}}
docker.io
{{- else -}}
{{- $host -}}
{{- end -}}
{{- end -}}

{{- /* What the healer, its policy and init-hook need, as JSON: references, the images of the release's pods; digest and
name, regular expressions of the images that are trusted by their digest or their repository; own, one of those at this
release's registry. */ -}}
{{- define "zarf-registry.pause.rules" -}}
{{- if not (hasKey . "PauseRules") -}}
{{- $table := include "zarf-registry.pause.table" . | fromJson -}}
{{- $references := list -}}
{{- $digests := keys $table.digests -}}
{{- range .Values.injector.architectures -}}
{{- $references = append $references (include "zarf-registry.pause" (dict "root" $ "architecture" .) | fromJson).value -}}
{{- end -}}
{{- range $references -}}
{{- $digests = concat $digests (splitList "@" . | rest) -}}
{{- end -}}
{{- $repositories := list -}}
{{- range $table.repositories -}}
{{- $repositories = append $repositories (regexQuoteMeta .) -}}
{{- end -}}
{{- $_ := set . "PauseRules" (dict
  "references" ($references | uniq | sortAlpha)
  "digest" (printf "^[^@]+@(%s)$" ($digests | uniq | sortAlpha | join "|"))
  "name" (printf "^(%s)(:[0-9A-Za-z_][0-9A-Za-z_.-]*|@sha256:[0-9a-f]{64})$" (join "|" $repositories))
  "own" (include "zarf-registry.pause.own" .)) -}}
{{- end -}}
{{- .PauseRules | toJson -}}
{{- end -}}

{{- define "zarf-registry.pause.name" -}}
{{- printf "%s-pause-images" (include "zarf-registry.fullname" .) -}}
{{- end -}}
