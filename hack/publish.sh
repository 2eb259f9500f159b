#!/usr/bin/env bash
# Signs the checksums in dist/release, packs the bundle with the signature and signs it, pushes images and chart to a
# registry, signs both by their digests, and attaches the images' SBOMs: hack/publish.sh REGISTRY [FLAGS of cosign].
# Needs cosign, helm, jq and oras. Writes dist/published with lines of "digest  name", as sha256sum does, and
# dist/notes.md, the notes of the release.
set -euo pipefail
cd "$(dirname "$0")/../dist/release"

registry=$1
shift
plain=()
[[ $registry != localhost:* ]] || plain=(--plain-http)
chart=$(echo zarf-registry-[0-9]*.tgz)
version=${chart#zarf-registry-} version=${version%.tgz}
sign() { cosign sign-blob --yes "${@:2}" --bundle "$1.sigstore.json" "$1"; }
declare -A program=([init-hook]=zarf-registry [registry]=registry [registry-node]=registry-node) # of the SBOMs

sign SHA256SUMS "$@"
make -C ../.. bundle
sign "zarf-registry-bundle-$version.tar.gz" "$@"

: >../published
for image in init-hook registry registry-node probe; do
  "./zarf-registry-linux-$(go env GOARCH)" images push --to "$registry" "${plain[@]}" "$image.tar"
  digest=$(tar --extract --to-stdout --file "$image.tar" index.json | jq -er '.manifests[0].digest')
  echo "${digest#sha256:}  $registry/zarf-dev/zarf-registry/$image" >>../published
done
digest=$(helm push "$chart" "oci://$registry/zarf-dev/charts" "${plain[@]}" 2>&1 | tee >(cat >&2) | sed -n 's/^Digest: //p')
echo "${digest#sha256:}  $registry/zarf-dev/charts/zarf-registry" >>../published
# What Artifact Hub knows of the repository.
oras push "${plain[@]}" "$registry/zarf-dev/charts/zarf-registry:artifacthub.io" \
  --config /dev/null:application/vnd.cncf.artifacthub.config.v1+yaml --disable-path-validation \
  ../../charts/artifacthub-repo.yml:application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml

while read -r digest name; do
  cosign sign --yes "$@" "$name@sha256:$digest"
  for sbom in "${program[${name##*/}]:-none}"-linux-*.cdx.json; do
    [ ! -e "$sbom" ] || cosign attest --yes "$@" --type cyclonedx --predicate "$sbom" "$name@sha256:$digest"
  done
done <../published

{
  awk -v version="$version" '/^## / {inside = $2 == version || $2 == "Unreleased"; next} inside' ../../CHANGELOG.md |
    sed "s,](docs/,](https://github.com/zarf-dev/zarf-registry/blob/v$version/docs/,g"
  printf '\n[How to verify](%s) these files, images and the chart:\n\n|image or chart|digest|\n|---|---|\n' \
    "https://github.com/zarf-dev/zarf-registry/blob/v$version/docs/dev/release.md#verify"
  sed -E 's,^(\S+)  (\S+)$,|`\2`|`sha256:\1`|,' ../published
} >../notes.md
