package status

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

const (
	startMetric = "process_start_time_seconds"
	// maxMetrics bounds how much of a kubelet's metrics is read. They are sorted by name; on
	// a K3s server, about ten megabytes of API server metrics precede startMetric.
	maxMetrics = 64 << 20
)

// KubeletStarted returns a function for Options.KubeletStarted that reads the kubelets'
// metrics through the API server. The client is that of the core API.
func KubeletStarted(client rest.Interface) func(ctx context.Context, node string) (time.Time, error) {
	return func(ctx context.Context, node string) (time.Time, error) {
		metrics, err := client.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("metrics").Stream(ctx)
		if err != nil {
			return time.Time{}, fmt.Errorf("requesting the metrics of the kubelet of node %s: %w", node, err)
		}
		defer metrics.Close() // stops the transfer of the rest
		started, err := startTime(metrics, maxMetrics)
		if err != nil {
			return time.Time{}, fmt.Errorf("reading the metrics of the kubelet of node %s: %w", node, err)
		}
		return started, nil
	}
}

// startTime reads up to the line with the start time of the process.
func startTime(metrics io.Reader, limit int64) (time.Time, error) {
	bounded := &io.LimitedReader{R: metrics, N: limit}
	lines := bufio.NewScanner(bounded)
	for lines.Scan() {
		value, ok := strings.CutPrefix(lines.Text(), startMetric+" ")
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if sane := seconds > 0 && seconds <= math.MaxUint32; err != nil || !sane { // NaN is not
			return time.Time{}, fmt.Errorf("invalid %s %q", startMetric, value)
		}
		whole, part := math.Modf(seconds)
		return time.Unix(int64(whole), int64(part*float64(time.Second))), nil
	}
	switch err := lines.Err(); {
	case err != nil:
		return time.Time{}, err
	case bounded.N <= 0:
		return time.Time{}, fmt.Errorf("more than %d bytes before %s", limit, startMetric)
	}
	return time.Time{}, errors.New("missing " + startMetric)
}
