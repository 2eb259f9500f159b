// Package payload writes the programs that nodes run into ConfigMaps, and deletes payload that no
// pod needs any more. It neither decides which programs the nodes need nor encodes them; package
// injector does.
package payload

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Programs provides the programs that this binary embeds for the nodes.
type Programs interface {
	// Payload returns a program's payload for an architecture (a GOARCH value). The error names what
	// is missing and how to get it.
	Payload(program, architecture string) (*injector.Payload, error)
}

// Cluster holds the Kubernetes clients that a Seeder needs, scoped to the release's namespace.
// client-go's typed clients satisfy each interface.
type Cluster struct {
	ConfigMaps ConfigMaps
	// ConfigMapNames lists the same ConfigMaps without their content, which is megabytes.
	ConfigMapNames Metadata
	Pods           Pods
}

// ConfigMaps lists and replaces ConfigMaps.
type ConfigMaps interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.ConfigMapList, error)
	Create(ctx context.Context, configMap *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, configMap *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Metadata lists objects without their content, as client-go's metadata client does.
type Metadata interface {
	List(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
}

// Pods lists and deletes pods.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Seeder writes and deletes the payload of one release. Its exported fields must be set. It is not
// safe for concurrent use.
type Seeder struct {
	*release.Release
	Cluster  Cluster
	Programs Programs

	encoded map[injector.Program]*injector.Payload
}
