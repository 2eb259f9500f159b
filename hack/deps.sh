#!/usr/bin/env bash
# Installs the Debian packages that building and testing need. Does nothing when
# they are there; without root or apt it names what is missing and fails.
set -euo pipefail

# command=package
needs=(
  gcc=gcc                                   # loader, race detector, runc
  aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu # loader for arm64
  qemu-aarch64-static=qemu-user-static      # to test it
  pkg-config=pkg-config                     # runc
  ip=iproute2 iptables=iptables nft=nftables conntrack=conntrack ipset=ipset # the test cluster's network
  ethtool=ethtool ebtables=ebtables nsenter=util-linux ss=iproute2
  skopeo=skopeo                             # a client that insists on TLS it trusts
  yamllint=yamllint git=git                 # ct lint
)
missing=()
for need in "${needs[@]}"; do
  command -v "${need%%=*}" >/dev/null || missing+=("${need#*=}")
done
[ -e /usr/include/seccomp.h ] || missing+=(libseccomp-dev) # runc
[ -e /usr/lib/x86_64-linux-gnu/libc.a ] || [ -e /usr/lib/aarch64-linux-gnu/libc.a ] || missing+=(libc6-dev)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing packages: ${missing[*]}; install them, or run this as root on Debian or Ubuntu" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
