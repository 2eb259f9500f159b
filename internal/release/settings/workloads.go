package settings

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Workload is what the values say about the placement and size of pods. Values under a path that the API would reject
// are an error of Decode, so that it can name that path.
type Workload struct {
	// Values is the path of the chart's values for these pods: "registry".
	Values string `json:"values"`
	// Component is their value of the label app.kubernetes.io/component.
	Component string `json:"component"`
	// Architecture is that of the nodes on which they run, as in GOARCH. Empty for all.
	Architecture      string            `json:"architecture,omitempty"`
	PriorityClassName string            `json:"priorityClassName,omitempty"`
	NodeSelector      map[string]string `json:"nodeSelector,omitempty"`
	// NodeTerms are the terms of the required node affinity, Tolerations and Resources those of a pod.
	NodeTerms   json.RawMessage `json:"nodeTerms,omitempty"`
	Tolerations json.RawMessage `json:"tolerations,omitempty"`
	Resources   json.RawMessage `json:"resources,omitempty"`
}

// Scheduling is what the scheduler needs to know about a pod.
type Scheduling struct {
	NodeTerms   []corev1.NodeSelectorTerm
	Tolerations []corev1.Toleration
	Resources   corev1.ResourceRequirements
}

// Decode decodes the parts of a workload that have types of the API. The path is that of the value that it cannot
// decode.
func (w Workload) Decode() (s Scheduling, path string, err error) {
	for _, part := range []struct {
		path string
		data json.RawMessage
		into any
	}{
		{"affinity", w.NodeTerms, &s.NodeTerms},
		{"tolerations", w.Tolerations, &s.Tolerations},
		{"resources", w.Resources, &s.Resources},
	} {
		if len(part.data) == 0 {
			continue
		}
		if err := json.Unmarshal(part.data, part.into); err != nil {
			return Scheduling{}, w.Values + "." + part.path, err
		}
	}
	return s, "", nil
}

// Workload returns the workload of a component. It is empty, and ok false, if the chart renders none.
func (s *Settings) Workload(component string) (w Workload, ok bool) {
	i := slices.IndexFunc(s.Workloads, func(w Workload) bool { return w.Component == component })
	if i < 0 {
		return Workload{}, false
	}
	return s.Workloads[i], true
}

// Storage describes where the registry stores images. It is empty if that is neither a claim nor S3.
type Storage struct {
	// Claim is the claim that the registry mounts.
	Claim Claim `json:"claim,omitzero"`
	// S3 is the object storage, nil if it is not used.
	S3 *S3 `json:"s3,omitempty"`
	// CacheClass is the StorageClass of the caches' volumes. Empty: they have none.
	CacheClass string `json:"cacheClass,omitempty"`
}

// Claim describes a PersistentVolumeClaim.
type Claim struct {
	Name string `json:"name"`
	// Existing means that the claim is the user's. The chart renders others from the fields below.
	Existing bool `json:"existing,omitempty"`
	// StorageClass is nil for the cluster's default class, and empty for none.
	StorageClass *string  `json:"storageClass,omitempty"`
	AccessModes  []string `json:"accessModes,omitempty"`
	Size         string   `json:"size,omitempty"`
	// Shared means that several pods mount it.
	Shared bool `json:"shared,omitempty"`
}

// S3 describes the object storage.
type S3 struct {
	// Endpoint is its URL; empty for AWS, and if only an HTTP proxy may reach it.
	Endpoint string `json:"endpoint,omitempty"`
	// Secret is the user's Secret with the keys, CASecret that with CAs. Either may be empty.
	Secret   string `json:"secret,omitempty"`
	CASecret string `json:"caSecret,omitempty"`
}

func (s Storage) validate() error {
	var v problems
	if s.Claim.Name != "" && !s.Claim.Existing {
		v.check(len(s.Claim.AccessModes) > 0 && s.Claim.Size != "", "claim %s needs accessModes and size", s.Claim.Name)
	}
	return v.err()
}
