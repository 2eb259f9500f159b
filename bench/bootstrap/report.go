package main

import "github.com/zarf-dev/zarf-registry/bench/internal/results"

// ours is the subject of tables with one row.
const ours = "zarf-registry"

const how = "Each run boots a Kubernetes cluster of two nodes on this machine (test/cluster: real API server, etcd, " +
	"kubelets, containerd, kube-proxy, CNI), whose nodes hold the pause image and, on one of them, init-hook's, " +
	"and runs `helm install` of the chart in proxy mode, which needs nothing else (`auth.anonymousPull` is set as " +
	"well, so that pulls are the same in both modes). All of it shares the cores. The loops of pulls take an image of " +
	"3 MB over new connections, 50 ms after each other, without retrying."

// subjects are the rows of the tables.
func subjects() []results.Subject {
	list := []results.Subject{{Name: ours, About: "helm install --set registryProxy=true"}}
	for _, p := range phases {
		list = append(list, results.Subject{Name: p.name, About: p.about})
	}
	return append(list,
		results.Subject{Name: rolloutHostPort,
			About: "a DaemonSet's pods cannot be there twice: one node after the other is without for a moment, in which " +
				"nothing accepts connections"},
		results.Subject{Name: rolloutHostNetwork, About: "the new one listens beside the previous one"},
		results.Subject{Name: registryDeleted, About: "the proxies hold pulls back until there is another"},
		results.Subject{Name: toNodePort, About: "helm upgrade, the proof on each node included"},
		results.Subject{Name: toProxy, About: "the same"},
	)
}
