// Package space defines how full a registry's storage is, and the API by which init-hook asks for it. Package quota
// measures. The package decides nothing but when storage counts as nearly full and as full.
package space

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Path is the HTTP path of the API, at the listener with mutual TLS, for clients that may write. GET responds with a
// [Report]. POST sends a [Query] and responds with an [Answer].
const Path = "/zarf-registry/storage"

// Levels, in percent of a limit.
const (
	// NearlyFull is when status, log and alerts begin to tell. It leaves time to act.
	NearlyFull = 85
	// Full is when pushes are refused. The rest is for deletions, garbage collection, and what the file system needs.
	Full = 95
)

// Usage is how much of a limit is used, in bytes.
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

// Available is how many bytes pushes may still add before the limit counts as [Full]; never negative.
func (u Usage) Available() int64 {
	return max(0, u.Limit/100*Full+u.Limit%100*Full/100-u.Used)
}

// Report is how full a storage is.
type Report struct {
	// Volume is the file system, with whatever others store there. Its limit is what the registry can use: without
	// what the file system reserves for root. It is nil with S3.
	Volume *Usage `json:"volume,omitempty"`
	// Quota is the registry's content, unfinished uploads included. It is nil without a quota, and until the content
	// has been measured for the first time.
	Quota *Usage `json:"quota,omitempty"`
}

// Scopes of a limit.
const (
	ScopeVolume = "volume"
	ScopeQuota  = "quota"
)

// Tightest returns the fuller one of the limits and its scope. It is the zero value if none is known.
func (r Report) Tightest() (scope string, usage Usage) {
	return r.first(func(a, b Usage) int { return cmp.Compare(b.Percent(), a.Percent()) })
}

// Percent is that of the fuller limit.
func (r Report) Percent() float64 {
	_, usage := r.Tightest()
	return usage.Percent()
}

// Available is how many bytes pushes may still add; ok is false if no limit is known. The limit with the least space
// need not be the fuller one.
func (r Report) Available() (bytes int64, ok bool) {
	scope, usage := r.first(func(a, b Usage) int { return cmp.Compare(a.Available(), b.Available()) })
	return usage.Available(), scope != ""
}

// Lacks returns the limit that bytes more exceed, and its scope; "" if they fit. It is full if bytes is 0.
func (r Report) Lacks(bytes int64) (scope string, usage Usage) {
	scope, usage = r.first(func(a, b Usage) int { return cmp.Compare(a.Available(), b.Available()) })
	if scope == "" || usage.Available() > 0 && bytes <= usage.Available() {
		return "", Usage{}
	}
	return scope, usage
}

// first returns the limit that order puts first.
func (r Report) first(order func(a, b Usage) int) (scope string, usage Usage) {
	if r.Volume != nil {
		scope, usage = ScopeVolume, *r.Volume
	}
	if r.Quota != nil && (scope == "" || order(*r.Quota, usage) < 0) {
		scope, usage = ScopeQuota, *r.Quota
	}
	return scope, usage
}

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

// Remedy is what to do about storage that is full or nearly full. It continues a sentence.
func Remedy(scope string) string {
	raise := "enlarge the volume (registry.persistence.size)"
	if scope == ScopeQuota {
		raise = "raise registry.storage.quota"
	}
	return "delete or prune images, run zarf-registry garbage-collect, or " + raise
}

// Describe returns a usage for messages, such as "96.1 % of the volume is used, 19.2 GB of 20 GB".
func Describe(scope string, u Usage) string {
	return fmt.Sprintf("%.1f %% of the %s is used, %s of %s", u.Percent(), scope, FormatBytes(u.Used),
		FormatBytes(u.Limit))
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
