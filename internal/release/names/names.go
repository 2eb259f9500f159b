// Package names holds the names of a release's objects, and the label and annotation keys on them,
// that several packages share. Releases in clusters depend on every value, and the chart's templates
// repeat them.
package names

import "fmt"

const (
	// Chart is the chart's name, and the default of the release's name and of its full name.
	Chart = "zarf-registry"
	// Namespace is the default namespace of a release.
	Namespace = "zarf"
	// Manager is the value of LabelManagedBy on objects that hooks create.
	Manager = "init-hook"
)

// Suffixes follow the chart's full name in the names of objects.
const (
	SuffixState     = "-state"
	SuffixCA        = "-ca"
	SuffixServerTLS = "-server-tls"
	SuffixNodeTLS   = "-node-tls"
	SuffixPushTLS   = "-push-tls"
	SuffixCacheTLS  = "-cache-tls"
	// SuffixCache is the suffix of the caches' Service, and of what runs them.
	SuffixCache = "-cache"
	// SuffixCredentials is the suffix of the Secret with the push credential.
	SuffixCredentials = "-credentials"
	// SuffixPull is the suffix of the Secret for pulls through a node port. While that Secret has
	// KeyHtpasswd, the registry's plain listener is open.
	SuffixPull = "-pull"
	// SuffixRegistryAuth is the suffix of the Secret that the registry mounts: hashes of the push and the
	// pull credential, and the key for signing uploads.
	SuffixRegistryAuth = "-auth"
	// SuffixNodeConfig is the suffix of the chart's Secret with the desired node configuration.
	SuffixNodeConfig = "-node-config"
	// SuffixNodeProposal is the suffix of a copy of that Secret which exists only while prepare runs.
	SuffixNodeProposal = "-node-config-proposal"
	// SuffixZarfUsers is the suffix of the chart's Secret with the users of Zarf's init package.
	SuffixZarfUsers = "-zarf-users"
	// SuffixNodePort is the suffix of the NodePort Service, which owns the node port in both modes.
	SuffixNodePort = "-nodeport"
	// SuffixRepositories is the suffix of the ConfigMap with the names of the registry's repositories.
	SuffixRepositories = "-repositories"
	// SuffixPauseImages is the suffix of the ConfigMap that says which images may carry programs.
	SuffixPauseImages = "-pause-images"
	// SuffixIssued is the suffix of a Secret that cert-manager writes, after its Certificate's name.
	SuffixIssued = "-issued"
)

// ZarfClientTLS is the Secret from which Zarf's CLI and agent take the certificate that they present to
// the registry of Zarf's init package.
const ZarfClientTLS = "zarf-registry-client-tls"

// Keys of Secrets.
const (
	// KeyCA is the trust bundle of a certificate Secret.
	KeyCA = "ca.crt"
	// KeyUsername and KeyPassword hold a credential.
	KeyUsername = "username"
	KeyPassword = "password"
	// KeyHtpasswd holds the password hashes that the registry accepts.
	KeyHtpasswd = "htpasswd"
	// KeyPullHtpasswd holds the hash of the pull credential, in the registry's Secret.
	KeyPullHtpasswd = "pull-htpasswd"
	// KeyUploadSecret signs the state of uploads. It survives a credential rotation: pods started before
	// and after must be able to continue each other's uploads.
	KeyUploadSecret = "upload-secret"
)

// Labels of all objects of a release. Objects are selected by instance and component.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	LabelComponent = "app.kubernetes.io/component"
	// LabelAgent with the value "ignore" keeps Zarf's admission webhook from rewriting a pod's images to
	// this very registry, which could then not start. On every pod of a release, never in a selector.
	LabelAgent = "zarf.dev/agent"
)

// Values of LabelComponent.
const (
	ComponentState        = "state"
	ComponentCertificates = "certificates"
	ComponentCredentials  = "credentials"
	ComponentPayload      = "payload"
	ComponentProbe        = "probe"
	ComponentProxy        = "proxy"
	ComponentCache        = "cache"
	ComponentRegistry     = "registry"
	ComponentNodeConfig   = "node-config"
	ComponentNodeRestore  = "node-restore"
	ComponentHealer       = "healer"
	ComponentTest         = "test"
	ComponentHosting      = "local-registry-hosting"
)

const (
	// AnnotationMetricsPort on a pod of the registry, a proxy or a cache is the port of its metrics and reload
	// status, in decimal. With the node's network the pod listens on that node's loopback interface.
	AnnotationMetricsPort = "zarf-registry/metrics-port"
	// AnnotationNodeConfig on a pod is the checksum of the node configuration it was created for.
	AnnotationNodeConfig = "zarf-registry/node-config-checksum"
	// AnnotationRefreshed changes on a pod to make its kubelet refresh mounted Secrets at once.
	AnnotationRefreshed = "zarf-registry/refreshed-at"
	// AnnotationNodePorts on the registry's Service are the ports of the nodes on which the release's proxies listen,
	// separated by commas.
	AnnotationNodePorts = "zarf-registry/node-ports"
	// AnnotationPreviousImages on a pod lists the images that the healer replaced, separated by commas, oldest
	// first.
	AnnotationPreviousImages = "zarf-registry/previous-images"
	// AnnotationPreviousEnforce on a namespace is the value of its Pod Security label before prepare
	// changed it, empty if it had none.
	AnnotationPreviousEnforce = "zarf-registry/previous-pod-security-enforce"
	// AnnotationOwner on a ConfigMap outside the release's namespace is NAMESPACE/RELEASE. A label
	// value cannot contain a slash.
	AnnotationOwner = "zarf-registry/owner"
	// AnnotationRewrittenHost on the policy that rewrites references is a registry that it rewrites.
	AnnotationRewrittenHost = "zarf-registry/rewritten-host"
	// AnnotationReleaseName and AnnotationReleaseNamespace are Helm's: the release's name, and the
	// namespace of its record.
	AnnotationReleaseName      = "meta.helm.sh/release-name"
	AnnotationReleaseNamespace = "meta.helm.sh/release-namespace"
)

// Labels returns the labels of an object that a hook creates.
func Labels(release, component string) map[string]string {
	return map[string]string{
		LabelName:      Chart,
		LabelInstance:  release,
		LabelManagedBy: Manager,
		LabelComponent: component,
	}
}

// PodLabels returns the labels of a pod of the release with a component.
func PodLabels(release, component string) map[string]string {
	labels := Labels(release, component)
	labels[LabelAgent] = "ignore"
	return labels
}

// Selector returns a label selector for a component of a release. It does not depend on what created the objects.
func Selector(release, component string) string {
	return fmt.Sprintf("%s=%s,%s=%s", LabelInstance, release, LabelComponent, component)
}
