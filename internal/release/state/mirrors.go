package state

import "time"

// Mirrors is which nodes pull mirrored references from the registry, as the last finish observed it.
type Mirrors struct {
	// Image is the reference that each node had to pull; its host is mirrored.
	Image string `json:"image"`
	// CheckedAt is when the pulls began. Files that were written since are not covered.
	CheckedAt time.Time `json:"checkedAt"`
	// Pulled are the names of the nodes that pulled it.
	Pulled []string `json:"pulled,omitempty"`
	// Failed are the other nodes that tried, by the reason of the failure.
	Failed []MirrorFailure `json:"failed,omitempty"`
}

// MirrorFailure is why nodes could not pull a mirrored reference.
type MirrorFailure struct {
	Reason string   `json:"reason"`
	Nodes  []string `json:"nodes"`
}
