package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"
)

// stalled is what the program prints: latencies of small requests without and with stalled downloads.
type stalled struct {
	Idle     time.Duration   // 99th percentile
	Stalled  []time.Duration // 99th percentiles of rounds
	Slowest  []time.Duration // of the idle round and of each other
	Requests int
	Failed   int
	First    string // failure
}

// stallRounds is how often latencies are measured while downloads are stalled.
const stallRounds = 5

// stall starts downloads of an image's largest blob, reads none of them, and measures other requests
// before and meanwhile.
func stall(base, image string, downloads int) error {
	repository, tag := split(image)
	// The first request after the downloads waits until all of them have begun: a thousand handshakes, which take
	// seconds on an idle machine and over a minute on one that is busy with other scenarios.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Minute}
	manifest := base + "/v2/" + repository + "/manifests/" + tag
	largest, err := largestBlob(client, base+"/v2/"+repository+"/manifests/", tag)
	if err != nil {
		return err
	}
	var result stalled
	p99 := func() time.Duration {
		var took []time.Duration
		for range 500 {
			begin := time.Now()
			if _, _, err := get(client, manifest); err != nil {
				if result.Failed++; result.Failed == 1 {
					result.First = err.Error()
				}
			}
			took = append(took, time.Since(begin))
		}
		result.Requests += len(took)
		slices.Sort(took)
		result.Slowest = append(result.Slowest, took[len(took)-1])
		return took[len(took)*99/100]
	}
	result.Idle = p99()
	target, err := url.Parse(base)
	if err != nil {
		return err
	}
	for range downloads {
		c, err := net.Dial("tcp", target.Host)
		if err != nil {
			return err
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /v2/%s/blobs/%s HTTP/1.1\r\nHost: %s\r\n\r\n", repository, largest, target.Host)
	}
	for range stallRounds {
		result.Stalled = append(result.Stalled, p99())
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// largestBlob returns the digest of the largest layer of an image, or of the first image of an index.
func largestBlob(client *http.Client, manifests, reference string) (digest string, err error) {
	body, _, err := get(client, manifests+reference)
	if err != nil {
		return "", err
	}
	var manifest struct {
		Manifests []struct{ Digest string }
		Layers    []struct {
			Digest string
			Size   int64
		}
	}
	switch err := json.Unmarshal(body, &manifest); {
	case err != nil:
		return "", err
	case len(manifest.Manifests) > 0:
		return largestBlob(client, manifests, manifest.Manifests[0].Digest)
	case len(manifest.Layers) == 0:
		return "", errors.New(reference + " is not an image")
	}
	largest := manifest.Layers[0]
	for _, l := range manifest.Layers {
		if l.Size > largest.Size {
			largest = l
		}
	}
	return largest.Digest, nil
}
