// Package kubelets simulates nodes for a real API server. Each has what a kubelet does, with client-go, a certificate
// and a connection of its own: a lease, reports, events, and watches of its pods, and of each ConfigMap and Secret that
// these mount. A simulated proxy reports what the API server has delivered. Nothing runs: pulls succeed, and there are
// no kube-proxies and network plugins.
package kubelets

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
)

const (
	// heartbeat and statusPeriod are kubelets' defaults: how often they renew their lease, and how often they report
	// their node although nothing has changed.
	heartbeat, statusPeriod = 10 * time.Second, 5 * time.Minute
	// startTime spreads the start of kubelets.
	startTime = 15 * time.Second
	// taint is that of simulated nodes, which proxies and verified pulls tolerate.
	taint = "bench/simulated"
)

// Kubelets are the kubelets of simulated nodes. The exported fields must be set, and not changed.
type Kubelets struct {
	// Dial connects to the API server at Server.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Server string
	// Address is that of all nodes. The API server must reach Listener there.
	Address  string
	Listener net.Listener
	// CA and Key sign the certificates of kubelets.
	CA  *x509.Certificate
	Key any
	// PauseImage is on each node.
	PauseImage corev1.ContainerImage
	// Transferred counts bytes, in both directions.
	Transferred atomic.Int64

	serving  sync.Map // pods by namespace/name
	mu       sync.Mutex
	requests map[string]int
	failures []error
}

// Requests returns how many requests were sent, such as "watch configmaps" and "PATCH pods/status". None is for leases.
func (ks *Kubelets) Requests() map[string]int {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	return maps.Clone(ks.requests)
}

// Failures returns what nodes could not do since the last call.
func (ks *Kubelets) Failures() (failures []error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	failures, ks.failures = ks.failures, nil
	return failures
}

// fail records an error, unless ctx has ended, or the object is gone.
func (ks *Kubelets) fail(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		ks.mu.Lock()
		defer ks.mu.Unlock()
		ks.failures = append(ks.failures, fmt.Errorf("%s: %w", what, err))
	}
}

// Kubelet is one of them.
type Kubelet struct {
	*Kubelets
	Name   string
	Stop   context.CancelFunc // switches the node off
	number int
	client kubernetes.Interface

	mu       sync.Mutex
	pods     map[types.UID]*pod
	images   []corev1.ContainerImage
	reported time.Time // when the node's status was; zero if it has changed since
}

// Start starts the kubelet of a node, which registers the node unless it exists.
func (ks *Kubelets) Start(ctx context.Context, number int) (*Kubelet, error) {
	k := &Kubelet{Kubelets: ks, number: number, Name: fmt.Sprintf("simulated-%04d", number),
		pods: map[types.UID]*pod{}, images: []corev1.ContainerImage{ks.PauseImage}}
	certificate, key, err := ks.issue(k.Name)
	if err != nil {
		return nil, err
	}
	config := &rest.Config{Host: "https://" + ks.Server, UserAgent: "kubelet", QPS: 50, Burst: 100, // kubelets' defaults
		ContentConfig:   rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
		TLSClientConfig: rest.TLSClientConfig{CertData: certificate, KeyData: key, CAData: encode(ks.CA.Raw)},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := ks.Dial(ctx, network, address)
			return Counted{c, &ks.Transferred}, err
		}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counter{next, ks} })
	if k.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	ctx, k.Stop = context.WithCancel(ctx)
	go k.run(ctx)
	return k, nil
}

// issue issues the certificate of a kubelet.
func (ks *Kubelets) issue(node string) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:   pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ks.CA, private.Public(), ks.Key)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	return encode(der), key, err
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Counted is a connection that counts bytes.
type Counted struct {
	net.Conn
	Bytes *atomic.Int64
}

func (c Counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.Bytes.Add(int64(n))
	return n, err
}

func (c Counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.Bytes.Add(int64(n))
	return n, err
}

// counter counts requests.
type counter struct {
	http.RoundTripper
	ks *Kubelets
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	verb := r.Method
	if r.URL.Query().Has("watch") {
		verb = "watch"
	}
	if name := RequestName(verb, r.URL.Path); !strings.HasSuffix(name, " leases") {
		c.ks.mu.Lock()
		if c.ks.requests == nil {
			c.ks.requests = map[string]int{}
		}
		c.ks.requests[name]++
		c.ks.mu.Unlock()
	}
	return c.RoundTripper.RoundTrip(r)
}

// RequestName names a request for a path by its verb and resource, or path.
func RequestName(verb, path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	version := 2 // in /api/v1/pods
	if parts[0] == "apis" {
		version = 3 // in /apis/apps/v1/daemonsets
	}
	parts = parts[min(len(parts), version):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	switch {
	case len(parts) == 0:
		return verb + " " + path
	case len(parts) > 2:
		return verb + " " + parts[0] + "/" + parts[2]
	}
	return verb + " " + parts[0]
}

// run is the kubelet's life.
func (k *Kubelet) run(ctx context.Context) {
	if program.Sleep(ctx, time.Duration(mathrand.Int64N(int64(startTime)))) != nil {
		return
	}
	_, err := k.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.Name, Labels: map[string]string{corev1.LabelHostname: k.Name,
			corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}},
		Status: k.status(),
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		k.fail(ctx, "registering a node", err)
	}
	core := k.client.CoreV1().RESTClient()
	k.follow(ctx, core, "pods", metav1.NamespaceAll, "spec.nodeName="+k.Name, &corev1.Pod{},
		func(o any, exists bool) { k.setPod(ctx, o, exists) })
	ignore := func(any, bool) {}
	k.follow(ctx, core, "nodes", "", "metadata.name="+k.Name, &corev1.Node{}, ignore)
	k.follow(ctx, core, "services", metav1.NamespaceAll, "", &corev1.Service{}, ignore)
	k.follow(ctx, k.client.StorageV1().RESTClient(), "csidrivers", "", "", &storagev1.CSIDriver{}, ignore)
	k.follow(ctx, k.client.NodeV1().RESTClient(), "runtimeclasses", "", "", &nodev1.RuntimeClass{}, ignore)
	leases, seconds := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), int32(40)
	lease, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.Name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &k.Name, LeaseDurationSeconds: &seconds}}, metav1.CreateOptions{})
	for ctx.Err() == nil {
		if err != nil {
			lease, err = leases.Get(ctx, k.Name, metav1.GetOptions{})
		}
		if err == nil {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		k.fail(ctx, "lease", err)
		k.reportNode(ctx)
		_ = program.Sleep(ctx, heartbeat)
	}
}

func (k *Kubelet) status() corev1.NodeStatus {
	s := corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: k.Address}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{
			KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(k.Listener.Addr().(*net.TCPAddr).Port)}},
		NodeInfo: corev1.NodeSystemInfo{MachineID: k.Name, SystemUUID: k.Name, BootID: k.Name, KernelVersion: "6.12.0",
			OSImage: "Debian GNU/Linux 13 (trixie)", ContainerRuntimeVersion: "containerd://2.1.4",
			KubeletVersion: "v1.36.3", OperatingSystem: "linux", Architecture: "amd64"},
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
			corev1.ResourceEphemeralStorage: resource.MustParse("100Gi")},
		Images: k.images,
	}
	s.Allocatable = s.Capacity
	for kind, is := range map[corev1.NodeConditionType]corev1.ConditionStatus{corev1.NodeReady: corev1.ConditionTrue,
		corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse,
		corev1.NodePIDPressure: corev1.ConditionFalse} {
		s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: kind, Status: is, LastHeartbeatTime: metav1.Now(),
			LastTransitionTime: metav1.Now(), Reason: "Simulated", Message: "simulated"})
	}
	return s
}

// reportNode patches the node's status if that is due.
func (k *Kubelet) reportNode(ctx context.Context) {
	k.mu.Lock()
	due, status := time.Since(k.reported) >= statusPeriod, k.status()
	if due {
		k.reported = time.Now()
	}
	k.mu.Unlock()
	if !due {
		return
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": status.Conditions,
		"images": status.Images}})
	if err == nil {
		_, err = k.client.CoreV1().Nodes().PatchStatus(ctx, k.Name, patch)
	}
	k.fail(ctx, "reporting a node", err)
}

// follow watches objects with client-go's reflector, as the kubelet does, until ctx ends. It calls set for
// each, and with nil if there is none.
func (k *Kubelet) follow(ctx context.Context, client cache.Getter, kind, namespace, selector string, o runtime.Object,
	set store) {
	watch := cache.NewListWatchFromClient(client, kind, namespace, fields.ParseSelectorOrDie(selector))
	go cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(watch, k.client), o, set,
		cache.ReflectorOptions{Name: kind}).RunWithContext(ctx)
}

type store func(o any, exists bool)

func (s store) Add(o any) error    { s(o, true); return nil }
func (s store) Update(o any) error { s(o, true); return nil }
func (s store) Delete(o any) error { s(o, false); return nil }
func (s store) Resync() error      { return nil }

func (s store) Replace(all []any, _ string) error {
	if len(all) == 0 {
		s(nil, false)
	}
	for _, o := range all {
		s(o, true)
	}
	return nil
}

// Transformer drops payload, because the memory here would not suffice for that of all nodes.
func (s store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if c, is := o.(*corev1.ConfigMap); is {
			maps.DeleteFunc(c.BinaryData, func(key string, _ []byte) bool { return key != injector.ManifestKey })
		}
		return o, nil
	}
}

// Serve serves the port of all kubelets, until ctx ends.
func (ks *Kubelets) Serve(ctx context.Context) error {
	certificate, key, err := cert.GenerateSelfSignedCertKey(ks.Address, nil, nil)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(ks.forward), ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
		// SPDY needs HTTP/1.1.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { ks.fail(ctx, "serving the port of kubelets", server.ServeTLS(ks.Listener, "", "")) }()
	return nil
}
