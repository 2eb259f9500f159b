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
	// maxMetrics bounds what is read of a kubelet's metrics. They are sorted by name; a
	// K3s server has some ten megabytes of the API server's before the line that is looked for.
	maxMetrics = 64 << 20
)

// KubeletStarted returns an Options.KubeletStarted that asks kubelets through the API
// server, by their metrics. The client is the one of the core API.
func KubeletStarted(client rest.Interface) func(ctx context.Context, node string) (time.Time, error) {
	return func(ctx context.Context, node string) (time.Time, error) {
		metrics, err := client.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("metrics").Stream(ctx)
		if err != nil {
			return time.Time{}, fmt.Errorf("asking the kubelet of node %s for its metrics: %w", node, err)
		}
		defer metrics.Close() // with it what has not been read is not sent
		started, err := startTime(metrics, maxMetrics)
		if err != nil {
			return time.Time{}, fmt.Errorf("reading the metrics of the kubelet of node %s: %w", node, err)
		}
		return started, nil
	}
}

// startTime reads up to the line with the start of the process.
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
			return time.Time{}, fmt.Errorf("%s is %q", startMetric, value)
		}
		whole, part := math.Modf(seconds)
		return time.Unix(int64(whole), int64(part*float64(time.Second))), nil
	}
	switch err := lines.Err(); {
	case err != nil:
		return time.Time{}, err
	case bounded.N <= 0:
		return time.Time{}, fmt.Errorf("they have more than %d bytes before %s", limit, startMetric)
	}
	return time.Time{}, errors.New("they do not have " + startMetric)
}
