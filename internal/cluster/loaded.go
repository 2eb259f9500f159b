package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// loadedTimeout bounds one request. The response is small and in memory: what takes longer is
	// a pod, a node or an API server that does not answer at all.
	loadedTimeout = 5 * time.Second
	// maxLoaded is in bytes. A certificate takes about 300, and a ca.crt of 64 KiB holds a hundred.
	maxLoaded = 1 << 20
)

// Loaded returns what a pod of the registry, a proxy or a cache has loaded. It always goes through the API server: the
// port is on a loopback interface, or behind a NetworkPolicy.
func (r *Registry) Loaded(ctx context.Context, pod *corev1.Pod) (*loaded.State, error) {
	state, err := r.loaded(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("reading what pod %s/%s has loaded: %w", pod.Namespace, pod.Name, err)
	}
	return state, nil
}

// PlainOpen reports whether the plain listener of a registry's pod accepts connections of other pods. A port-forward
// does not tell: it reaches the listener at the pod's loopback address, which is always open. Without Direct, the
// registry is asked instead. An error means that this could not be determined.
func (r *Registry) PlainOpen(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if !r.Direct {
		state, err := r.Loaded(ctx, pod)
		return err == nil && state.PlainListenerOpen != nil && *state.PlainListenerOpen, err
	}
	ctx, cancel := context.WithTimeout(ctx, listeningTimeout)
	defer cancel()
	open, err := listening(ctx, pod, release.PlainPort)
	if err != nil {
		return false, fmt.Errorf("connecting to port %d of pod %s/%s: %w", release.PlainPort, pod.Namespace, pod.Name, err)
	}
	return open, nil
}

// Fetch copies the response of a pod's metrics port for a path, such as /metrics, to w. Like Loaded, it always goes
// through the API server.
func (r *Registry) Fetch(ctx context.Context, pod *corev1.Pod, path string, w io.Writer) error {
	port, err := metricsPort(pod)
	if err != nil {
		return err
	}
	return r.get(ctx, pod, port, path, func(response *http.Response) error {
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("response %s", response.Status)
		}
		_, err := io.Copy(w, response.Body)
		return err
	})
}

func metricsPort(pod *corev1.Pod) (int, error) {
	text, ok := pod.Annotations[names.AnnotationMetricsPort]
	if !ok {
		return 0, fmt.Errorf("annotation %s is missing", names.AnnotationMetricsPort)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("annotation %s: invalid port %q", names.AnnotationMetricsPort, text)
	}
	return port, nil
}

func (r *Registry) loaded(ctx context.Context, pod *corev1.Pod) (state *loaded.State, err error) {
	port, err := metricsPort(pod)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, loadedTimeout, fmt.Errorf("no answer within %s", loadedTimeout))
	defer cancel()
	err = r.get(ctx, pod, port, loaded.Path, func(response *http.Response) error {
		state, err = decodeLoaded(response)
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // the error of the closed connection says less
	}
	if err != nil {
		return nil, fmt.Errorf("port %d: %w", port, err)
	}
	return state, nil
}

func decodeLoaded(response *http.Response) (*loaded.State, error) {
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("response %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxLoaded+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxLoaded {
		return nil, fmt.Errorf("invalid response: more than %d bytes", maxLoaded)
	}
	var state loaded.State
	// Newer releases may add fields.
	if err := json.Unmarshal(body, &state); err != nil {
		return nil, fmt.Errorf("invalid response: %w", err)
	}
	if err := validateCertificates(state.Certificates); err != nil {
		return nil, fmt.Errorf("invalid response: %w", err)
	}
	return &state, nil
}

// sha256Hex is the format of SHA-256 digests in a State.
var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

// validateCertificates rejects digests in an unknown format, which would compare as "not loaded yet".
func validateCertificates(c loaded.Certificates) error {
	switch {
	case c.Generation == 0:
		return errors.New("no generation")
	case !sha256Hex.MatchString(c.Leaf.SHA256):
		return fmt.Errorf("leaf: invalid SHA-256 %q", c.Leaf.SHA256)
	case len(c.TrustedCAs) == 0:
		return errors.New("no CA")
	}
	for _, ca := range c.TrustedCAs {
		if !sha256Hex.MatchString(ca.SHA256) {
			return fmt.Errorf("CA %q: invalid SHA-256 %q", ca.Subject, ca.SHA256)
		}
	}
	return nil
}
