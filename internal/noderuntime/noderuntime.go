// Package noderuntime says which files a node's container runtime is to have, so that it uses the registries that the user
// names: K3s' registries.yaml, containerd's hosts.toml, and what CRI-O and podman read below /etc/containers. It checks what
// the user wrote, with K3s' own reader where K3s will read it, and shows contents with every secret masked.
//
// It knows formats and does no I/O on nodes: how files are written safely is in internal/hostfiles, and what runs on the node
// is registry-node configure. The chart writes [Config] as JSON, and init-hook checks it before anything is changed.
package noderuntime

import (
	"encoding/json"
	"io/fs"
	"time"
)

// The keys of the Secret that the chart writes, and the names of the files below the directory that a pod has it mounted at.
const (
	KeyConfig     = "config.json"     // a Config
	KeyRegistries = "registries.yaml" // K3s' registries.yaml as the user wrote it; missing where there is none
	KeyCA         = "ca.crt"          // authorities of the proxies' certificates, PEM; missing where nobody needs them
)

// Config is what the chart decided: what is wanted, and where nodes keep it. All paths are absolute paths of the node.
type Config struct {
	// Release is NAMESPACE/NAME. It stands in the first line of every file, so that two releases do not take each other's.
	Release string `json:"release"`
	// Address is what references to the cluster's registry begin with, "127.0.0.1:31999" or "[::1]:31999"; empty in external mode.
	Address string `json:"address,omitempty"`
	// Force lets files of others be replaced. They are kept, and put back in the end.
	Force bool `json:"force,omitempty"`
	// Directories are all that may hold files of this release: those that it writes to, and those where it may have to put
	// back what was there before. They are mounted.
	Directories []string `json:"directories"`
	// TLSDirectories are mounted too, and not written to: certificates that the configuration names are looked for in them.
	TLSDirectories []string `json:"tlsDirectories,omitempty"`
	// Mirrors are the registries that are asked for at Address first: a host such as "docker.io", "*" for all that have no
	// configuration of their own, "!quay.io" for an exception from "*".
	Mirrors []string `json:"mirrors,omitempty"`

	Containerd Containerd `json:"containerd"`
	K3s        K3s        `json:"k3s"`
	CRIO       CRIO       `json:"crio"`
}

// Containerd is what containerd is to have, K3s' and RKE2's as well.
type Containerd struct {
	// Directories are containerd's config_path: Mirrors and Hosts are written to HOST/hosts.toml in each of them. Empty
	// where no node runs containerd.
	Directories []string `json:"directories,omitempty"`
	// Hosts are contents of hosts.toml as the user wrote them, by host; "_default" stands for all others.
	Hosts map[string]string `json:"hosts,omitempty"`
}

// K3s is where K3s or RKE2 have theirs.
type K3s struct {
	// File is registries.yaml; empty where nothing is to be written there.
	File string `json:"file,omitempty"`
	// ExistingSecret and ExistingSecretKey say where the content comes from, for messages; empty where it is in the values.
	ExistingSecret    string `json:"existingSecret,omitempty"`
	ExistingSecretKey string `json:"existingSecretKey,omitempty"`
	// Live has the same written as hosts.toml into LiveDirectory, which containerd reads at each pull, so that it works
	// before K3s is restarted.
	Live          bool   `json:"live,omitempty"`
	LiveDirectory string `json:"liveDirectory,omitempty"`
}

// CRIO is what CRI-O, podman and skopeo are to have. Each part is off where its directory is empty.
type CRIO struct {
	// CertsDirectory gets ADDRESS/ca.crt: CRI-O 1.35 and later trust loopback no more than any other registry.
	CertsDirectory string `json:"certsDirectory,omitempty"`
	// ConfDirectory gets 50-zarf-registry.conf, with Mirrors and, where Insecure, that Address may be asked without
	// verification of its certificate, or in plain HTTP.
	ConfDirectory string `json:"confDirectory,omitempty"`
	Insecure      bool   `json:"insecure,omitempty"`
}

// Kind is the format of a file.
type Kind string

// The formats.
const (
	KindRegistries     Kind = "registries.yaml" // K3s and RKE2
	KindHosts          Kind = "hosts.toml"      // containerd
	KindRegistriesConf Kind = "registries.conf" // containers/image: CRI-O, podman, skopeo
	KindCA             Kind = "ca.crt"          // PEM
)

// File is one file that a node is to have.
type File struct {
	Path string
	Kind Kind
	// Content is all but the first line, the mark of who wrote it.
	Content []byte
	// Mode is 0600 for what may hold secrets, and 0644 for what every user's podman must be able to read.
	Mode fs.FileMode
}

// Inputs are what Build goes by.
type Inputs struct {
	Config Config
	// Registries is K3s' registries.yaml; nil where there is none.
	Registries []byte
	// CA are the authorities of the proxies' certificates, PEM; nil where there are none.
	CA []byte
	// LookTLS looks whether a certificate or a key is on the node. Nil: that is not looked at. ErrNotMounted says that it
	// cannot be, which is a warning.
	LookTLS func(path string) error
}

// Wanted is what Build found that a node is to have.
type Wanted struct {
	// Files are sorted by Path.
	Files []File
	// Warnings are about what will not do what it seems to. They hold no secret.
	Warnings []string
}

// Report is what registry-node configure leaves as its container's termination message: JSON of less than 4096 bytes, without
// secrets. It is also there when it failed.
type Report struct {
	Release string `json:"release"`
	// Written, Unchanged, Restored and Removed count files.
	Written   int `json:"written"`
	Unchanged int `json:"unchanged"`
	Restored  int `json:"restored,omitempty"`
	Removed   int `json:"removed,omitempty"`
	// Changed is when the newest of the release's files was written; the zero time where there are none.
	Changed time.Time `json:"changed,omitzero"`
	// Registries is nil where no registries.yaml is written or put back.
	Registries *RegistriesReport `json:"registries,omitempty"`
	// CA are the fingerprints (pki.Fingerprint) of the authorities written for CRI-O.
	CA []string `json:"ca,omitempty"`
	// Warnings are those of Build and of what was found on the node, cut where there are too many.
	Warnings []string `json:"warnings,omitempty"`
	// Error is why it failed; then nothing was changed, unless a file system failed in the middle.
	Error string `json:"error,omitempty"`
}

// ParseReport reads a termination message. What a newer release says besides is no mistake; the error is that the message is no
// report, and the report then the zero value.
func ParseReport(message string) (Report, error) {
	var report Report
	if err := json.Unmarshal([]byte(message), &report); err != nil {
		return Report{}, err
	}
	return report, nil
}

// RegistriesReport is about what K3s and RKE2 read at their start only.
type RegistriesReport struct {
	Path string `json:"path"`
	// Changed is when the file was written, or put back or removed: K3s must have started later.
	Changed time.Time `json:"changed"`
	// Live says that containerd has the same already. Auth says that it has credentials, which without a restart only
	// registries get that take them with each request, not those that want a token for them.
	Live bool `json:"live,omitempty"`
	Auth bool `json:"auth,omitempty"`
	// Gone says that the file is not the release's any more.
	Gone bool `json:"gone,omitempty"`
}
