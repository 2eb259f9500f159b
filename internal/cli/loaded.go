package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
)

const (
	// loadedTime bounds one question: the answer is small and in memory, so what
	// takes longer is a pod, a node or an API server that does not answer at all.
	loadedTime = 5 * time.Second
	// maxLoaded bounds an answer. A certificate takes some 300 bytes of it, and a
	// ca.crt of 64 KiB holds a hundred.
	maxLoaded = 1 << 20
)

// errCannotBeAsked is of pods that were made before there was anything to ask.
var errCannotBeAsked = errors.New("it runs a release that cannot be asked")

// Loaded asks the pod through the API server, which is the only one that can: the
// port is on the loopback interface, or behind a network policy.
func (r *hookRegistry) Loaded(ctx context.Context, pod *corev1.Pod) (*reloadstatus.Report, error) {
	annotated, ok := pod.Annotations[names.AnnotationMetricsPort]
	if !ok {
		return nil, fmt.Errorf("asking pod %s/%s what it has loaded: %w", pod.Namespace, pod.Name, errCannotBeAsked)
	}
	port, err := strconv.Atoi(annotated)
	if err != nil || port < 1 || port > 65535 {
		return nil, fmt.Errorf("asking pod %s/%s what it has loaded: its annotation %s is %q, which is no port", pod.Namespace, pod.Name, names.AnnotationMetricsPort, annotated)
	}
	report, err := r.askLoaded(ctx, pod, port)
	if err != nil {
		return nil, fmt.Errorf("asking port %d of pod %s/%s what it has loaded: %w", port, pod.Namespace, pod.Name, err)
	}
	return report, nil
}

func (r *hookRegistry) askLoaded(ctx context.Context, pod *corev1.Pod, port int) (*reloadstatus.Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, loadedTime, fmt.Errorf("no answer within %s", loadedTime))
	defer cancel()
	report, err := func() (report *reloadstatus.Report, err error) {
		conn, err := r.way.dialPod(ctx, pod, port)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		err = get(ctx, conn, reloadstatus.Path, func(response *http.Response) error {
			report, err = readLoaded(response)
			return err
		})
		return report, err
	}()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause // what the closed connection says is of no use
	}
	return report, err
}

func readLoaded(response *http.Response) (*reloadstatus.Report, error) {
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, errCannotBeAsked
	default:
		return nil, fmt.Errorf("it answers %s", response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxLoaded+1))
	if err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if len(content) > maxLoaded {
		return nil, fmt.Errorf("its answer has more than %d bytes", maxLoaded)
	}
	var report reloadstatus.Report
	// What a newer release says besides is no mistake.
	if err := json.Unmarshal(content, &report); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if err := checkLoaded(report.Certificates); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	return &report, nil
}

// hexDigest is how a report writes SHA-256.
var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkLoaded refuses what would be compared in vain: another format must not look
// like a pod that has yet to load something.
func checkLoaded(c reloadstatus.Certificates) error {
	switch {
	case c.Generation == 0:
		return errors.New("it names no generation")
	case !hexDigest.MatchString(c.Leaf.SHA256):
		return fmt.Errorf("its leaf has the SHA-256 %q", c.Leaf.SHA256)
	case len(c.Authorities) == 0:
		return errors.New("it names no authority")
	}
	if i := slices.IndexFunc(c.Authorities, func(a reloadstatus.Certificate) bool { return !hexDigest.MatchString(a.SHA256) }); i >= 0 {
		return fmt.Errorf("its authority %q has the SHA-256 %q", c.Authorities[i].Subject, c.Authorities[i].SHA256)
	}
	return nil
}
