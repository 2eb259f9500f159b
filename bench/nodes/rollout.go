package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// rollout measures a large image, with new processes and empty caches.
func (s *stage) rollout(ctx context.Context) error {
	statBefore, sentBefore, err := s.counters()
	if err != nil {
		return err
	}
	took, err := s.pullAll(ctx)
	if err != nil {
		return err
	}
	stat, sent, err := s.counters()
	if err != nil {
		return err
	}
	share, err := results.BusyShare(statBefore, stat)
	if err != nil {
		return err
	}
	c := s.crowd
	// The targets in bench/report refer to these columns.
	add := func(what, unit string, value float64) { s.report.Add(c.table, s.name, what, unit, value) }
	slices.Sort(took)
	last, bytes := took[len(took)-1], float64(s.large[c.image].Bytes)
	copies := (sent - sentBefore) / bytes
	// A link's time for one copy, times the copies that the busiest link carries if caches share the load evenly.
	allowed := bytes * 8 / float64(c.rate) * max(1, copies, float64(c.nodes)/float64(max(1, len(s.caches))))
	add("last node done", "s", last)
	add("× what the links allow", "", last/allowed)
	add("median node done", "s", results.Median(took))
	add("copies from the registry", "", copies)
	add("CPUs busy", "", share*float64(s.report.Machine.Cores))
	return nil
}

// pullAll makes all nodes pull at the same moment, and returns how long each took, in seconds.
func (s *stage) pullAll(ctx context.Context) ([]float64, error) {
	var began time.Time
	start, took := make(chan struct{}), make([]float64, len(s.nodes))
	group, ctx := errgroup.WithContext(ctx)
	for n, m := range s.nodes {
		group.Go(func() error {
			client := m.client()
			defer client.CloseIdleConnections()
			<-start
			err := pull(ctx, client, s.server(), s.large[s.crowd.image])
			took[n] = time.Since(began).Seconds()
			return err
		})
	}
	began = time.Now()
	close(start)
	return took, group.Wait()
}

var sentBytes = regexp.MustCompile(`(?m)^zarf_registry_http_sent_bytes_total\{.*\} (.+)$`)

// counters returns /proc/stat, and how many bytes of response bodies the registry has sent to nodes and caches.
func (s *stage) counters() (stat string, sent float64, err error) {
	body, err := get(metricsURL(s.fabric.registry, "/metrics"))
	for _, match := range sentBytes.FindAllStringSubmatch(body, -1) { // none before the first response
		n, e := strconv.ParseFloat(match[1], 64)
		sent, err = sent+n, errors.Join(err, e)
	}
	stat, e := results.ReadStat()
	return stat, sent, errors.Join(err, e)
}

// get returns the body of a response with the status 200.
func get(url string) (string, error) {
	response, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return string(body), err
}
