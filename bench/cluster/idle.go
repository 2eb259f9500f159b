package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

const tableIdle = "What runs on an idle node"

// measureIdle measures the pods of the release on each node while nothing is pulled or pushed.
func (c *cluster) measureIdle(ctx context.Context, report *results.Report) error {
	if err := c.measurePayload(ctx, report); err != nil {
		return err
	}
	subjects := map[string]string{pullingNode: "a node", registryNode: "the registry's node"}
	report.Subjects = append(report.Subjects, results.Subject{Name: subjects[pullingNode], About: "a proxy"},
		results.Subject{Name: subjects[registryNode], About: "proxy, registry and a healer"})
	if err := program.Sleep(ctx, 5*time.Second); err != nil { // for what the installation left to do
		return err
	}
	before, began := map[string]float64{}, time.Now()
	for _, node := range c.nodes {
		u, err := c.usage(ctx, node)
		if err != nil {
			return err
		}
		before[node] = u.cpu
	}
	if err := program.Sleep(ctx, c.idle); err != nil {
		return err
	}
	for _, node := range []string{pullingNode, registryNode} {
		u, err := c.usage(ctx, node)
		if err != nil {
			return err
		}
		watches, err := c.watches(node)
		if err != nil {
			return err
		}
		day := (u.cpu - before[node]) * (24 * time.Hour).Seconds() / time.Since(began).Seconds()
		report.Add(tableIdle, subjects[node], "programs: PSS", "MB", u.programs/1e6)
		report.Add(tableIdle, subjects[node], "with sandbox and shim: PSS", "MB", u.pods/1e6)
		report.Add(tableIdle, subjects[node], "CPU per day", "s", day)
		report.Add(tableIdle, subjects[node], "watches", "", float64(watches))
	}
	return nil
}

// usage is what pods of the release on a node use: seconds of CPU time, and bytes of memory.
type usage struct{ cpu, programs, pods float64 }

func (c *cluster) usage(ctx context.Context, node string) (u usage, err error) {
	component := "" // all
	if node != registryNode {
		component = "proxy" // without the healer that the second node of a small cluster runs
	}
	pods, err := c.pods(ctx, zarf, component)
	if err != nil {
		return u, err
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != node || !ready(&pod) {
			continue
		}
		container, err := c.process(ctx, &pod)
		if err != nil {
			return u, err
		}
		parent, err := processes.Numbers(container, "status", "PPid")
		if err != nil {
			return u, err
		}
		shim := int(parent[0])
		cpu, err := processes.CPU(shim)
		if err != nil {
			return u, err
		}
		u.cpu += cpu
		for root, sum := range map[int]*float64{container: &u.programs, shim: &u.pods} {
			tree, err := processes.Tree(root)
			if err != nil {
				return u, err
			}
			for _, pid := range tree {
				pss, err := processes.Numbers(pid, "smaps_rollup", "Pss")
				if processes.Gone(err) {
					continue
				}
				if err != nil {
					return u, err
				}
				*sum += float64(pss[0])
			}
		}
	}
	if u.programs == 0 {
		return u, fmt.Errorf("no pod on node %s", node)
	}
	return u, nil
}

// watches returns how many watches for the release a node holds: those of its kubelet and, on the registry's
// node, those of the release's pods.
func (c *cluster) watches(node string) (int, error) {
	log, err := os.Open(filepath.Join(filepath.Dir(c.kubeconfig), "log", "audit.log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	open, err := openWatches(log)
	if err != nil {
		return 0, err
	}
	n := open["system:node:"+node]
	if n == 0 {
		return 0, errors.New("the audit log has no watch by node " + node)
	}
	if node == registryNode {
		for user, number := range open {
			if strings.HasPrefix(user, "system:serviceaccount:"+zarf+":") {
				n += number
			}
		}
	}
	return n, nil
}

// openWatches counts the watches in an audit log that have not ended, by user.
func openWatches(log io.Reader) (map[string]int, error) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20) // lines contain the whole user
	open, by := map[string]int{}, map[string]bool{}
	for scanner.Scan() {
		var event struct {
			AuditID, Stage string
			User           struct{ Username string }
		}
		if err := json.Unmarshal(scanner.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("parsing the audit log: %w", err)
		}
		switch {
		case event.Stage == "ResponseStarted":
			open[event.User.Username]++
			by[event.AuditID] = true
		case by[event.AuditID]:
			open[event.User.Username]--
		}
	}
	return open, scanner.Err()
}
