package heal

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
)

const (
	// requestTimeout limits a request other than a watch.
	requestTimeout = 10 * time.Second
	// watchTime is how long the API server keeps a watch open. Each new one begins with all pods that
	// match, so what got lost is found again. It is short because a kubelet that must not pull
	// reports a missing image only once.
	watchTime = 5 * time.Minute
	// maxError is the most that is read of an error response.
	maxError = 64 << 10
)

// Client sends requests about one release to an API server.
type Client struct {
	// HTTP authenticates requests.
	HTTP *http.Client
	// URL is the API server's, without a slash at the end.
	URL string
	// Namespace and Release select the pods.
	Namespace, Release string
}

type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("%s (HTTP %d)", e.message, e.code) }

// codeOf returns the HTTP status of an error response, or 0.
func codeOf(err error) int {
	if status, ok := errors.AsType[*statusError](err); ok {
		return status.code
	}
	return 0
}

// ServiceAccountDir is where kubelets mount the credentials of a pod's ServiceAccount.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster returns a client for a pod, with the ServiceAccount's credentials in dir and the address in
// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. The CA is read once and the token for each
// request, because kubelets renew it.
func InCluster(dir string) (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set: run this in a pod, " +
			"or zarf-registry heal on a workstation")
	}
	file := filepath.Join(dir, "ca.crt")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the CA of the API server: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s contains no certificate", file)
	}
	transport := &http.Transport{
		// A watch on a broken connection must not wait for the system's keep-alive of two hours.
		DialContext: (&net.Dialer{Timeout: requestTimeout, KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
		}}).DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: requestTimeout,
		IdleConnTimeout:     time.Minute,
	}
	return &Client{
		HTTP: &http.Client{Transport: &withToken{transport, filepath.Join(dir, "token")}},
		URL:  "https://" + net.JoinHostPort(host, port),
	}, nil
}

type withToken struct {
	http.RoundTripper
	file string
}

func (t *withToken) RoundTrip(request *http.Request) (*http.Response, error) {
	token, err := os.ReadFile(t.file)
	if err != nil {
		return nil, fmt.Errorf("reading the ServiceAccount's token: %w", err)
	}
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return t.RoundTripper.RoundTrip(request)
}

func (c *Client) send(ctx context.Context, method, path string, query url.Values, contentType string, body any) (
	*http.Response, error) {
	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.URL+path+"?"+query.Encode(), payload)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		defer response.Body.Close()
		failed := &statusError{code: response.StatusCode, message: http.StatusText(response.StatusCode)}
		var status struct {
			Message string `json:"message"`
		}
		if json.NewDecoder(io.LimitReader(response.Body, maxError)).Decode(&status) == nil && status.Message != "" {
			failed.message = status.Message
		}
		return nil, failed
	}
	return response, nil
}

// do sends a request and decodes the response into answer, unless that is nil.
func (c *Client) do(
	ctx context.Context, method, path string, query url.Values, contentType string, body, answer any,
) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := c.send(ctx, method, path, query, contentType, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer == nil {
		_, err = io.Copy(io.Discard, response.Body) // so that the connection can be used again
		return err
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// cached asks for what is in the API server's cache.
var cached = url.Values{"resourceVersion": {"0"}}

func (c *Client) pods() string { return "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/pods" }

// labels selects objects of the release, those of some components or all.
func (c *Client) labels(components ...string) string {
	selector := names.LabelName + "=" + names.Chart + "," + names.LabelInstance + "=" + c.Release
	if len(components) > 0 {
		selector += "," + names.LabelComponent + " in (" + strings.Join(components, ",") + ")"
	}
	return selector
}

// unfinished selects the release's pods that may wait for an image. One that ran before its node lost the image, or all
// its containers, stays Running.
func (c *Client) unfinished() url.Values {
	return url.Values{"fieldSelector": {"status.phase!=Succeeded,status.phase!=Failed"}, "labelSelector": {c.labels()}}
}

func (c *Client) list(ctx context.Context, query url.Values) ([]Pod, error) {
	var list items[Pod]
	if err := c.do(ctx, http.MethodGet, c.pods(), query, "", nil, &list); err != nil {
		return nil, fmt.Errorf("listing the pods in namespace %s: %w", c.Namespace, err)
	}
	return list.Items, nil
}

// change is an event of a watch.
type change struct {
	pod  Pod
	gone bool // it was deleted, or does not match any more
}

// inUse returns the images in which injected programs of the release run, those on a node first.
func (c *Client) inUse(ctx context.Context, node string) ([]string, error) {
	pods, err := c.list(ctx, url.Values{"fieldSelector": {"status.phase=Running"}, "labelSelector": {c.labels()},
		"resourceVersion": cached["resourceVersion"]})
	if err != nil {
		return nil, err
	}
	var here, elsewhere []string
	for _, p := range pods {
		for _, container := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
			switch {
			case len(container.Command) == 0 || container.Command[0] != loader:
			case p.Spec.NodeName == node:
				here = append(here, container.Image)
			default:
				elsewhere = append(elsewhere, container.Image)
			}
		}
	}
	slices.Sort(elsewhere)
	return slices.Concat(here, slices.Compact(elsewhere)), nil
}

func (c *Client) decide(ctx context.Context, p Pod, rules nodeimages.Rules) (Decision, []nodeimages.Image, error) {
	n, err := c.node(ctx, p.Spec.NodeName, cached)
	if err != nil {
		return Decision{}, nil, err
	}
	images, inUse := n.Status.Images, []string(nil)
	if len(images) > 0 && !rules.Complete(images) {
		if inUse, err = c.inUse(ctx, p.Spec.NodeName); err != nil {
			return Decision{}, nil, err
		}
	}
	return Decide(p, images, rules, inUse), images, nil
}

// Rules returns which images may be used, from the release's ConfigMap. name is the chart's full name.
func (c *Client) Rules(ctx context.Context, name string) (nodeimages.Rules, error) {
	var configMap struct {
		Data map[string]string `json:"data"`
	}
	object := name + names.SuffixPauseImages
	path := "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/configmaps/" + url.PathEscape(object)
	if err := c.do(ctx, http.MethodGet, path, nil, "", nil, &configMap); err != nil {
		return nodeimages.Rules{}, fmt.Errorf("reading ConfigMap %s/%s: %w", c.Namespace, object, err)
	}
	return nodeimages.FromData(configMap.Data)
}

// watch sends the unfinished pods, and then each change of them, to changes. It returns when the API server ends the
// watch, after a time. opened is called when it has accepted it.
func (c *Client) watch(ctx context.Context, opened func(), changes chan<- change) error {
	query := c.unfinished()
	query.Set("watch", "1")
	query.Set("resourceVersion", "0") // first all pods that match, from the API server's cache
	query.Set("timeoutSeconds", fmt.Sprintf("%.0f", watchTime.Seconds()))
	ctx, cancel := context.WithTimeout(ctx, watchTime+requestTimeout)
	defer cancel()
	response, err := c.send(ctx, http.MethodGet, c.pods(), query, "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	opened()
	for decoder := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading the watch: %w", err)
		}
		if event.Type == "ERROR" {
			return fmt.Errorf("the API server ended the watch: %s", event.Object)
		}
		next := change{gone: event.Type == "DELETED"}
		if err := json.Unmarshal(event.Object, &next.pod); err != nil {
			return fmt.Errorf("reading the watch: %w", err)
		}
		select {
		case changes <- next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Client) node(ctx context.Context, name string, query url.Values) (n Node, err error) {
	if err := c.do(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(name), query, "", nil, &n); err != nil {
		return Node{}, fmt.Errorf("reading node %s: %w", name, err)
	}
	return n, nil
}

func (c *Client) patch(ctx context.Context, path string, operations []operation, dryRun bool) error {
	query := url.Values{"fieldManager": {names.Chart + "-" + names.ComponentHealer}}
	if dryRun {
		query.Set("dryRun", "All")
	}
	return c.do(ctx, http.MethodPatch, path, query, "application/json-patch+json", operations, nil)
}

// replace carries out a decision to replace an image. A conflict means that the pod has changed since
// it was read.
func (c *Client) replace(ctx context.Context, p Pod, d Decision, dryRun bool) error {
	if err := c.patch(ctx, c.pods()+"/"+url.PathEscape(p.Metadata.Name), d.patch(p), dryRun); err != nil {
		return fmt.Errorf("replacing image %s of pod %s/%s: %w", d.PreviousImage, c.Namespace, p.Metadata.Name, err)
	}
	return nil
}

// conflict reports whether an error of a patch means that the object has changed, or is gone. The API
// server answers 422 to a patch whose test fails.
func conflict(err error) bool {
	switch codeOf(err) {
	case http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// The reasons of events.
const (
	eventReplaced = "ImageReplaced"
	eventNoImage  = "NoImageLeft"
)

// event records what was done about a pod, or why nothing can be done.
func (c *Client) event(ctx context.Context, p Pod, reason, message string) error {
	kind := "Normal"
	if reason == eventNoImage {
		kind = "Warning"
	}
	now := time.Now().UTC()
	stamp := now.Format(time.RFC3339)
	err := c.do(ctx, http.MethodPost, "/api/v1/namespaces/"+url.PathEscape(c.Namespace)+"/events", nil, "application/json",
		map[string]any{
			"apiVersion": "v1", "kind": "Event",
			"metadata": map[string]any{"name": fmt.Sprintf("%s.%x", p.Metadata.Name, now.UnixNano()), "namespace": c.Namespace},
			"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Pod", "name": p.Metadata.Name,
				"namespace": c.Namespace, "uid": p.Metadata.UID},
			"reason": reason, "message": message, "type": kind, "count": 1,
			"source":         map[string]any{"component": names.Chart + "-" + names.ComponentHealer},
			"firstTimestamp": stamp, "lastTimestamp": stamp,
		}, nil)
	if err != nil {
		return fmt.Errorf("recording an event of pod %s/%s: %w", c.Namespace, p.Metadata.Name, err)
	}
	return nil
}
