#!/usr/bin/env bash
# Installs missing Debian packages for building and testing, with the argument bench also those for make bench-proxy and
# make bench-herd, and with clients those for make e2e. Fails without root or apt-get if packages are missing.
set -euo pipefail

# command=package
needs=(
  gcc=gcc                                   # loader, race detector, runc
  aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu # loader for arm64
  qemu-aarch64-static=qemu-user-static      # tests of the arm64 loader
  pkg-config=pkg-config                     # runc
  ip=iproute2 iptables=iptables nft=nftables conntrack=conntrack ipset=ipset # the test cluster's network
  ethtool=ethtool ebtables=ebtables nsenter=util-linux ss=iproute2 modprobe=kmod
  skopeo=skopeo                             # a client in tests and benchmarks
  yamllint=yamllint git=git                 # ct lint, tests
)
[ "${1-}" != clients ] || needs+=(dockerd=docker.io podman=podman buildah=buildah chromedriver=chromium-driver)
[ "${1-}" != bench ] || needs+=(socat=socat stunnel4=stunnel4 haproxy=haproxy nginx=nginx)
missing=()
for need in "${needs[@]}"; do
  command -v "${need%%=*}" >/dev/null || missing+=("${need#*=}")
done
[ -e /usr/include/seccomp.h ] || missing+=(libseccomp-dev) # runc
[ -e /usr/lib/x86_64-linux-gnu/libc.a ] || [ -e /usr/lib/aarch64-linux-gnu/libc.a ] || missing+=(libc6-dev)
[ "${1-}" != bench ] || [ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || missing+=(libnginx-mod-stream)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing packages: ${missing[*]}: install them, or run this script as root on Debian or Ubuntu" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
if [ -n "${1-}" ] && [ ! -e /usr/sbin/policy-rc.d ]; then # do not start services
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
