package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

const (
	tableHealer = "A healer at rest, by nodes in the cluster"
	// reportInterval is how often a kubelet updates its Node without a change (nodeStatusReportFrequency).
	reportInterval = 5 * time.Minute
)

// watch answers a watch: of nodes with all of them, and then with their updates as kubelets send them; of
// pods with nothing, because none is pending.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request) {
	flusher := w.(http.Flusher)
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(http.StatusOK)
	flusher.Flush()
	send := func(kind string, node *corev1.Node) bool {
		raw, err := encode(node, runtime.ContentTypeJSON)
		if err != nil {
			panic(err) // cannot fail for makeNode
		}
		n, err := fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", kind, raw)
		c.sent.Add(int64(n))
		return err == nil
	}
	if r.URL.Path != "/api/v1/nodes" {
		<-r.Context().Done()
		return
	}
	for i := range c.nodes.Items {
		if !send("ADDED", &c.nodes.Items[i]) {
			return
		}
	}
	flusher.Flush()
	close(c.watched)
	updates := time.NewTicker(reportInterval / time.Duration(len(c.nodes.Items)))
	defer updates.Stop()
	for i := 0; ; i++ {
		select {
		case <-r.Context().Done():
			return
		case <-updates.C:
			if !send("MODIFIED", &c.nodes.Items[i%len(c.nodes.Items)]) {
				return
			}
			flusher.Flush()
		}
	}
}

// heal measures a healer that has nothing to do.
func (b *benchmark) heal(ctx context.Context, nodes int, taint bool) (err error) {
	c := newCluster(nodes)
	server := httptest.NewTLSServer(c)
	defer server.Close()
	dir := filepath.Join(b.dir, "healer")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, data := range map[string][]byte{"ca.crt": ca, "token": []byte("token")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		return err
	}
	args := []string{"heal", "--namespace=zarf", "--release=zarf-registry", "--service-account-dir=" + dir}
	if taint {
		args = append(args, "--startup-taint=zarf.dev/registry-not-ready")
	}
	p, err := registries.StartClient([]string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port},
		b.node, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if taint {
		select {
		case <-c.watched:
		case <-time.After(time.Minute):
			return errors.New("the healer has not read all nodes after a minute")
		}
	}
	wait := func(d time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Ended():
			return fmt.Errorf("the healer exited: %s", p.Output())
		case <-time.After(d):
			return nil
		}
	}
	if err := wait(b.rest / 10); err != nil { // it may still work on the last nodes
		return err
	}
	if c.requests.Load() == 0 {
		return errors.New("the healer has sent no request")
	}
	start, err := p.CPU()
	if err != nil {
		return err
	}
	peak, err := p.PeakMemory()
	if err != nil {
		return err
	}
	if err := p.ResetPeak(); err != nil {
		return err
	}
	requests, sent := c.requests.Load(), c.sent.Load()
	if err := wait(b.rest); err != nil {
		return err
	}
	spent, err := p.CPU()
	if err != nil {
		return err
	}
	memory, err := p.PeakMemory()
	if err != nil {
		return err
	}
	perMinute := float64(time.Minute) / float64(b.rest)
	add := func(what, unit string, value float64) {
		b.report.Add(tableHealer, healerName(nodes, taint), what, unit, value)
	}
	add("memory", "MB", float64(memory)/1e6)
	add("memory at start", "MB", float64(peak)/1e6)
	add("CPU at start", "s", start)
	add("CPU per minute", "s", (spent-start)*perMinute)
	add("requests per minute", "", float64(c.requests.Load()-requests)*perMinute)
	add("read per minute", "MB", float64(c.sent.Load()-sent)/1e6*perMinute)
	return nil
}

func healerName(nodes int, taint bool) string {
	name := fmt.Sprintf("healer, %d nodes", nodes)
	if taint {
		name += ", startupTaint"
	}
	return name
}
