// Package noderuntime generates the registry configuration files of a node's container runtime:
// K3s' registries.yaml, containerd's hosts.toml, and the files of CRI-O and podman below
// /etc/containers. It validates what the user wrote, registries.yaml with K3s' own parser and otherwise
// as it is, and shows contents with secrets masked.
//
// It does no I/O on nodes: internal/node/hostfiles writes the files safely, in the pod of registry-node
// configure. The chart renders [Config] as JSON, and init-hook validates it before anything
// changes.
package noderuntime

import (
	"encoding/json"
	"io/fs"
	"time"
)

// Keys of the Secret that the chart renders, and file names below the directory it is mounted at.
const (
	KeyConfig     = "config.json"     // a Config
	KeyRegistries = "registries.yaml" // registries.yaml as the user wrote it; optional
	KeyCA         = "ca.crt"          // CAs of the proxies' certificates in PEM form; optional
)

// Config is the chart's configuration: which files are written, and where. All paths are absolute
// paths on the node.
type Config struct {
	// Release is NAMESPACE/NAME. The first line of every file contains it, so that releases do not
	// overwrite each other's files.
	Release string `json:"release"`
	// Address is the host in references to the cluster's registry, "127.0.0.1:31999" or "[::1]:31999";
	// empty in external mode.
	Address string `json:"address,omitempty"`
	// Force replaces files of others. They are kept and restored at the end.
	Force bool `json:"force,omitempty"`
	// Directories are all directories that may contain files of this release: those written to, and
	// those in which previous files may have to be restored. They are mounted.
	Directories []string `json:"directories"`
	// TLSDirectories are mounted to check the certificates that the configuration names. They are not
	// written to.
	TLSDirectories []string `json:"tlsDirectories,omitempty"`
	// Mirrors are the registries that are requested at Address first: a host such as "docker.io", "*"
	// for all without a configuration of their own, "!quay.io" to exclude one from "*".
	Mirrors []string `json:"mirrors,omitempty"`

	Containerd Containerd `json:"containerd"`
	K3s        K3s        `json:"k3s"`
	CRIO       CRIO       `json:"crio"`
}

// Containerd configures containerd, including that of K3s and RKE2.
type Containerd struct {
	// Directories are containerd's config_path directories: Mirrors and Hosts are written to
	// HOST/hosts.toml in each of them. Empty if no node runs containerd.
	Directories []string `json:"directories,omitempty"`
	// Hosts are the user's hosts.toml contents by host; "_default" is for all others.
	Hosts map[string]string `json:"hosts,omitempty"`
}

// K3s configures K3s or RKE2.
type K3s struct {
	// File is the path of registries.yaml; empty if it is not written.
	File string `json:"file,omitempty"`
	// ExistingSecret and ExistingSecretKey name the source of the content in messages; empty if it is
	// in the values.
	ExistingSecret    string `json:"existingSecret,omitempty"`
	ExistingSecretKey string `json:"existingSecretKey,omitempty"`
}

// CRIO configures CRI-O, podman and skopeo. Each part is disabled if its directory is empty.
type CRIO struct {
	// CertsDirectory gets ADDRESS/ca.crt: since 1.35, CRI-O verifies the certificate of a loopback
	// registry.
	CertsDirectory string `json:"certsDirectory,omitempty"`
	// ConfDirectory gets 50-zarf-registry.conf with Mirrors and, if Insecure is set, permission to use
	// Address without verifying its certificate or in plain HTTP. Mirrors without a CA have that permission, too.
	ConfDirectory string `json:"confDirectory,omitempty"`
	Insecure      bool   `json:"insecure,omitempty"`
}

// Kind is the format of a file.
type Kind string

// File formats.
const (
	KindRegistries     Kind = "registries.yaml" // K3s and RKE2
	KindHosts          Kind = "hosts.toml"      // containerd
	KindRegistriesConf Kind = "registries.conf" // containers/image: CRI-O, podman, skopeo
	KindCA             Kind = "ca.crt"          // PEM
)

// File is a file that a node must have.
type File struct {
	Path string
	Kind Kind
	// Content is everything but the first line, which marks the owner.
	Content []byte
	// Mode is 0600 for files that may contain secrets, and 0644 for those that every user's podman
	// must read.
	Mode fs.FileMode
}

// Inputs are the inputs of Build.
type Inputs struct {
	Config Config
	// Registries is K3s' registries.yaml; nil if there is none.
	Registries []byte
	// CA contains the CAs of the proxies' certificates in PEM form; nil if there are none.
	CA []byte
	// CheckTLS checks that a certificate or key exists on the node. If it is nil, that is not checked.
	// ErrNotMounted, which becomes a warning, means that it cannot be checked.
	CheckTLS func(path string) error
}

// Desired is the desired state of a node.
type Desired struct {
	// Files are sorted by Path.
	Files []File
	// Warnings are about settings without the apparent effect. They contain no secrets.
	Warnings []string
}

// Report is the termination message of registry-node configure: JSON of less than 4096 bytes,
// without secrets. A failed run writes it too.
type Report struct {
	Release string `json:"release"`
	// Written, Unchanged, Restored and Removed count files.
	Written   int `json:"written"`
	Unchanged int `json:"unchanged"`
	Restored  int `json:"restored,omitempty"`
	Removed   int `json:"removed,omitempty"`
	// Changed is when the release's newest file was written; zero if there are none.
	Changed time.Time `json:"changed,omitzero"`
	// Registries is nil if no registries.yaml is written or restored.
	Registries *RegistriesReport `json:"registries,omitempty"`
	// CA lists the fingerprints (pki.Fingerprint) of the CAs written for CRI-O.
	CA []string `json:"ca,omitempty"`
	// Warnings are those of Build and those found on the node, truncated if there are too many.
	Warnings []string `json:"warnings,omitempty"`
	// Error is the reason for a failure. Nothing has been changed then, unless a file system failed
	// halfway.
	Error string `json:"error,omitempty"`
}

// ParseReport parses a termination message. It ignores unknown fields, which a newer release may
// add. On an error the report is the zero value.
func ParseReport(message string) (Report, error) {
	var report Report
	if err := json.Unmarshal([]byte(message), &report); err != nil {
		return Report{}, err
	}
	return report, nil
}

// RegistriesReport is about the file that K3s and RKE2 read only at their start.
type RegistriesReport struct {
	Path string `json:"path"`
	// Changed is when the file was written, restored or removed: K3s must have started later.
	Changed time.Time `json:"changed"`
	// Gone reports that the file no longer belongs to the release.
	Gone bool `json:"gone,omitempty"`
}
