package soak

import (
	"bytes"
	"encoding/base64"
	"maps"
	"slices"
	"time"
)

// Seen is a report of the capture between nodes: a marker that it saw or, at its end, the numbers
// of captured and dropped packets.
type Seen struct {
	At     time.Time `json:"at"`
	Marker string    `json:"marker,omitempty"`
	Packet string    `json:"packet,omitempty"` // source and destination

	End     bool `json:"end,omitempty"`
	Packets int  `json:"packets,omitempty"`
	Dropped int  `json:"dropped,omitempty"`
}

// Markers are byte sequences, by name, that must not appear in plain text between nodes.
type Markers map[string][]byte

// Find returns the names of the markers in a packet, sorted.
func (m Markers) Find(packet []byte) []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if len(m[name]) > 0 && bytes.Contains(packet, m[name]) {
			found = append(found, name)
		}
	}
	return found
}

// Credential adds a password, and user and password in base64.
func (m Markers) Credential(name, user, password string) {
	m[name+" password"] = []byte(password)
	m[name+" credential in base64"] = []byte(base64.StdEncoding.EncodeToString([]byte(user + ":" + password)))
}
