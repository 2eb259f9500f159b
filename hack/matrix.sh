#!/usr/bin/env bash
# Runs TestCell on the configurations below whose line matches a regular expression, one after another, and writes
# the rows of docs/dev/compatibility.md to dist/matrix/rows.md, and logs beside it: hack/matrix.sh 'k1.36.*crio'
# Every pair of Kubernetes and runtime is a cell; networks, CNI plugins, taints, mixed nodes, versions of Helm and
# storage are spread over those cells. Then it runs TestKubeadm, whose rows are in dist/matrix/kubeadm.md.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p dist/matrix
sources=$(git ls-files -s charts cmd internal loader test go.mod go.sum | sha256sum | cut -c1-12)
failed=''

# passes NAME TEST runs a test, and otherwise sets step to the one that failed, or to nothing if it did not run.
passes() {
  log=dist/matrix/$1.log
  echo "$1"
  go test ./test/e2e -run "^$2\$" -count=1 -timeout 60m -v >"$log" 2>&1 </dev/null && grep -q "^--- PASS: $2 " "$log" &&
    return
  failed+=" $1"
  step=$(sed -n "s/^    --- FAIL: $2\/\(\S*\).*/\1/p" "$log" | tr '_\n' ' ')
  return 1
}

# Kubernetes, runtime, network, Helm, storage, and the rest of the arguments of testcluster up.
while read -r version runtime network helm storage more; do
  name=$(tr '[:upper:]/ ' '[:lower:]--' <<<"k$version $runtime $network $helm $storage${more:+ $more}" |
    sed 's/--cni-//; s/--runtime-n2=/n2-/; s/--taint.*/tainted/; s/-helm-standard/-standard/')
  grep -qE -- "${1:-.}" <<<"$name" || continue
  up="\"--kubernetes\", \"$version\", \"--runtime\", \"$runtime\""
  for argument in $more; do up+=", \"$argument\""; done
  E2E_CELL="{\"Cluster\": \"cell\", \"Network\": \"$network\", \"Up\": [$up], \"Helm\": \"$helm\","
  E2E_CELL+=" \"Storage\": \"$storage\"}"
  export E2E_CELL
  if [[ $network = */ipvs && ! -e /proc/net/ip_vs ]]; then
    row='reasoned: the kernel of the test machine has no IPVS (/proc/net/ip_vs)'
  elif passes "$name" TestCell; then
    row='tested'
    [[ "$runtime $more" != *crio-1.35* ]] || row='simulated' # CRI-O 1.34 that demands TLS as 1.35 does
  else
    [ -n "$step" ] || continue
    row="known broken: \"${step% }\" failed"
  fi
  echo "|$name|$row|$sources|" | tee -a dist/matrix/rows.md
done <<'CELLS'
1.30 containerd-1.7 IPv4/iptables      helm      standard --cni flannel
1.30 containerd-2.1 DualStack/iptables helm-3.18 standard --runtime n2=containerd-2.4
1.30 containerd-2.4 IPv4/iptables      helm-3.21 local    --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.30 crio-1.34      DualStack/iptables helm4     s3
1.30 crio-1.35      IPv4/iptables      helm      standard --runtime n2=containerd-1.7
1.31 containerd-1.7 IPv6/iptables      helm-3.21 attached --runtime n2=containerd-2.1
1.31 containerd-2.1 IPv4/nftables      helm4     local    --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.31 containerd-2.4 IPv6/nftables      helm      standard
1.31 crio-1.34      DualStack/nftables helm-3.18 standard --runtime n2=crio-1.35
1.31 crio-1.35      IPv4/nftables      helm-3.21 attached --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.34 containerd-1.7 IPv6/iptables      helm      local    --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.34 containerd-2.1 IPv6/nftables      helm-3.18 standard
1.34 containerd-2.4 DualStack/nftables helm-3.21 standard --runtime n2=crio-1.34
1.34 crio-1.34      DualStack/iptables helm4     attached --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.34 crio-1.35      IPv4/nftables      helm      local    --cni flannel
1.36 containerd-1.7 IPv6/iptables      helm-3.21 standard
1.36 containerd-2.1 IPv6/nftables      helm4     standard --runtime n2=containerd-2.4
1.36 containerd-2.4 DualStack/nftables helm      attached --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.36 crio-1.34      IPv4/iptables      helm-3.18 local    --cni flannel
1.36 crio-1.35      DualStack/iptables helm-3.21 s3       --runtime n2=containerd-1.7
1.37 containerd-1.7 IPv6/iptables      helm      standard --runtime n2=containerd-2.1
1.37 containerd-2.1 IPv4/nftables      helm-3.18 attached --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.37 containerd-2.4 IPv6/nftables      helm-3.21 local
1.37 crio-1.34      DualStack/nftables helm4     s3       --runtime n2=crio-1.35
1.37 crio-1.35      IPv4/iptables      helm      standard --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
1.36 crio-1.34      IPv6/nftables      helm      standard
1.36 containerd-2.4 IPv4/ipvs          helm      standard
1.36 containerd-2.4 IPv6/ipvs          helm      standard
1.36 containerd-2.4 DualStack/ipvs     helm      standard
CELLS
for network in IPv4/iptables DualStack/nftables; do
  name=kubeadm-$(tr '[:upper:]/' '[:lower:]-' <<<"$network")
  grep -qE -- "${1:-.}" <<<"$name" || continue
  result=run
  if ! E2E_NETWORK=$network passes "$name" TestKubeadm; then
    [ -n "$step" ] || continue
    result="\"${step% }\" failed"
  fi
  # Before the upgrade, and after it.
  versions=$(sed -n 's/.*versions: n1: kubelet v\([^,]*\), containerd:..v*\([^,]*\),.*/Kubernetes \1, containerd \2/p' "$log" |
    paste -sd'|' | sed 's/|/, then /')
  echo "|$network|$result|$(date -u +%F)|$versions|$sources|" | tee -a dist/matrix/kubeadm.md
done
[ -z "$failed" ] || { echo "failed:$failed; logs are in dist/matrix" >&2; exit 1; }
