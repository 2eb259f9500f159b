package main

import "github.com/zarf-dev/zarf-registry/bench/internal/results"

// ours is the subject of tables with one row.
const ours = "zarf-registry"

const how = "Each run boots a Kubernetes cluster of two nodes on this machine with test/cluster: API server, etcd, " +
	"kubelets, containerd, kube-proxy and CNI, all on the same cores. The nodes hold only the pause image; one of them " +
	"also has init-hook's image. The run installs the chart with `helm install` in proxy mode; `auth.anonymousPull` is " +
	"set so that pulls work the same in both modes. The pull loops pull an image of 3 MB over new connections every " +
	"50 ms, without retries."

// subjects are the rows of the tables.
func subjects() []results.Subject {
	list := []results.Subject{{Name: ours, About: "helm install --set registryProxy=true"}}
	for _, p := range phases {
		list = append(list, results.Subject{Name: p.name, About: p.about})
	}
	return append(list,
		results.Subject{Name: rolloutHostPort,
			About: "a node cannot run two pods with the same host port, so each node briefly accepts no connections"},
		results.Subject{Name: rolloutHostNetwork, About: "the new proxy listens before the previous one stops"},
		results.Subject{Name: registryDeleted, About: "the proxies queue pulls until the new pod is ready"},
		results.Subject{Name: toNodePort, About: "helm upgrade, including the verified pull on each node"},
		results.Subject{Name: toProxy, About: "the same"},
	)
}
