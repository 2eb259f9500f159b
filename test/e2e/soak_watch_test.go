package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/test/e2e/soak"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// A companion is an instance of the test program on a node or next to the control plane. It reads
// commands from stdin and ends with this process at the latest.
type companion struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}
	err   bytes.Buffer
}

// companion starts a companion and passes each line of its output to onLine.
func (w *world) companion(t *testing.T, place string, onLine func(line []byte), args ...string) *companion {
	t.Helper()
	c := &companion{cmd: exec.Command(w.testcluster, append([]string{"exec", "--name", w.name, place, "--", w.tool},
		args...)...), ended: make(chan struct{})}
	stdin := require.Value(c.cmd.StdinPipe())(t)
	stdout := require.Value(c.cmd.StdoutPipe())(t)
	c.stdin, c.cmd.Stderr = stdin, &c.err
	require.NoError(t, c.cmd.Start())
	go func() {
		defer close(c.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			onLine(lines.Bytes())
		}
		c.cmd.Wait() // it may have been killed with its node
	}()
	return c
}

// send writes a line to the companion. Errors are ignored: if it has ended, other checks fail.
func (c *companion) send(format string, args ...any) { fmt.Fprintf(c.stdin, format+"\n", args...) }

// stop ends the companion.
func (c *companion) stop() {
	c.stdin.Close()
	<-c.ended
}

// begin starts capture, pushes and pull loops.
func (s *soaking) begin(t *testing.T) {
	t.Helper()
	s.noise = soak.Noise(s.seed, 0, 24, nil)
	s.sniffer = s.w.companion(t, "cp", func(line []byte) {
		var seen soak.Seen
		if err := json.Unmarshal(line, &seen); err != nil {
			seen.Marker = fmt.Sprintf("not JSON: %s", line)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, seen)
	}, "sniff")
	t.Cleanup(s.sniffer.stop)
	s.mark(t)
	s.secret = time.Now()
	program := require.Value(os.ReadFile(s.w.tool))(t)
	ctx, stop := context.WithCancel(context.Background())
	s.pusher = &pusher{s: s, program: soak.Tar("tool", program), dir: t.TempDir(), ended: make(chan struct{})}
	s.pusher.stop = sync.OnceFunc(func() {
		stop()
		<-s.pusher.ended
	})
	t.Cleanup(s.pusher.stop)
	go s.pusher.run(ctx)
	for _, node := range s.w.nodes {
		s.watch(t, node)
	}
	t.Cleanup(func() {
		for _, c := range s.watchers {
			c.stop()
		}
	})
}

// repository is the repository of pushed images. No other path has this prefix.
func (s *soaking) repository() string { return fmt.Sprintf("soak-%d/image", s.seed) }

// mark sends the capture the markers that must not be captured.
func (s *soaking) mark(t *testing.T) {
	t.Helper()
	markers := soak.Markers{
		"the content of an image": s.noise,
		"the path of an image":    []byte("/v2/" + s.repository()),
		"the control":             []byte(s.controlText()),
	}
	push := s.w.secret(t, "-credentials").Data
	markers.Credential("the push", string(push["username"]), string(push["password"]))
	if pull := s.w.pullSecret(t); pull != nil {
		markers.Credential("the pull", string(pull.Data["username"]), string(pull.Data["password"]))
	}
	for name, value := range markers {
		if len(value) < 8 {
			t.Fatalf("marker %q is too short: %q", name, value)
		}
		s.sniffer.send("marker\t%s\t%s", name, hex.EncodeToString(value))
	}
}

func (s *soaking) controlText() string { return fmt.Sprintf("the capture sees this: %d", s.seed) }

// seenSince returns the markers seen since a time, and whether the control was.
func (s *soaking) seenSince(begin time.Time) (found []string, control bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seen := range s.seen {
		switch {
		case seen.At.Before(begin) || seen.End:
		case seen.Marker == "the control":
			control = true
		default:
			found = append(found, fmt.Sprintf("%s at %s: %s", seen.Marker, seen.At.Format("15:04:05.0"), seen.Packet))
		}
	}
	return found, control
}

// control sends plain text between nodes: a capture that misses it is worthless.
func (s *soaking) control(t *testing.T) {
	t.Helper()
	begin := time.Now()
	eventually(t, "the capture to see plain text", func() error {
		if out, err := s.w.onNode(t, s.w.nodes[0], s.w.tool, "say", net.JoinHostPort(s.w.nodeAddresses(t, s.w.nodes[1])[0], "9"),
			s.controlText()); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		time.Sleep(100 * time.Millisecond)
		if _, control := s.seenSince(begin); !control {
			return fmt.Errorf("not yet: %s", s.sniffer.err.String())
		}
		return nil
	})
}

// checkUnseen fails if a marker was seen between nodes in proxy mode. In nodeport mode, which is plain
// HTTP by design, markers must be seen.
func (s *soaking) checkUnseen(t *testing.T) {
	t.Helper()
	if s.secret.IsZero() {
		return
	}
	if found, _ := s.seenSince(s.secret); len(found) > 0 {
		t.Errorf("plain text between nodes in proxy mode: %s", strings.Join(found, "; "))
	}
}

// watch starts a node's pull loop for all images, past and future.
func (s *soaking) watch(t *testing.T, node string) {
	t.Helper()
	c := s.w.companion(t, node, func(line []byte) {
		var a soak.Attempt
		if err := json.Unmarshal(line, &a); err != nil {
			a = soak.Attempt{Begin: time.Now(), Err: fmt.Sprintf("the pull loop printed %q", line), Corrupt: true}
		}
		a.Node = node
		s.add(a)
	}, "watch", "http://"+s.w.address, "500ms")
	s.pusher.mu.Lock()
	defer s.pusher.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[node] = c
	if s.pusher.auth != "" {
		c.send("auth %s", s.pusher.auth)
	}
	for _, p := range s.pusher.pushed {
		c.send("image %s %s %s", s.repository(), p.tag, p.manifest)
	}
}

// unwatch stops a node's pull loop.
func (s *soaking) unwatch(node string) {
	s.mu.Lock()
	c := s.watchers[node]
	delete(s.watchers, node)
	s.mu.Unlock()
	c.stop()
}

// sendAll writes a line to the pull loops of all nodes.
func (s *soaking) sendAll(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.watchers {
		c.send(format, args...)
	}
}

// credentials gives the pull loops the pull credential as soon as its Secret exists: it is needed
// before the switch to nodeport mode and stays afterwards.
func (s *soaking) credentials(ctx context.Context) error {
	for ; ; time.Sleep(100 * time.Millisecond) {
		secret, err := s.w.client.CoreV1().Secrets(namespace).Get(ctx, release+"-pull", metav1.GetOptions{})
		if err != nil && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return err
		}
		s.pusher.mu.Lock()
		s.pusher.auth = string(secret.Data["username"]) + " " + string(secret.Data["password"])
		s.pusher.mu.Unlock()
		s.sendAll("auth %s", s.pusher.auth)
		return nil
	}
}

// A pusher keeps pushing unique images.
type pusher struct {
	s       *soaking
	program []byte
	dir     string
	stop    func()
	ended   chan struct{}
	last    string // when and how the push ended that the test interrupted

	mu     sync.Mutex
	pushed []acknowledged
	auth   string // user and password for pulling in nodeport mode
}

// acknowledged is an image that init-hook reported as pushed.
type acknowledged struct{ tag, manifest, noise string }

func (p *pusher) run(ctx context.Context) {
	defer close(p.ended)
	for number := uint64(1); ctx.Err() == nil; number++ {
		a, got := p.push(ctx, number)
		if ctx.Err() != nil {
			p.last = fmt.Sprintf("push of %s, started %s: %s", a.Image, a.Begin.UTC().Format(time.TimeOnly), a.Err)
			return
		}
		if a.Err == "" {
			p.mu.Lock()
			p.pushed = append(p.pushed, got)
			p.mu.Unlock()
			p.s.sendAll("image %s %s %s", p.s.repository(), got.tag, got.manifest)
		}
		p.s.add(a)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// push pushes one image as users do.
func (p *pusher) push(ctx context.Context, number uint64) (soak.Attempt, acknowledged) {
	tag := strconv.FormatUint(number, 10)
	if number%3 == 0 {
		tag = "latest" // replaces what was pushed there
	}
	reference := fmt.Sprintf("example.com/%s:%s", p.s.repository(), tag)
	a := soak.Attempt{Image: reference}
	dir := filepath.Join(p.dir, "layout")
	defer os.RemoveAll(dir)
	// 256 KiB to 1 MiB, so that some uploads take a while.
	image, err := soak.WriteLayout(dir, reference, p.program, soak.Noise(p.s.seed, number, 256<<10<<(number%3), p.s.noise))
	a.Begin = time.Now()
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*time.Minute) // then it counts as failed
		defer cancel()
		p.s.tags.Push(tag, image.Manifest, a.Begin)
		cmd := exec.CommandContext(ctx, p.s.w.hook, "images", "push", "--output=json", dir)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+p.s.w.kubeconfig)
		var out, errOut string
		out, errOut, err = try(cmd)
		if err != nil {
			lines := strings.Split(strings.TrimSpace(errOut), "\n")
			if !errors.Is(ctx.Err(), context.Canceled) {
				lines = lines[len(lines)-1:]
			}
			err = fmt.Errorf("%w: %s", err, strings.Join(lines, "\n"))
		} else {
			var results struct{ Items []images.Result }
			if e := json.Unmarshal([]byte(out), &results); e != nil || len(results.Items) != 1 ||
				results.Items[0].Digest.String() != image.Manifest {
				a.Corrupt, err = true, fmt.Errorf("want digest %s, but init-hook printed %s", image.Manifest, out)
			} else {
				a.Bytes = results.Items[0].BytesSent
			}
		}
	}
	a.Took = time.Since(a.Begin)
	if err != nil {
		a.Err = err.Error()
	} else {
		p.s.tags.Acknowledge(tag, a.End())
	}
	return a, acknowledged{tag, image.Manifest, image.Noise}
}

// newest returns the last acknowledged image.
func (p *pusher) newest() acknowledged {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pushed[len(p.pushed)-1]
}

// runsWhatWasPushed runs the newest image on each node and compares the checksum of its content. The pods are
// controls of port scans until the test ends.
func (s *soaking) runsWhatWasPushed(t *testing.T) {
	t.Helper()
	newest := s.pusher.newest()
	secrets := s.w.pullSecrets(t)
	s.controls = map[string]string{}
	for _, node := range s.w.nodes {
		p := pod("sums-on-"+node, node, s.w.address+"/"+s.repository()+"@"+newest.manifest, "sum", soak.NoiseFile,
			fmt.Sprintf(":%d", soak.ControlPort))
		p.Spec.ImagePullSecrets = secrets
		s.w.runPod(t, p)
		var text string
		eventually(t, p.Name+" to print the checksum", func() error {
			got, err := s.w.client.CoreV1().Pods(workloads).Get(t.Context(), p.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			log, err := s.w.client.CoreV1().Pods(workloads).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
			text = strings.TrimSpace(string(log))
			if err == nil && (text == "" || got.Status.PodIP == "") {
				err = fmt.Errorf("phase %s: %s", got.Status.Phase, mustJSON(got.Status.ContainerStatuses))
			}
			s.controls[got.Status.PodIP] = node
			return err
		})
		if text != newest.noise {
			t.Errorf("CORRUPT: node %s runs an image with %s, but %s was pushed", node, text, newest.noise)
		}
	}
	delete(s.controls, "")
}

// finish pulls every acknowledged image and stops the capture.
func (s *soaking) finish(t *testing.T) {
	t.Helper()
	s.pusher.stop()
	var mu sync.Mutex
	failed, whole, tags := []string{}, 0, map[string]bool{}
	node := s.w.nodes[len(s.w.nodes)-1]
	c := s.w.companion(t, node, func(line []byte) {
		var a soak.Attempt
		err := json.Unmarshal(line, &a)
		s.checkTag(&a)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil || a.Err != "":
			failed = append(failed, fmt.Sprintf("%s %s", line, a.Err))
		case a.Digest != "":
			tags[a.Image] = true
		default:
			whole++
		}
	}, "each", "http://"+s.w.address)
	if s.pusher.auth != "" {
		c.send("auth %s", s.pusher.auth)
	}
	names := map[string]bool{}
	for _, p := range s.pusher.pushed {
		names[p.tag] = true
		c.send("image %s %s %s", s.repository(), p.tag, p.manifest)
	}
	c.stdin.Close()
	<-c.ended
	if len(failed) > 0 || whole != len(s.pusher.pushed) || len(tags) != len(names) {
		t.Errorf("LOST: of %d acknowledged images, %d can be pulled, and of %d tags %d: %s%s", len(s.pusher.pushed), whole,
			len(names), len(tags), strings.Join(failed, "; "), c.err.String())
	}
	t.Logf("figure: all %d acknowledged images and %d tags can be pulled, with the bytes that were pushed", whole,
		len(tags))
	for _, c := range s.watchers {
		c.stop()
	}
	s.excused(t)
	s.checkUnseen(t)
	s.sniffer.stop()
	last := s.seen[len(s.seen)-1]
	if !last.End || last.Packets < 1000 {
		t.Errorf("the capture did not run to the end: %s: %s", mustJSON(last), s.sniffer.err.String())
	}
	t.Logf("figure: %d packets between nodes were captured, %d were dropped", last.Packets, last.Dropped)
	if last.Dropped > last.Packets/100 {
		t.Error("too many packets were dropped")
	}
}

// allPorts scans all ports of all nodes from outside, and from another node.
func (s *soaking) allPorts(t *testing.T) { s.scanAll(t, "1-65535") }

// ports scans the project's ports and some node ports.
func (s *soaking) ports(t *testing.T) {
	s.scanAll(t, "5000,5001,5080,5090,5443,9102,10250,10256,30443,31990-32010")
}

func (s *soaking) scanAll(t *testing.T, ports string) {
	t.Helper()
	begin := time.Now()
	hosts := map[string]string{}
	for _, node := range s.w.nodes {
		hosts[s.w.nodeAddresses(t, node)[0]] = node
	}
	addresses := func(but string) (list []string) {
		for address, node := range hosts {
			if node != but {
				list = append(list, address)
			}
		}
		return list
	}
	first := s.w.nodes[0]
	for from, targets := range map[string][]string{"cp": addresses(""), first: addresses(first)} {
		// The other nodes may look for a node that rebooted at its previous link address.
		eventually(t, "the scan to see ports that are open", func() error {
			found := s.w.scan(t, from, ports, targets...)
			for _, address := range targets {
				if bad := soak.Unexpected(found[address], soak.NodePorts(s.proxy)); len(bad) > 0 {
					t.Errorf("from %s, node %s has unexpected open ports: %v", from, hosts[address], bad)
				}
				for _, want := range soak.NodePorts(s.proxy) {
					if !slices.Contains(found[address], want) {
						return fmt.Errorf("from %s, port %d of node %s appears closed", from, want, hosts[address])
					}
				}
			}
			return nil
		})
	}
	// A network plugin may take a moment to enforce policies for a new pod.
	if s.w.policies {
		eventually(t, "the ports of the pods to be closed", func() error { return s.scanPods(t) })
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Logf("figure: scanning ports %s took %.1f s", ports, took.Seconds())
	}
}

// scanPods scans the pods' ports from other nodes and from outside. The controls, which no policy protects, must
// be found open.
func (s *soaking) scanPods(t *testing.T) error {
	t.Helper()
	pods := map[string]corev1.Pod{}
	for _, component := range []string{"registry", "proxy"} {
		for _, p := range s.w.pods(t, component) {
			if p.Status.PodIP != "" && p.DeletionTimestamp == nil {
				pods[p.Status.PodIP] = p
			}
		}
	}
	for _, from := range append([]string{"cp"}, s.w.nodes...) {
		var others []string
		for address, p := range pods {
			if p.Spec.NodeName != from {
				others = append(others, address)
			}
		}
		var controls []string
		for address, node := range s.controls {
			if node != from {
				controls = append(controls, address)
			}
		}
		found := s.w.scan(t, from, "5000,5001,5080,5090,5443,9102", slices.Concat(others, controls)...)
		for _, address := range others {
			if bad := soak.Unexpected(found[address], soak.PodPorts(s.proxy)); len(bad) > 0 {
				return fmt.Errorf("from %s, pod %s has unexpected open ports: %v", from, pods[address].Name, bad)
			}
		}
		for _, address := range controls {
			if !slices.Contains(found[address], soak.ControlPort) {
				return fmt.Errorf("from %s, port %d of the control on node %s appears closed", from, soak.ControlPort,
					s.controls[address])
			}
		}
		if len(controls) == 0 {
			return fmt.Errorf("from %s, no control was scanned", from)
		}
	}
	return nil
}
