package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	tablePrepare = "prepare, by nodes in the cluster"
	// imagesOnNode is the maximum number of images that a kubelet reports (nodeStatusMaxImages).
	imagesOnNode = 50
	pauseImage   = "registry.k8s.io/pause:3.10.1"
)

// The decision of the chart about the nodes' pause images.
var (
	pauseRules  = nodeimages.Rules{References: []string{pauseImage}, Digest: "^$", Name: "^$", Own: "^$"}
	pauseChoice = settings.PauseImage{Source: state.SourceState,
		PauseImage: state.PauseImage{Reference: pauseImage, Reason: state.PauseName}}
	pauseImages = map[string]settings.PauseImage{"amd64": pauseChoice, "arm64": pauseChoice}
)

// cluster is an API server with nodes. It stores the objects that clients write; no controllers run. It
// supports pages of nodes, watches of them, protobuf, and label selectors.
type cluster struct {
	nodes *corev1.NodeList

	requests, sent atomic.Int64 // bytes of response bodies

	mu      sync.Mutex
	objects map[string]runtime.Object // by path
	version int
	pages   map[string][]byte // encoded pages of nodes

	watched chan struct{} // closed when a watch has sent all nodes
}

// lists are the list types of the resources that prepare reads.
var lists = map[string]runtime.Object{
	"nodes": &corev1.NodeList{}, "pods": &corev1.PodList{}, "services": &corev1.ServiceList{},
	"secrets":    &corev1.SecretList{},
	"configmaps": &corev1.ConfigMapList{}, "events": &corev1.EventList{},
}

func newCluster(nodes int) *cluster {
	c := &cluster{nodes: &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}},
		objects: map[string]runtime.Object{}, pages: map[string][]byte{},
		watched: make(chan struct{})}
	for n := range nodes {
		c.nodes.Items = append(c.nodes.Items, makeNode(n))
	}
	return c
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.requests.Add(1)
	if r.URL.Query().Get("watch") != "" {
		c.watch(w, r)
		return
	}
	format := runtime.ContentTypeJSON
	if strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		format = runtime.ContentTypeProtobuf
	}
	body, code, err := c.handle(r, format)
	if err != nil {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			status = apierrors.NewInternalError(err)
		}
		s := status.Status()
		code = int(s.Code)
		body, err = encode(&s, format)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.sent.Add(int64(len(body)))
	w.Header().Set("Content-Type", format)
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may be gone
}

func (c *cluster) handle(r *http.Request, format string) ([]byte, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resource, query := path.Base(r.URL.Path), r.URL.Query()
	switch {
	case r.URL.Path == "/api/v1/nodes":
		page, err := c.page(query.Get("continue"), query.Get("limit"), format)
		return page, http.StatusOK, err
	case r.Method == http.MethodGet && lists[resource] != nil:
		list, err := c.list(resource, r.URL.Path, query.Get("labelSelector"))
		return encoded(list, http.StatusOK, format, err)
	case r.Method == http.MethodGet:
		found := c.objects[r.URL.Path]
		if found == nil {
			return nil, 0, apierrors.NewNotFound(schema.GroupResource{Resource: path.Base(path.Dir(r.URL.Path))}, resource)
		}
		return encoded(found, http.StatusOK, format, nil)
	case r.Method == http.MethodPost || r.Method == http.MethodPut:
		object, err := c.write(r)
		return encoded(object, http.StatusCreated, format, err)
	case r.Method == http.MethodDelete:
		delete(c.objects, r.URL.Path)
		return encoded(&metav1.Status{Status: metav1.StatusSuccess}, http.StatusOK, format, nil)
	}
	return nil, 0, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: resource}, r.Method)
}

func encoded(object runtime.Object, code int, format string, err error) ([]byte, int, error) {
	if err != nil {
		return nil, 0, err
	}
	raw, err := encode(object, format)
	return raw, code, err
}

func encode(object runtime.Object, format string) ([]byte, error) {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), format)
	var raw bytes.Buffer
	// Objects keep their versions.
	err := scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersions(
		scheme.Scheme.PrioritizedVersionsAllGroups())).Encode(object, &raw)
	return raw.Bytes(), err
}

// page returns an encoded page of nodes.
func (c *cluster) page(from, limit, format string) ([]byte, error) {
	key := from + " " + limit + " " + format
	if page := c.pages[key]; page != nil {
		return page, nil
	}
	first, _ := strconv.Atoi(from) // 0 for the first page
	last := len(c.nodes.Items)
	page := &corev1.NodeList{ListMeta: c.nodes.ListMeta}
	if size, _ := strconv.Atoi(limit); size > 0 && first+size < last {
		last = first + size
		page.Continue = strconv.Itoa(last)
	}
	page.Items = c.nodes.Items[first:last]
	raw, err := encode(page, format)
	c.pages[key] = raw
	return raw, err
}

func (c *cluster) list(resource, collection, selector string) (runtime.Object, error) {
	wanted, err := labels.Parse(selector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var items []runtime.Object
	for at, object := range c.objects {
		named, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		if path.Dir(at) == collection && wanted.Matches(labels.Set(named.GetLabels())) {
			items = append(items, object)
		}
	}
	list := lists[resource].DeepCopyObject()
	return list, meta.SetList(list, items)
}

// write stores an object, unless it is a dry run.
func (c *cluster) write(r *http.Request) (runtime.Object, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	named, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	at := r.URL.Path
	if r.Method == http.MethodPost {
		at += "/" + named.GetName()
		if c.objects[at] != nil {
			return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: path.Base(r.URL.Path)}, named.GetName())
		}
	}
	c.version++
	named.SetResourceVersion(strconv.Itoa(c.version))
	if r.URL.Query().Get("dryRun") == "" {
		c.objects[at] = object
	}
	return object, nil
}

// makeNode returns a node like those of managed clusters, with the images that a kubelet reports, and
// with the labels, annotations and managed fields that cloud controllers and plugins add.
func makeNode(n int) corev1.Node {
	name := fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", n>>16, n>>8&255, n&255)
	zone := "eu-central-1" + string("abc"[n%3])
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "6ef5c7a4-9d3c-4b57-8c1a-2f7d4be0f0a1", ResourceVersion: strconv.Itoa(1000 + n),
			CreationTimestamp: metav1.NewTime(time.Unix(1.7e9, 0)),
			Labels: map[string]string{
				"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/instance-type": "m6i.2xlarge",
				"beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
				"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m6i.2xlarge",
				"topology.kubernetes.io/region": "eu-central-1", "topology.kubernetes.io/zone": zone,
				"topology.ebs.csi.aws.com/zone": zone, "example.com/pool": "default",
			},
			Annotations: map[string]string{
				"csi.volume.kubernetes.io/nodeid":                        `{"ebs.csi.aws.com":"i-0123456789abcdef0"}`,
				"node.alpha.kubernetes.io/ttl":                           "300",
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				"alpha.kubernetes.io/provided-node-ip":                   "10.0.0.1",
			},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24"},
			ProviderID: "aws:///" + zone + "/i-0123456789abcdef0"},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"),
				"pods": resource.MustParse("58"), "ephemeral-storage": resource.MustParse("100Gi"),
				"hugepages-2Mi": resource.MustParse("0")},
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("7910m"), "memory": resource.MustParse("31Gi"),
				"pods": resource.MustParse("58"), "ephemeral-storage": resource.MustParse("90Gi"),
				"hugepages-2Mi": resource.MustParse("0")},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
				{Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{MachineID: "ec2a7d0f1f5b4b8d9b7e0c0f4a2b6c1d",
				SystemUUID: "ec2a7d0f-1f5b-4b8d-9b7e-0c0f4a2b6c1d", BootID: "0c9a4a52-6d0e-4a2f-9f4e-3b8e0c5b9f11",
				KernelVersion: "6.12.30", OSImage: "Amazon Linux 2023", ContainerRuntimeVersion: "containerd://2.1.4",
				KubeletVersion: "v1.36.0", OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure, corev1.NodeReady} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status,
			LastHeartbeatTime:  metav1.NewTime(time.Unix(1.7e9, 0)),
			LastTransitionTime: metav1.NewTime(time.Unix(1.7e9, 0)), Reason: "KubeletHas" + string(kind),
			Message: "kubelet reports " + string(kind) + " as it is"})
	}
	for i := range imagesOnNode - 1 {
		repository := fmt.Sprintf("602401143452.dkr.ecr.eu-central-1.amazonaws.com/team-%d/service-%d", i%7, i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: int64(1e8 - 1e6*i),
			Names: []string{repository + "@sha256:" + strings.Repeat("0123456789abcdef", 4),
				fmt.Sprintf("%s:v1.%d.%d", repository, i, n%5)}})
	}
	node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{pauseImage}, SizeBytes: 3e5})
	for i, manager := range []string{"kubelet", "cloud-controller-manager", "kube-controller-manager", "cni", "csi"} {
		fields := `{"f:metadata":{"f:annotations":{".":{},"f:volumes.kubernetes.io/controller-managed-attach-detach":{}},` +
			`"f:labels":{".":{}` +
			strings.Repeat(`,"f:topology.kubernetes.io/zone":{}`, 12) + `}}}`
		node.ManagedFields = append(node.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager,
			Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
			Time: &metav1.Time{Time: time.Unix(1.7e9+int64(i), 0)}, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fields)})
	}
	return node
}

// nodeBytes returns the size of a node as JSON.
func nodeBytes() int {
	node := makeNode(4711)
	raw, err := encode(&node, runtime.ContentTypeJSON)
	if err != nil {
		panic(err) // cannot fail for makeNode
	}
	return len(raw)
}

// prepare measures init-hook prepare in a cluster.
func (b *benchmark) prepare(ctx context.Context, nodes int) error {
	c := newCluster(nodes)
	server := httptest.NewServer(c)
	defer server.Close()
	kubeconfig := filepath.Join(b.dir, "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: "+
		"a, context: {cluster: a}}]\ncurrent-context: a\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		return err
	}
	// Fill the cache of pages, so that the measurement does not include encoding them.
	if err := c.warm(ctx, server.URL); err != nil {
		return err
	}
	var output bytes.Buffer
	document, err := json.Marshal(settings.Settings{
		Namespace: names.Namespace, Release: names.Chart, Name: names.Chart,
		Mode: state.ModeProxy, ModeSource: state.SourceValue, Address: "127.0.0.1:31999", Port: 31999,
		IPFamily: state.IPv4, IPFamilySource: state.SourceDefault, Architectures: []string{"amd64", "arm64"},
		Injector: settings.Injector{
			Enabled: true, PayloadID: "bench", PauseImages: pauseImages, PauseRules: pauseRules,
		},
		PKI: settings.PKI{Source: state.SourceValue, PKI: state.PKI{
			Mode: state.PKIInternal, LeafLifetime: state.Duration(pki.DefaultLeafLifetime),
			CALifetime: state.Duration(pki.DefaultCALifetime), ClusterDomain: "cluster.local",
		}},
		Push: settings.Push{Images: true},
	})
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, b.hook, "prepare", "--kubeconfig="+kubeconfig, "--settings="+string(document),
		"--log-format=text")
	command.Stdout, command.Stderr = &output, &output
	began := time.Now()
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	memory := make(chan int64, 1)
	go func() { memory <- processes.WatchPeak(command.Process.Pid, ended) }()
	err = command.Wait()
	took := time.Since(began)
	close(ended)
	peak := <-memory
	if err != nil {
		return fmt.Errorf("%w: %s", err, &output)
	}
	if found := fmt.Sprintf("found %d nodes", nodes); !strings.Contains(output.String(), found) {
		return fmt.Errorf("the output of prepare lacks %q: %s", found, &output)
	}
	add := func(what, unit string, value float64) {
		b.report.Add(tablePrepare, clusterName(nodes), what, unit, value)
	}
	add("took", "s", took.Seconds())
	add("CPU", "s", (command.ProcessState.UserTime() + command.ProcessState.SystemTime()).Seconds())
	add("memory", "MB", float64(peak)/1e6)
	add("requests", "", float64(c.requests.Load()))
	add("read", "MB", float64(c.sent.Load())/1e6)
	return nil
}

// warm reads all pages of nodes and resets the counters.
func (c *cluster) warm(ctx context.Context, url string) error {
	for from := 0; from < len(c.nodes.Items); from += 500 {
		address := fmt.Sprintf("%s/api/v1/nodes?limit=500", url)
		if from > 0 {
			address += fmt.Sprintf("&continue=%d", from)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Accept", runtime.ContentTypeProtobuf)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil {
			return err
		}
	}
	c.requests.Store(0)
	c.sent.Store(0)
	return nil
}
