package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	valueEndpoint = "registry.storage.s3.regionEndpoint"
	// endpointTimeout bounds a connection to the object storage.
	endpointTimeout = 5 * time.Second
)

// lookAtS3 finds Secrets and an endpoint of S3 without which the registry would not start.
func (i *Inspection) lookAtS3(ctx context.Context) ([]Finding, error) {
	s3 := i.Settings.Storage.S3
	if s3 == nil {
		return nil, nil
	}
	var findings []Finding
	for _, s := range []struct {
		name, value, create string
		keys                []string
	}{
		{s3.Secret, "registry.storage.s3.existingSecret",
			"--from-literal=AWS_ACCESS_KEY_ID=… --from-literal=AWS_SECRET_ACCESS_KEY=…",
			[]string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}},
		{s3.CASecret, "registry.storage.s3.caSecret", "--from-file=ca.crt", []string{names.KeyCA}},
	} {
		if s.name == "" {
			continue
		}
		secret, err := i.ReadSecret(ctx, s.name)
		if err != nil {
			return nil, err
		}
		f := Finding{Check: checkStorage, Severity: Blocker, Object: i.Object("Secret", s.name),
			Cause: fmt.Sprintf("does not exist, but %s names it, and the registry would not start", s.value),
			Remedy: fmt.Sprintf("kubectl -n %s create secret generic %s %s, or name another: --set %s=…",
				i.Settings.Namespace, s.name, s.create, s.value)}
		if secret == nil {
			findings = append(findings, f)
			continue
		}
		for _, key := range s.keys {
			if len(secret.Data[key]) == 0 {
				f.Cause = fmt.Sprintf("has no key %s, and %s names it, so the registry would not start", key, s.value)
				f.Remedy = "add the key, or name another: --set " + s.value + "=…"
				findings = append(findings, f)
			}
		}
	}
	found, err := i.endpoint(ctx, s3.Endpoint)
	return append(findings, found...), err
}

// endpoint tries to connect to the object storage. A failure from a workstation is a blocker only if it tells about the
// cluster too.
func (i *Inspection) endpoint(ctx context.Context, endpoint string) ([]Finding, error) {
	if endpoint == "" {
		return nil, nil
	}
	f := Finding{Check: checkStorage, Severity: Blocker, Object: "endpoint " + endpoint,
		Remedy: "correct it: --set " + valueEndpoint + "=https://HOST:PORT"}
	finding := func(cause string, args ...any) ([]Finding, error) {
		f.Cause = valueEndpoint + ": " + fmt.Sprintf(cause, args...)
		return []Finding{f}, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Hostname() == "" {
		return finding("is not the URL of a host")
	}
	f.Object = "endpoint " + u.Scheme + "://" + u.Host // without a password
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	ip := net.ParseIP(u.Hostname())
	if u.Hostname() == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return finding("in the registry's pod, %s is the pod itself, where nothing but the registry listens", u.Hostname())
	}
	if name, namespace, ok := i.serviceName(u.Hostname()); ok {
		cause, err := i.serviceMissing(ctx, name, namespace, port)
		if err != nil || cause == "" {
			return nil, err
		}
		return finding("%s", cause)
	}
	if i.Cluster.Dial == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, endpointTimeout)
	defer cancel()
	conn, err := i.Cluster.Dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	switch {
	case err == nil:
		_ = conn.Close()
		return nil, nil
	case i.Cluster.InPod || errors.Is(err, syscall.ECONNREFUSED):
		return finding("does not answer: %v", err)
	}
	return nil, nil // nodes may reach it
}

// serviceName parses the DNS name of a Service.
func (i *Inspection) serviceName(host string) (name, namespace string, ok bool) {
	host = strings.TrimSuffix(host, "."+i.Settings.PKI.ClusterDomain)
	parts := strings.Split(strings.TrimSuffix(host, ".svc"), ".")
	switch {
	case len(parts) == 2 && strings.HasSuffix(host, ".svc"):
		return parts[0], parts[1], true
	case len(parts) == 1: // in the pod's own namespace
		return parts[0], i.Settings.Namespace, true
	}
	return "", "", false
}

// serviceMissing returns why a Service does not answer at a port, or "".
func (i *Inspection) serviceMissing(ctx context.Context, name, namespace, port string) (string, error) {
	list, err := i.Cluster.AllServices.List(ctx, metav1.ListOptions{})
	switch {
	case release.MissingPermission(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("listing the Services of all namespaces: %w", err)
	}
	for _, s := range list.Items {
		if s.Name != name || s.Namespace != namespace {
			continue
		}
		if s.Spec.ClusterIP == corev1.ClusterIPNone || s.Spec.Type == corev1.ServiceTypeExternalName {
			return "", nil // its pods' ports, or those of another host
		}
		var ports []string
		for _, p := range s.Spec.Ports {
			if fmt.Sprint(p.Port) == port {
				return "", nil
			}
			ports = append(ports, fmt.Sprint(p.Port))
		}
		return fmt.Sprintf("Service %s/%s has no port %s, but %s", namespace, name, port, strings.Join(ports, ", ")), nil
	}
	return fmt.Sprintf("Service %s/%s does not exist", namespace, name), nil
}
