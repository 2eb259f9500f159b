{{- /* Which images may carry the project's programs. An image decides how a program starts: it can replace the loader.
So content is trusted, not names: users who run pods decide which names nodes report, and a compromised node reports
any.

Three implementations follow one rule: these templates, internal/release/nodeimages, and the healer's admission policy.
Tests of templates-tests compare them. */ -}}

{{- /* Sets .zr.pause:
  table   files/pause-images.json, with the repositories that this release does not serve
  images  by architecture, the image of injected programs: value; source; reason, why it may carry them (value, digest,
          name or default); pullPolicy. Empty if nothing is injected
  rules   what the healer, its policy and init-hook need: references, the images of the release's pods; digest and name,
          regular expressions of the images that are trusted by their digest or their repository; own, one of those at
          this release's registry; official, images to try where a node may not report all that it has */ -}}
{{- define "zarf-registry.decide.pause" -}}
{{- $_ := set .zr "pause" (dict "own" (include "zarf-registry.pause.own" .)) -}}
{{- $table := .Files.Get "files/pause-images.json" | fromJson -}}
{{- $repositories := list -}}
{{- $quoted := list -}}
{{- range $table.repositories -}}
{{- if not (include "zarf-registry.pause.served" (list $ .)) -}}
{{- $repositories = append $repositories . -}}
{{- $quoted = append $quoted (regexQuoteMeta .) -}}
{{- end -}}
{{- end -}}
{{- $_ := set .zr.pause "table" (set $table "repositories" $repositories) -}}
{{- $byDigest := "^[^@]+@(%s)$" -}}
{{- $byName := printf "^(%s)(:[0-9A-Za-z_][0-9A-Za-z_.-]*|@sha256:[0-9a-f]{64})$" (join "|" $quoted) -}}
{{- $official := keys $table.digests | sortAlpha | join "|" | printf $byDigest -}}
{{- $images := dict -}}
{{- $references := list -}}
{{- range $architecture := and .zr.injects .Values.injector.enabled | ternary .Values.injector.architectures list -}}
{{- $image := dict "value" $.Values.injector.image "source" "value" "reason" "value" -}}
{{- if not $image.value -}}
{{- /* What the state records wins over the cluster, so that nodes which join or leave change nothing. It must be
trusted, because others than people write the state. A recorded name without digest is only as good as the registry
behind it. */ -}}
{{- $recorded := get (default dict $.zr.state.pauseImages) $architecture | default dict -}}
{{- $reference := toString $recorded.reference -}}
{{- $digested := and (regexMatch $official $reference) (not (regexMatch $.zr.pause.own $reference)) -}}
{{- if not (or (empty $recorded.reference) (regexMatch $byName $reference) $digested) -}}
{{- if or (contains "@" $reference) (empty (include "zarf-registry.pause.served" (list $ $reference))) -}}
{{- fail (printf (print "zarf-registry: injector.image: Secret %s/%s-state records the image %q for %s, which no rule "
  "trusts; set injector.image to an image that you trust") $.zr.namespace $.zr.name $reference $architecture) -}}
{{- end -}}
{{- $recorded = dict -}}
{{- end -}}
{{- $seen := include "zarf-registry.cluster.pause" (list $ $architecture) | splitList " " -}}
{{- if $recorded.reference -}}
{{- $image = dict "value" $recorded.reference "source" "state" "reason" $recorded.reason -}}
{{- else if first $seen -}}
{{- $image = dict "value" (last $seen) "source" "cluster" "reason" (first $seen) -}}
{{- else -}}
{{- $image = dict "value" $table.default "source" "default" "reason" "default" -}}
{{- end -}}
{{- end -}}
{{- /* Nothing is pulled where the healer finds another image; nodes may be meant to pull an image of the user's. */ -}}
{{- $never := and $.zr.healer (ne $image.reason "value") -}}
{{- $_ := set $images $architecture (set $image "pullPolicy" ($never | ternary "Never" "IfNotPresent")) -}}
{{- $references = append $references $image.value -}}
{{- end -}}
{{- $digests := keys $table.digests -}}
{{- range $references -}}
{{- $digests = concat $digests (splitList "@" . | rest) -}}
{{- end -}}
{{- $_ := merge .zr.pause (dict "images" $images "rules" (dict
  "references" ($references | uniq | sortAlpha)
  "digest" ($digests | uniq | sortAlpha | join "|" | printf $byDigest)
  "name" $byName
  "own" .zr.pause.own
  "official" $table.official)) -}}
{{- end -}}

{{- /* A regular expression of the images at an address of this release's registry, in any spelling: the registry must
not depend on itself. */ -}}
{{- define "zarf-registry.pause.own" -}}
{{- $hosts := list "([^/:]*[.])?localhost" "127[.][^/:]*" "0[0-9a-fx.]*" "[0-9]+" "\\[[^/]*\\]" -}}
{{- if .zr.internal -}}
{{- $service := printf "%s(-[a-z]+)?" (regexQuoteMeta .zr.name) -}}
{{- $hosts = append $hosts (printf "%s([.]%s([.][^/:]*)?)?" $service (regexQuoteMeta .zr.namespace)) -}}
{{- $hosts = append $hosts (printf "[^/]*:%d" (int .Values.port)) -}}
{{- range .Values.expose.hosts -}}
{{- $hosts = append $hosts (regexQuoteMeta .) -}}
{{- end -}}
{{- end -}}
{{- printf "(?i)^(%s)[.]?(:[0-9]+)?/" (join "|" $hosts) -}}
{{- end -}}

{{- /* "true" if pulls of an image may reach this release's registry: by its own addresses, mirrors, or rewriting. What
the chart cannot read counts. Takes a list: root, image. */ -}}
{{- define "zarf-registry.pause.served" -}}
{{- $image := last . -}}
{{- with first . -}}
{{- $node := .Values.nodeConfig -}}
{{- $registries := concat (default list $node.mirrors) (keys $node.containerd.hosts) -}}
{{- with $node.k3s.registries -}}
{{- $mirrors := (kindIs "string" . | ternary (fromYaml (toString .)) .).mirrors -}}
{{- $registries = concat $registries (kindIs "map" $mirrors | ternary $mirrors dict | keys) -}}
{{- end -}}
{{- if $node.k3s.existingSecret -}}
{{- $registries = append $registries "*" -}}
{{- end -}}
{{- $host := include "zarf-registry.pause.host" (splitList "/" $image | first) -}}
{{- $served := regexMatch .zr.pause.own $image -}}
{{- range list $registries (.Values.rewrite.enabled | ternary .Values.rewrite.registries list) -}}
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
