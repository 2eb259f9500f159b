#!/usr/bin/env bash
# Rehearses a release of HEAD, without internet and GitHub, in dist/rehearsal: hack/rehearse.sh [builds|upgrades]
# builds    tags, builds twice, the second time with an empty build cache or that of REHEARSE_CACHE, compares, signs with
#           a key, publishes to a registry of its own, verifies, and builds a next version with another proxy.
# upgrades  installs from the bundle on a test cluster, and upgrades to the next version while nodes pull.
# Commands of docs/dev/release.md and docs/guide are those of the pages' blocks. Only what needs GitHub is replaced: the
# signer by a key, ghcr.io by the registry, and nothing runs gh. Needs the tools that make rehearse builds.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${REHEARSAL-}" ]; then # only loopback
  export REHEARSAL=$PWD/dist/rehearsal
  exec unshare --net bash -c 'ip link set lo up && exec "$@"' bash "hack/${0##*/}" "$@"
fi
root=$PWD
version=$(sed -n 's/^version: //p' charts/zarf-registry/Chart.yaml)
next=${version%.*}.$((${version##*.} + 1))
programs=$root/bin
for tool in cosign crane kubectl oras; do programs+=:$(dirname "$("$root/bin/testcluster" tool $tool)"); done
GOPROXY=file://$(go env GOMODCACHE)/cache/download # without it, another toolchain needs the checksum database
GOTOOLCHAIN=$(sed -n 's/^toolchain //p' go.mod)
export PATH=$programs:$PATH GOPROXY GOTOOLCHAIN GOSUMDB=off COSIGN_PASSWORD=''
key=$REHEARSAL/workstation/cosign

step() { printf '\n==> %s\n' "$*"; }

# page FILE HEADING LANGUAGE runs the blocks of a section, up to the next heading, in this shell.
page() {
  local commands
  commands=$(awk -v heading="$2" -v opening="^ *\`\`\`$3\$" '
    /^#/ && !code { inside = $0 == heading }
    /^ *```/ { code = !code; run = code && inside && $0 ~ opening; next }
    run { sub(/^ *\$ /, ""); print }' "$root/docs/$1" |
    sed -E "s/X\.Y\.Z|0\.1\.0/$version/g; s,ghcr\.io,$registry,; s/@DIGEST/@sha256:${digest-}/
      s,^signer=.*,signer='--key $key.pub --insecure-ignore-tlog',")
  [ -n "$commands" ] || { echo "docs/$1 has no $3 in section $2" >&2; exit 1; }
  step "docs/$1, ${2##*# }"
  set -x; eval "$commands"; { set +x; } 2>/dev/null
}

registry=localhost:5000
builds() {
  rm -rf "$REHEARSAL"
  mkdir -p "$REHEARSAL"/{workstation,again}
  (cd "$REHEARSAL/workstation" && cosign generate-key-pair)
  ssh-keygen -q -t ed25519 -N '' -f "$REHEARSAL/maintainer"
  local origin=$REHEARSAL/origin.git digest
  git clone --quiet --bare . "$origin"
  export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=url.$origin.insteadOf \
    GIT_CONFIG_VALUE_0=https://github.com/zarf-dev/zarf-registry GIT_CONFIG_KEY_1=gpg.format GIT_CONFIG_VALUE_1=ssh \
    GIT_CONFIG_KEY_2=user.signingKey GIT_CONFIG_VALUE_2=$REHEARSAL/maintainer
  git clone --quiet "$origin" "$REHEARSAL/first"
  cd "$REHEARSAL/first"
  page dev/release.md '## Make a release' console
  step 'the first build'
  make release

  cd ../again
  ln -s ../first/dist/release downloaded
  (export GOCACHE=${REHEARSE_CACHE:-$REHEARSAL/cache} && page dev/release.md '## Reproduce' console)
  diff --recursive --brief ../first/dist/release zarf-registry/dist/release

  step 'sign and publish'
  crane registry serve --address "$registry" --disk "$(mktemp -d -p "$REHEARSAL")" &
  trap "kill $!" EXIT
  cd "$REHEARSAL/first"
  hack/publish.sh "$registry" --key "$key.key" --use-signing-config=false --tlog-upload=false
  cp dist/release/SHA256SUMS.sigstore.json ../again/zarf-registry/dist/release
  make -C ../again/zarf-registry bundle
  diff --recursive --brief --exclude '*.tar.gz.sigstore.json' dist/release ../again/zarf-registry/dist/release
  rm -rf ../again ../cache

  digest=$(awk '/init-hook$/ {print $1}' dist/published)
  cd dist/release
  page dev/release.md '## Verify' console
  cp zarf-registry-bundle-* "$REHEARSAL/workstation"

  step "version $next, with another proxy"
  git clone --quiet "$REHEARSAL/first" "$REHEARSAL/next"
  cd "$REHEARSAL/next"
  sed -i "s/^\(version\|appVersion\): .*/\1: \"$next\"/" charts/zarf-registry/Chart.yaml
  sed -i 's/log.Info("starting"/log.Info("starting the next version"/' cmd/registry-node/root/proxy.go
  git -c user.name=rehearsal -c user.email=rehearsal@example.com commit --quiet --all --message "$next"
  make release VERSION="$next"
  cp dist/release/zarf-registry-bundle-* "$REHEARSAL/workstation"
}

upgrades() {
  cluster=("$root/bin/testcluster" --name rehearsal) pulls=$REHEARSAL/pulls
  "${cluster[@]}" up --replace --nodes 2
  trap 'touch "$pulls.end"; "${cluster[@]}" down' EXIT
  KUBECONFIG=$("${cluster[@]}" kubeconfig)
  export KUBECONFIG HOME=$REHEARSAL/home PATH=$REHEARSAL/home/bin:$PATH
  rm -rf "$HOME" "$pulls"*
  mkdir "$HOME"
  cd "$REHEARSAL/workstation"
  page dev/release.md '### Without internet' sh
  for section in '## 1. Carry' '## 2. Check' '## 3. Install' '## 4. Look'; do page guide/install.md "$section" sh; done

  step "upgrade to $next while nodes pull"
  image=$(zarf-registry images push probe.tar)
  : >"$pulls"
  for node in n1 n2; do
    while [ ! -e "$pulls.end" ]; do
      "${cluster[@]}" exec "$node" -- crictl pull "$image" >>"$pulls.log" 2>&1 && result=pulled || result=failed
      echo "$node $result" >>"$pulls"
    done &
  done
  version=$next
  cd "$REHEARSAL/workstation"
  page guide/upgrade.md '## 1. Prepare' sh
  page guide/install.md '## 1. Carry' sh
  for section in '## 2. Check' '## 3. Upgrade'; do page guide/upgrade.md "$section" sh; done
  touch "$pulls.end"
  wait
  step "$(sort "$pulls" | uniq -c | paste -sd,)"
  if grep failed "$pulls" >&2; then exit 1; fi
  [ "$(kubectl -n zarf logs -l app.kubernetes.io/component=proxy --tail=-1 | grep -c 'starting the next version')" = 2 ]
}

[ $# -gt 0 ] || set -- builds upgrades
for part in "$@"; do ("$part"); done
