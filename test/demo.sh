#!/usr/bin/env bash
# The whole story on a real cluster, each step in words as it happens: nodes that
# hold only the pause image, an installation, a push, a pod on the other node.
# Run it with `make demo`. It boots a cluster, gives one node the init-hook image
# and runs helm install. With KUBECONFIG set it uses that cluster, on which
# zarf-registry install needs no image.
set -euo pipefail
cd "$(dirname "$0")/.."

testcluster=bin/testcluster
name=zarf-registry-demo
namespace=zarf
address=127.0.0.1:31999
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() { printf '\n\033[1m==> %s\033[0m\n' "$*"; }
show() { printf '    $ %s\n' "$*"; "$@" 2>&1 | sed 's/^/    /'; }
on_node() { local node=$1; shift; "$testcluster" exec --name "$name" "$node" -- "$@"; }

kubectl=$(command -v kubectl || "$testcluster" tool kubectl)
PATH=$(dirname "$kubectl"):$PWD/bin:$PATH

if [ -z "${KUBECONFIG:-}" ]; then
  own=yes
  step "Boot a Kubernetes cluster of two nodes on this machine (real API server, kubelets, containerd)"
  # Nothing here needs DNS or NetworkPolicies: without them, there is less to build.
  "$testcluster" up --name "$name" --nodes 2 --replace --dns=false --network-policy=false --crictl=false 2>&1 | sed 's/^/    /'
  export KUBECONFIG
  KUBECONFIG=$("$testcluster" kubeconfig --name "$name")
  step "One node gets the init-hook image; this is the only image that anybody brings"
  show "$testcluster" load --name "$name" --nodes n1 --wait dist/images/init-hook.tar
  step "What the nodes hold before"
  for node in n1 n2; do echo "    $node:"; on_node "$node" ctr images list -q | grep -v ^sha256 | sed 's/^/      /'; done
else
  own=
  step "Using the cluster of KUBECONFIG=$KUBECONFIG"
  kubectl get nodes >/dev/null || { echo "the cluster does not answer; unset KUBECONFIG to boot one" >&2; exit 1; }
fi
mapfile -t nodes < <(kubectl get nodes -o name | cut -d/ -f2)
other=${nodes[-1]}
show kubectl get nodes -o wide

begin=$(date +%s.%N)
if [ -n "$own" ]; then
  step "Install the chart: the command from the README"
  show helm install zarf-registry charts/zarf-registry -n "$namespace" --create-namespace --set registryProxy=true
else
  step "Install from this machine, which needs only the kubeconfig"
  show zarf-registry install --registry-proxy
fi
printf '    (%.1f s, including a verified pull on every node)\n' "$(echo "$(date +%s.%N) $begin" | awk '{print $1-$2}')"

step "What runs now: the registry on one node, a proxy on each"
show kubectl -n "$namespace" get pods -o wide

step "Make an image that exists nowhere else, and push it"
go build -trimpath -ldflags '-s -w' -o "$work/tool" ./test/e2e/tool
go run ./tools/archive --reference example.com/demo/hello:1 --output "$work/hello.tar" "$work/tool"
show zarf-registry images push "$work/hello.tar"

step "Run it on node $other, whose image comes through that node's own loopback address"
kubectl delete pod hello --ignore-not-found >/dev/null
show kubectl run hello --image="$address/demo/hello:1" --image-pull-policy=Always --overrides='{"spec":{"nodeName":"'"$other"'"}}'
kubectl wait --for=condition=Ready pod/hello --timeout=60s >/dev/null
show kubectl get pod hello -o wide
show kubectl logs hello
echo "    where the image came from:"
kubectl get events --field-selector involvedObject.name=hello,reason=Pulled -o custom-columns=NODE:.source.host,MESSAGE:.message | sed 's/^/    /'

if [ -n "$own" ]; then
  step "What the nodes hold after"
  for node in n1 n2; do echo "    $node:"; on_node "$node" ctr images list -q | grep -v ^sha256 | sed 's/^/      /'; done
fi

step "It works. To look around, and to clean up:"
if [ -n "$own" ]; then
  cat <<EOF
    export KUBECONFIG=$KUBECONFIG PATH=$(dirname "$kubectl"):\$PATH
    kubectl -n $namespace get all
    $testcluster down --name $name
EOF
else
  cat <<EOF
    kubectl -n $namespace get all
    kubectl delete pod hello; bin/zarf-registry uninstall
    kubectl -n $namespace delete persistentvolumeclaim zarf-registry   # the images
EOF
fi
