package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/zarf-dev/zarf-registry/bench/internal/kubelets"
	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	kube "github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

const (
	scaleMode = "scale"
	// scaleAgent is the user agent of this program.
	scaleAgent = "bench-scale"
	// calculated is the number of nodes whose row is calculated, if at least calculatedFrom were measured: memory and
	// polls do not grow in proportion.
	calculated, calculatedFrom = 5000, 1000
	// idleTime is that of phases without change, tailTime what each phase is given for what follows it.
	idleTime, tailTime = time.Minute, 5 * time.Second

	apiServer, etcd  = "kube-apiserver", "etcd"
	tableScaleSetUp  = "Installation"
	byInstaller      = "the command"
	byHealers        = "healers"
	byControllers    = "controllers"
	scaleAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    userGroups: ["system:nodes"]
  - level: Metadata
`
	scaleHow = "One real node, for the registry and two healers, and simulated nodes, which do what a kubelet does, " +
		"each with a connection of its own. Their pulls succeed; there are no kube-proxies, network plugins or other " +
		"workloads. Requests are without leases, MB those on the wire. Controllers, with the scheduler and what runs on " +
		"the real node, may send 500 requests a second. Memory is the peak of the phase. The row of 5000 nodes is " +
		"calculated, on the line through the two largest sizes, if one of them has 1000."
)

// simulation is a cluster with simulated nodes.
type simulation struct {
	*cluster
	report   *results.Report
	pids     map[string]int
	kubelets *kubelets.Kubelets
	nodes    []*kubelets.Kubelet
	audit    *auditLog
	relayed  atomic.Int64
}

// scale measures what a release costs an API server with a number of nodes. It keeps the results of other numbers.
func scale(ctx context.Context, args []string) (err error) {
	common, o := results.Options{Runs: 1}, options{name: "bench-scale"}
	flags := flag.NewFlagSet(scaleMode, flag.ContinueOnError)
	nodes := flags.Int("nodes", 10, "number of simulated nodes")
	flags.StringVar(&common.Write, "write", "", "directory of RESULTS.json (default: print to stdout)")
	flags.BoolVar(&common.Force, "force", false, "run on a loaded machine too, and mark the results")
	flags.StringVar(&o.zarf, "zarf-registry", "bin/zarf-registry", "path of zarf-registry")
	flags.StringVar(&o.testcluster, "testcluster", "bin/testcluster", "path of testcluster")
	if err := flags.Parse(args); err != nil {
		return err
	}
	report, err := common.Begin(ctx)
	if err != nil {
		return err
	}
	report.How = scaleHow
	s := &simulation{cluster: &cluster{options: o}, report: report}
	defer func() { err = errors.Join(err, s.down()) }()
	ctx, end := context.WithCancel(ctx)
	defer end()
	if err := s.up(ctx, *nodes); err != nil {
		return err
	}
	if err := s.phases(ctx); err != nil {
		return err
	}
	others, err := results.Read(common.Write)
	if err != nil {
		others = &results.Report{} // this is the first number
	}
	merge(report, others)
	return report.Save(common.Write, os.Stdout)
}

// up boots the cluster and starts the simulated nodes.
func (s *simulation) up(ctx context.Context, nodes int) error {
	dir, err := os.MkdirTemp("", s.name)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	policy := filepath.Join(dir, "audit.yaml")
	if err := writeFile(policy, scaleAuditPolicy); err != nil {
		return err
	}
	if _, err := s.command(ctx, "up", "--replace", "--nodes", "1", "--node-grace", "50s", "--audit-policy",
		policy); err != nil {
		return err
	}
	path, err := s.command(ctx, "kubeconfig")
	if err != nil {
		return err
	}
	s.dir = filepath.Dir(path)
	log, err := os.Open(filepath.Join(s.dir, "log", "audit.log"))
	if err != nil {
		return err
	}
	s.audit = &auditLog{log: bufio.NewReader(log), seen: map[string]bool{}}
	s.pids = map[string]int{}
	for _, id := range []string{apiServer, etcd} {
		if s.pids[id], err = s.component(ctx, id); err != nil {
			return err
		}
	}
	config, _, err := kube.Connect(kube.Access{Kubeconfig: path})
	if err != nil {
		return err
	}
	config.UserAgent = scaleAgent
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	return errors.Join(s.relay(ctx, path), s.start(ctx, nodes))
}

// relay writes a kubeconfig for connections whose bytes are counted.
func (s *simulation) relay(ctx context.Context, path string) error {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	var server string
	for _, c := range config.Clusters {
		server, c.Server = strings.TrimPrefix(c.Server, "https://"), "https://"+listener.Addr().String()
	}
	join := func(client net.Conn) {
		defer client.Close()
		upstream, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		go func() {
			defer upstream.Close()
			_, _ = io.Copy(upstream, client)
		}()
		_, _ = io.Copy(client, upstream)
	}
	go func() {
		for client, err := listener.Accept(); err == nil; client, err = listener.Accept() {
			go join(kubelets.Counted{Conn: client, Bytes: &s.relayed})
		}
	}()
	s.kubeconfig = filepath.Join(s.dir, "relayed.kubeconfig")
	return clientcmd.WriteToFile(*config, s.kubeconfig)
}

// start starts the simulated nodes and waits until all are ready.
func (s *simulation) start(ctx context.Context, nodes int) error {
	endpoints, err := s.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	address := endpoints.Endpoints[0].Addresses[0]
	n1, err := s.client.CoreV1().Nodes().Get(ctx, registryNode, metav1.GetOptions{})
	if err != nil {
		return err
	}
	certificates, err := cert.CertsFromFile(filepath.Join(s.dir, "config", "ca.crt"))
	if err != nil {
		return err
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(s.dir, "config", "ca.key"))
	if err != nil {
		return err
	}
	s.kubelets = &kubelets.Kubelets{Address: address, CA: certificates[0], Key: key,
		Server:     net.JoinHostPort(address, strconv.Itoa(int(*endpoints.Ports[0].Port))),
		PauseImage: n1.Status.Images[0], // its only image
		Dial: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			return c, s.inNetwork(func() error { c, err = new(net.Dialer).DialContext(ctx, network, address); return err })
		}}
	if err := s.inNetwork(func() error {
		s.kubelets.Listener, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	}); err != nil {
		return err
	}
	if err := s.kubelets.Serve(ctx); err != nil {
		return err
	}
	for n := range nodes {
		k, err := s.kubelets.Start(ctx, n)
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, k)
	}
	return waitFor(ctx, "the nodes", func() (bool, error) {
		list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		late := slices.ContainsFunc(list.Items, func(n corev1.Node) bool {
			return !plan.NodeReady(n) || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == corev1.TaintNodeNotReady
			})
		})
		return !late && len(list.Items) == nodes+1, program.Sleep(ctx, time.Second)
	})
}

// inNetwork calls f in the API server's network namespace.
func (s *simulation) inNetwork(f func() error) error {
	return program.InNetwork(fmt.Sprintf("/proc/%d/ns/net", s.pids[apiServer]), f)
}

// phases measures all phases.
func (s *simulation) phases(ctx context.Context) error {
	wait := func(ctx context.Context) error { return program.Sleep(ctx, idleTime) }
	command := func(args ...string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			return errors.Join(s.zarfRegistry(ctx, zarf, append(args, "--timeout=1h")...), s.proxies(ctx, len(s.nodes)+1))
		}
	}
	return errors.Join(
		s.measure(ctx, "A minute without the release", wait),
		s.measure(ctx, tableScaleSetUp, command("install", "--registry-proxy")),
		s.measure(ctx, "A minute with the release", wait),
		s.plant(ctx),
		s.measure(ctx, "Upgrade that changes the proxies' program", command("install")),
		s.measure(ctx, "Upgrade that replaces the proxies", command("install", "--set=proxy.retryTimeout=21s")),
		s.measure(ctx, "Rotation of the certificates", command("certs", "rotate")),
		s.away(ctx),
		s.measure(ctx, "A node that comes back", func(ctx context.Context) (err error) {
			if s.nodes[0], err = s.kubelets.Start(ctx, 0); err != nil {
				return err
			}
			return s.proxies(ctx, len(s.nodes)+1)
		}))
}

// away switches a node off and waits until Kubernetes has noticed.
func (s *simulation) away(ctx context.Context) error {
	s.nodes[0].Stop()
	return waitFor(ctx, "the node to be away", func() (bool, error) {
		node, err := s.client.CoreV1().Nodes().Get(ctx, s.nodes[0].Name, metav1.GetOptions{})
		return err == nil && !plan.NodeReady(*node), errors.Join(err, program.Sleep(ctx, time.Second))
	})
}

// plant replaces the payload of the proxies, as if an older version had written it. The real proxy rejects it and
// keeps its program.
func (s *simulation) plant(ctx context.Context) error {
	p := injector.Program{Name: "registry-node", Architecture: runtime.GOARCH}
	configMaps := s.client.CoreV1().ConfigMaps(zarf)
	other := []byte(hex.EncodeToString(make([]byte, 32)))
	for i := p.MaxChunks() - 1; i >= 0; i-- {
		c, err := configMaps.Get(ctx, injector.ConfigMapName(release, "", p, i), metav1.GetOptions{})
		if err != nil {
			continue // the payload has fewer
		}
		c.BinaryData[injector.ChunkKey(i)] = append(c.BinaryData[injector.ChunkKey(i)], 0)
		if text := c.BinaryData[injector.ManifestKey]; text != nil {
			manifest, err := injector.ParseManifest(text)
			if err != nil {
				return err
			}
			own := hex.EncodeToString(manifest.ProgramSHA256[:])
			c.BinaryData[injector.ManifestKey] = bytes.Replace(text, []byte(own), other, 1)
		}
		if _, err := configMaps.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return program.Sleep(ctx, kubelets.RefreshTime*3/2+tailTime)
}

// measure measures a phase.
func (s *simulation) measure(ctx context.Context, phase string, do func(ctx context.Context) error) error {
	if _, err := s.audit.read(); err != nil { // what was before
		return err
	}
	requests, transferred, relayed := s.kubelets.Requests(), s.kubelets.Transferred.Load(), s.relayed.Load()
	cpu, err := processes.CPU(s.pids[apiServer])
	for _, id := range []string{apiServer, etcd} {
		err = errors.Join(err, processes.ResetPeak(s.pids[id]))
	}
	began := time.Now()
	err = errors.Join(err, do(ctx))
	elapsed := time.Since(began)
	if err := errors.Join(err, program.Sleep(ctx, tailTime), errors.Join(s.kubelets.Failures()...)); err != nil {
		return fmt.Errorf("%s: %w", phase, err)
	}
	others, err := s.audit.read()
	if err != nil {
		return err
	}
	ofKubelets := s.kubelets.Requests()
	for name, n := range requests {
		ofKubelets[name] -= n
	}
	now, err := processes.CPU(s.pids[apiServer])
	if err != nil {
		return err
	}
	add := func(what, unit string, value float64) { s.report.Add(phase, sized(len(s.nodes)), what, unit, value) }
	add(took, "s", elapsed.Seconds())
	add("requests of kubelets", "", sum(ofKubelets))
	add("their MB", "", float64(s.kubelets.Transferred.Load()-transferred)/1e6)
	for _, who := range []string{byInstaller, byHealers, byControllers} {
		add("of "+who, "", sum(others[who]))
		if who == byInstaller {
			add("its MB", "", float64(s.relayed.Load()-relayed)/1e6)
		}
		logf("  %s: %s", who, most(others[who]))
	}
	add("API server: CPU", "s", now-cpu)
	for _, id := range []string{apiServer, etcd} {
		peak, err := processes.Peak(s.pids[id])
		if err != nil {
			return err
		}
		add(id+": memory", "MB", float64(peak)/1e6)
	}
	logf("  kubelets: %s\n%s: %.0f s", most(ofKubelets), phase, elapsed.Seconds())
	return nil
}

// sized names the row of a number of nodes.
func sized(nodes int) string {
	if nodes == calculated {
		return fmt.Sprintf("*%d nodes*", nodes)
	}
	return fmt.Sprintf("%d nodes", nodes)
}

// merge adds the results of other numbers of nodes, and calculates the last row.
func merge(report, others *results.Report) {
	sizes := map[int]bool{}
	for _, m := range slices.Concat(report.Measures, others.Measures) {
		var size int
		if _, err := fmt.Sscanf(m.Subject, "%d nodes", &size); err != nil {
			continue // calculated
		}
		if sizes[size] = true; report.Find(m.Table, m.Subject, m.What) == nil {
			report.Add(m.Table, m.Subject, m.What, m.Unit, m.Runs[0])
		}
	}
	sorted := slices.Sorted(maps.Keys(sizes))
	for _, size := range append(slices.Clone(sorted), calculated) {
		report.Subjects = append(report.Subjects, results.Subject{Name: sized(size)})
	}
	if len(sorted) < 2 || sorted[len(sorted)-1] < calculatedFrom {
		return
	}
	low, high := sorted[len(sorted)-2], sorted[len(sorted)-1]
	for _, m := range slices.Clone(report.Measures) {
		if from := report.Find(m.Table, sized(low), m.What); m.Subject == sized(high) && from != nil {
			slope := (m.Runs[0] - from.Runs[0]) / float64(high-low)
			report.Add(m.Table, sized(calculated), m.What, m.Unit, m.Runs[0]+slope*float64(calculated-high))
		}
	}
}

func sum(counts map[string]int) (n float64) {
	for _, c := range counts {
		n += float64(c)
	}
	return n
}

// most lists the largest counts.
func most(counts map[string]int) string {
	var lines []string
	for _, key := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return counts[b] - counts[a] }) {
		if len(lines) < 10 && counts[key] > 0 {
			lines = append(lines, fmt.Sprintf("%d %s", counts[key], key))
		}
	}
	return strings.Join(lines, ", ")
}

// auditLog is an audit log that grows.
type auditLog struct {
	log  *bufio.Reader
	rest []byte          // of a line that is not complete
	seen map[string]bool // watches, which are logged when they begin and when they end
}

// read counts the requests since it was last called, by who sent them and by kubelets.RequestName.
func (a *auditLog) read() (map[string]map[string]int, error) {
	counts := map[string]map[string]int{byInstaller: {}, byHealers: {}, byControllers: {}}
	for {
		line, err := a.log.ReadBytes('\n')
		line = append(a.rest, line...)
		if a.rest = nil; errors.Is(err, io.EOF) {
			a.rest = line
			return counts, nil
		}
		var event struct {
			AuditID, RequestURI, Verb, UserAgent string
			User                                 struct{ Username string }
		}
		if err := errors.Join(err, json.Unmarshal(line, &event)); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		path, _, _ := strings.Cut(event.RequestURI, "?")
		name, who := kubelets.RequestName(event.Verb, path), byInstaller
		if event.UserAgent == scaleAgent || a.seen[event.AuditID] || strings.HasSuffix(name, " leases") {
			continue
		}
		if event.Verb == "watch" {
			a.seen[event.AuditID] = true
		}
		switch user := event.User.Username; {
		case strings.HasPrefix(user, "system:serviceaccount:"+zarf+":"):
			who = byHealers
		case strings.HasPrefix(user, "system:"):
			who = byControllers
		}
		counts[who][name]++
	}
}
