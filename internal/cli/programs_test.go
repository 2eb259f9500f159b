package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/embedded"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/kube"
	"github.com/zarf-dev/zarf-registry/internal/settings"
	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

func TestTheProbeHasANameForEachWay(t *testing.T) {
	if _, err := embedded.Load("probe", "amd64"); err != nil {
		t.Skip(err)
	}
	r := &hookRegistry{log: slog.New(slog.DiscardHandler), missing: "of a test"}
	list, err := r.images()
	if err != nil {
		t.Fatal(err)
	}
	digests := map[string]string{}
	for _, image := range list {
		digests[strings.TrimPrefix(image.Reference, "docker.io/")] = image.Descriptor.Digest.String()
	}
	proxy, nodePort := r.ProbeImage(state.ModeProxy), r.ProbeImage(state.ModeNodePort)
	if proxy != "zarf-registry/probe-proxy:"+version.Version || nodePort != "zarf-registry/probe-nodeport:"+version.Version {
		t.Errorf("the probes are %s and %s", proxy, nodePort)
	}
	if len(digests) != 4 || digests[proxy] == "" || digests[proxy] != digests[nodePort] || r.HookImage() != nil {
		t.Errorf("the images are %v", digests)
	}

	r.own = &state.HookImage{Reference: "zarf-registry/init-hook:" + version.Version, Architecture: runtime.GOARCH}
	if list, err = r.images(); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(i images.Item) bool { return i.Reference == "docker.io/"+r.own.Reference }) {
		t.Error("init-hook's own image is not called what the state says")
	}
}

func TestOwnImageIsForNodesThatCanRunIt(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("files of Linux")
	}
	// The loader is linked statically, as init-hook is.
	loader, err := embedded.Loader("amd64")
	if err != nil {
		t.Skip(err)
	}
	static := filepath.Join(t.TempDir(), "static")
	if err := os.WriteFile(static, loader, 0o600); err != nil {
		t.Fatal(err)
	}
	if why := unfit(static, []string{"sparc64", runtime.GOARCH}); why != "" {
		t.Error(why)
	}
	if why := unfit(static, []string{"sparc64"}); !strings.Contains(why, "no node runs") {
		t.Errorf("on a cluster of another architecture: %q", why)
	}
	if why := unfit("/etc/hostname", []string{runtime.GOARCH}); !strings.Contains(why, "cannot be read") {
		t.Errorf("a file that is no program: %q", why)
	}
	// Nearly everywhere; busybox is linked statically.
	if why := unfit("/bin/sh", []string{runtime.GOARCH}); !strings.Contains(why, "linked dynamically") {
		t.Logf("/bin/sh: %q", why)
	}
}

func TestAWorkstationThatPushesAsksForTheNodes(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.NodeInfo.Architecture = "sparc64"
	r, err := newHookRegistry(t.Context(), settings.Settings{Namespace: "zarf", Push: settings.Push{Images: true}}, connection{client: fake.NewClientset(node), config: &rest.Config{}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, tunnel := r.way.(*registryTunnel); !tunnel || r.HookImage() != nil || r.missing == "" {
		t.Errorf("its way is a %T, its image %v, for %q", r.way, r.HookImage(), r.missing)
	}
}

func TestTheWayDependsOnWhereTheProcessRuns(t *testing.T) {
	for name, c := range map[string]struct {
		service, kubeconfig string
		access              kube.Access
		want                bool
	}{
		"a pod":                           {service: "10.0.0.1", want: true},
		"a workstation":                   {},
		"a pod for another cluster":       {service: "10.0.0.1", access: kube.Access{Kubeconfig: "x"}},
		"a pod with KUBECONFIG":           {service: "10.0.0.1", kubeconfig: "x"},
		"a pod with a kubeconfig context": {service: "10.0.0.1", access: kube.Access{Context: "x"}},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", c.service)
		t.Setenv("KUBECONFIG", c.kubeconfig)
		if got := inPod(c.access); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestAPodSeesWhetherThePlainPortIsOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs all of 127.0.0.0/8")
	}
	// An address that nobody else uses: the port is always the same.
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: "127.83.5.1"}}
	r := &hookRegistry{way: &podWay{}, log: slog.New(slog.DiscardHandler)}
	if open, err := r.PlainOpen(t.Context(), pod); open || err != nil {
		t.Errorf("nobody listens: %t, %v", open, err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(hook.PlainPort)))
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	if open, err := r.PlainOpen(t.Context(), pod); !open || err != nil {
		t.Errorf("somebody listens: %t, %v", open, err)
	}
	if open, err := r.PlainOpen(t.Context(), &corev1.Pod{}); open || err == nil {
		t.Errorf("a pod without an address: %t, %v", open, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if open, err := r.PlainOpen(ctx, pod); open || err == nil {
		t.Errorf("nothing can be found out: %t, %v", open, err)
	}
}

// failing is a tunnel whose first Read fails.
type failing struct {
	net.Conn
	err error
}

func (f failing) Read([]byte) (int, error)    { return 0, f.err }
func (f failing) Write(p []byte) (int, error) { return len(p), nil }
func (f failing) Close() error                { return nil }

func TestATunnelIsJudgedByItsAnswer(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		request, err := http.ReadRequest(bufio.NewReader(server))
		if err == nil && request.URL.Path == "/v2/" {
			_, _ = io.WriteString(server, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
		}
	}()
	if open, err := answersHTTP(t.Context(), client); !open || err != nil {
		t.Errorf("an answer: %t, %v", open, err)
	}
	for name, words := range map[string]string{
		"containerd":    "port 5001 of pod zarf/r: error forwarding port 5001 to pod 1f, uid : failed to execute portforward in network namespace \"/var/run/netns/cni-1\": failed to connect to localhost:5001 inside namespace \"1f\", IPv4: dial tcp4 127.0.0.1:5001: connect: connection refused IPv6 dial tcp6: address localhost: no suitable address found",
		"CRI-O's socat": "port 5001 of pod zarf/r: exit status 1: socat[12] E connect(5, AF=2 127.0.0.1:5001, 16): Connection refused",
	} {
		if open, err := answersHTTP(t.Context(), failing{err: errors.New(words)}); open || err != nil {
			t.Errorf("%s: %t, %v", name, open, err)
		}
	}
	if open, err := answersHTTP(t.Context(), failing{err: errors.New("lost connection to pod")}); open || err == nil {
		t.Errorf("a tunnel that broke: %t, %v", open, err)
	}

	// A tunnel knows no deadlines: the context must end the wait.
	client, server = net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if open, err := answersHTTP(ctx, client); open || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answers: %t, %v", open, err)
	}
}

func TestPushingToAnExternalRegistryIsRefusedClearly(t *testing.T) {
	encoded, err := state.Encode(state.State{
		Phase:   state.PhasePrepared,
		Desired: state.Settings{Mode: state.ModeExternal, Address: "registry.example.com/team", IPFamily: state.IPv4, MTLS: "internal", DecidedBy: state.SourceValue},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry-state"}, Data: map[string][]byte{state.Key: encoded}})
	f := &clusterFlags{namespace: "zarf", name: "zarf-registry"}
	if _, _, err := f.readAccess(t.Context(), client); err == nil || !strings.Contains(err.Error(), "external registry registry.example.com/team") {
		t.Errorf("error is %v", err)
	}
}
