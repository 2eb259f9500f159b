// Package space defines how full a registry's volume is, and the API by which init-hook asks for it. Package volume
// measures. The package decides nothing but when a volume counts as nearly full and as full.
package space

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Path is the HTTP path of the API, at the listener with mutual TLS, for clients that may write. GET responds with a
// [Usage]. POST sends a [Query] and responds with an [Answer].
const Path = "/zarf-registry/storage"

// Levels, in percent of the volume.
const (
	// NearlyFull is when status, log and alerts begin to tell. It leaves time to act.
	NearlyFull = 85
	// Full is when pushes are refused. The rest is for deletions, garbage collection, and what the file system needs.
	Full = 95
)

// Usage is how much of a volume is used, in bytes, by whatever. Limit is what the registry can use: without what the
// file system reserves for root. It is 0 if it is not known, as with S3.
type Usage struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
}

// Percent is how much is used. It is 0 without a limit.
func (u Usage) Percent() float64 {
	if u.Limit <= 0 {
		return 0
	}
	return 100 * float64(u.Used) / float64(u.Limit)
}

// Available is how many bytes pushes may still add before the volume counts as [Full]; never negative.
func (u Usage) Available() int64 {
	return max(0, u.Limit/100*Full+u.Limit%100*Full/100-u.Used)
}

// Lacks reports whether the volume has no space for bytes more. A full one lacks it for 0, too.
func (u Usage) Lacks(bytes int64) bool {
	return u.Limit > 0 && (u.Available() == 0 || bytes > u.Available())
}

// String returns a text such as "96.1 % of the volume is used, 19.2 GB of 20 GB".
func (u Usage) String() string {
	return fmt.Sprintf("%.1f %% of the volume is used, %s of %s", u.Percent(), FormatBytes(u.Used), FormatBytes(u.Limit))
}

// Remedy is what to do about a volume that is full or nearly full. It continues a sentence.
const Remedy = "delete or prune images, run zarf-registry images garbage-collect, or enlarge the volume " +
	"(registry.persistence.size)"

// MaxDigests limits a Query: 10,000 digests are less than a megabyte.
const MaxDigests = 10_000

// Query asks which blobs are stored, in any repository. A push needs no space for these.
type Query struct {
	Digests []digest.Digest `json:"digests"`
}

// Answer says which of the blobs are missing, in the order of the query. The others are kept by garbage collection as
// if a push had asked for them.
type Answer struct {
	Missing []digest.Digest `json:"missing"`
}

// FormatBytes formats a number of bytes with a decimal unit, such as 12.3 MB.
func FormatBytes(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	// 999.95 would be written as 1000.0.
	for value >= 999.95 && unit < len("kMGTPE")-1 {
		value /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %cB", value, "kMGTPE"[unit])
}

// quantity is the form of a Kubernetes quantity without exponents and fractions of a byte.
var quantity = regexp.MustCompile(`^([0-9]{1,15}(?:\.[0-9]{1,15})?)(k|[KMGTPE]i|[MGTPE])?$`)

// ParseQuantity parses a size in bytes as Kubernetes writes it: 50Gi, 1.5T, 1000000. It must be at least 1.
func ParseQuantity(text string) (int64, error) {
	invalid := fmt.Errorf("invalid size %q: want a positive quantity such as 50Gi or 500G", text)
	m := quantity.FindStringSubmatch(text)
	if m == nil {
		return 0, invalid
	}
	value, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, invalid
	}
	base := 1000.0
	if strings.HasSuffix(m[2], "i") {
		base = 1024
	}
	if m[2] != "" {
		value *= math.Pow(base, float64(1+strings.Index("KMGTPE", strings.ToUpper(m[2][:1]))))
	}
	if value < 1 || value >= math.MaxInt64 {
		return 0, invalid
	}
	return int64(value), nil
}
