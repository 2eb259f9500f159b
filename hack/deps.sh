#!/usr/bin/env bash
# Installs missing Debian packages of the named groups:
#   build     compiler of the loader
#   cross     compiler of the loader for the other architecture
#   race      compiler for the race detector
#   cluster   the test cluster
#   lint      ct lint
#   disks     file systems of the consistency checker
#   emulate   programs for arm64 on amd64
#   e2e       a strict client of the core scenarios
#   clients   container clients of the end-to-end tests
#   rehearse  tools of hack/rehearse.sh
#   bench     proxies that benchmarks compare
# Fails without root or apt-get if packages are missing.
set -euo pipefail

declare -A groups=( # command=package
  [build]="gcc=gcc"
  [cross]="aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu"
  [race]="gcc=gcc /usr/include/stdlib.h=libc6-dev"
  [cluster]="gcc=gcc /usr/include/stdlib.h=libc6-dev pkg-config=pkg-config /usr/include/seccomp.h=libseccomp-dev ip=iproute2
    iptables=iptables nft=nftables /etc/protocols=netbase conntrack=conntrack ipset=ipset ethtool=ethtool ebtables=ebtables
    nsenter=util-linux modprobe=kmod"
  [lint]="yamllint=yamllint git=git"
  [disks]="mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs"
  [emulate]="qemu-aarch64-static=qemu-user-static"
  [e2e]="skopeo=skopeo"
  [clients]="skopeo=skopeo dockerd=docker.io podman=podman buildah=buildah chromedriver=chromium-driver"
  [rehearse]="git=git ip=iproute2 jq=jq ssh-keygen=openssh-client unshare=util-linux"
  [bench]="skopeo=skopeo socat=socat haproxy=haproxy nginx=nginx
    /usr/lib/nginx/modules/ngx_stream_module.so=libnginx-mod-stream"
)
if [ "$(uname -m)" = aarch64 ]; then
  groups[cross]="x86_64-linux-gnu-gcc=gcc-x86-64-linux-gnu"
fi

[ $# -gt 0 ] || { echo "name groups: ${!groups[*]}" >&2; exit 2; }
missing=()
for group in "$@"; do
  [ -n "${groups[$group]-}" ] || { echo "unknown group $group: want one of ${!groups[*]}" >&2; exit 2; }
  for need in ${groups[$group]}; do
    command=${need%%=*}
    case $command in
      /*) [ -e "$command" ] || missing+=("${need#*=}") ;;
      *) command -v "$command" >/dev/null || missing+=("${need#*=}") ;;
    esac
  done
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing packages: ${missing[*]}: install them, or run this script as root on Debian or Ubuntu" >&2
  exit 1
fi
# Targets of one make, and shards, may install at the same time.
exec 9>/var/lock/zarf-registry-deps
flock 9
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then # do not start services
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
fi
apt-get update -qq
# Since Debian 13, docker's command line has a package of its own.
if [[ " ${missing[*]} " == *" docker.io "* ]] && apt-cache show docker-cli >/dev/null 2>&1; then
  missing+=(docker-cli)
fi
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
