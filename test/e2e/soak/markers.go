package soak

import (
	"bytes"
	"encoding/base64"
	"maps"
	"slices"
	"time"
)

// Seen is what the capture between nodes says: that it saw a marker or, at its end, how
// many packets it looked at and how many came too fast for it.
type Seen struct {
	At     time.Time `json:"at"`
	Marker string    `json:"marker,omitempty"`
	Packet string    `json:"packet,omitempty"` // from where to where

	End     bool `json:"end,omitempty"`
	Packets int  `json:"packets,omitempty"`
	Dropped int  `json:"dropped,omitempty"`
}

// Markers are what must not be seen between nodes in plain text, by name.
type Markers map[string][]byte

// Find names the markers that are in a packet, sorted.
func (m Markers) Find(packet []byte) []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if len(m[name]) > 0 && bytes.Contains(packet, m[name]) {
			found = append(found, name)
		}
	}
	return found
}

// Credential adds the ways in which a user and a password go over a network in plain.
func (m Markers) Credential(name, user, password string) {
	m[name+" password"] = []byte(password)
	m[name+" credential in base64"] = []byte(base64.StdEncoding.EncodeToString([]byte(user + ":" + password)))
}
