package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	etcd          = "etcd"
	scheduler     = "kube-scheduler"
	manager       = "kube-controller-manager"
	clusterDomain = "cluster.local"

	auditPolicyFile = "audit-policy.yaml" // in configDir
)

// startControlPlane starts etcd, the API server and its forwarder on the host, and waits until the
// API server is ready.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	for _, p := range []Process{c.etcd(), c.apiServer(), c.forwarder()} {
		if err := c.start(p); err != nil {
			return err
		}
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	return c.waitForAPI(ctx, client)
}

func (c *Cluster) waitForAPI(ctx context.Context, client kubernetes.Interface) error {
	return c.waitFor(ctx, apiServer, "/readyz", startTimeout, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// startControllers starts what requires a running API server.
func (c *Cluster) startControllers() error {
	for _, p := range []Process{c.controllerManager(), c.scheduler()} {
		if err := c.start(p); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) etcd() Process {
	return Process{ID: etcd, Args: []string{
		"etcd",
		"--data-dir=" + c.path(etcd),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // durability does not matter in a test cluster
	}}
}

func (c *Cluster) apiServer() Process {
	config := func(file string) string { return c.path(configDir, file) }
	family := c.Options.Family
	more := slices.Clone(c.Options.APIServerFlags)
	if c.Options.AuditPolicy != "" {
		more = append(more, "--audit-policy-file="+config(auditPolicyFile), "--audit-log-path="+c.path(logDir, "audit.log"))
	}
	return Process{ID: apiServer, Args: append([]string{
		apiServer,
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + family.ControlPlane()[0].String(),
		"--bind-address=" + family.unspecified(),
		"--secure-port=" + strconv.Itoa(apiPort),
		"--service-cluster-ip-range=" + join(family.Services()),
		"--tls-cert-file=" + config(apiServerCertFile),
		"--tls-private-key-file=" + config(apiServerKeyFile),
		"--client-ca-file=" + config(caCertFile),
		"--service-account-key-file=" + config(serviceAccountKey), // it includes the public one
		"--service-account-signing-key-file=" + config(serviceAccountKey),
		"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + config(kubeletClientCert),
		"--kubelet-client-key=" + config(kubeletClientKey),
		// Webhooks are dialed at their pods, because no kube-proxy serves the control plane.
		"--enable-aggregator-routing=true",
		// Node names are not in any DNS.
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged=true",
		"--v=1",
	}, more...)}
}

func (c *Cluster) controllerManager() Process {
	config := func(file string) string { return c.path(configDir, file) }
	return Process{ID: manager, Args: []string{
		manager,
		"--kubeconfig=" + config(kubeconfigOf(manager)),
		"--service-account-private-key-file=" + config(serviceAccountKey),
		"--root-ca-file=" + config(caCertFile),
		"--cluster-signing-cert-file=" + config(caCertFile),
		"--cluster-signing-key-file=" + config(caKeyFile),
		"--use-service-account-credentials=true",
		"--leader-elect=false",
		// The default of 20 requests a second slows the start down, and a claim stays half bound for so
		// long that a kubelet may see it and retry only after 15 s.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--allocate-node-cidrs=false", // the address plan assigns them
		"--flex-volume-plugin-dir=" + c.path(volumePluginDir),
		"--node-monitor-period=2s",
		"--node-monitor-grace-period=" + c.Options.NodeGrace.String(),
	}}
}

func (c *Cluster) scheduler() Process {
	return Process{ID: scheduler, Args: []string{
		scheduler,
		"--kubeconfig=" + c.path(configDir, kubeconfigOf(scheduler)),
		"--leader-elect=false",
	}}
}

// waitForControllers waits for what pods need from the controllers, which are slower than the API
// server.
func (c *Cluster) waitForControllers(ctx context.Context, client kubernetes.Interface) error {
	return c.waitFor(ctx, manager, "the default service account", startTimeout, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// startTimeout is long because clusters that boot at the same time share the cores: an API server has taken more than a
// minute. And kubelets see the cgroups of all nodes on this machine: one with CRI-O looks for each container of another
// CRI-O for 3 s before it registers its node.
const startTimeout = 4 * time.Minute

// waitForNode waits until a node is ready to run pods.
func (c *Cluster) waitForNode(ctx context.Context, client kubernetes.Interface, name string) error {
	return c.waitFor(ctx, processID(kubelet, name), "node "+name+" to be ready", startTimeout,
		func(ctx context.Context) error {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return nodeReady(node)
		})
}

func nodeReady(node *corev1.Node) error {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady {
			return fmt.Errorf("tainted %s", taint.Key)
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return errors.New(condition.Message)
		}
	}
	return errors.New("it has not reported yet")
}

// freePort returns a TCP port that is free on the host's 127.0.0.1.
func freePort() (int, error) {
	// Ports of outgoing connections begin at 32768: one of them could be taken before this one is used.
	const first, end = 10000, 32768
	var err error
	for range 100 {
		port := first + rand.IntN(end-first)
		var listener net.Listener
		if listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("looking for a free port: %w", err)
}

// installPrograms copies programs to the cluster's directory, unless it has them.
func (c *Cluster) installPrograms(programs map[string]string) error {
	for name, path := range programs {
		target := c.path(binDir, name)
		if _, err := os.Stat(target); err == nil {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), linkOrCopy(path, target)); err != nil {
			return fmt.Errorf("installing %s: %w", name, err)
		}
	}
	return nil
}

// installSelf copies this program to the cluster's directory.
func (c *Cluster) installSelf() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := copyFile(self, c.self()); err != nil {
		return fmt.Errorf("installing this program: %w", err)
	}
	return nil
}
