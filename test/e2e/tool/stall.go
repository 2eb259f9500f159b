package main

import (
	"encoding/json"
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
	Idle, Stalled time.Duration // 99th percentiles
	Requests      int
	Failed        int
	First         string // failure
}

// stall starts downloads of an image's largest blob, reads none of them, and measures other requests
// before and meanwhile.
func stall(base, image string, downloads int) error {
	repository, tag := split(image)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	manifest := base + "/v2/" + repository + "/manifests/" + tag
	body, _, err := get(client, manifest)
	if err != nil {
		return err
	}
	var parsed struct {
		Layers []struct {
			Digest string
			Size   int64
		}
	}
	if err := json.Unmarshal(body, &parsed); err != nil || len(parsed.Layers) == 0 {
		return fmt.Errorf("%s is not an image: %w", image, err)
	}
	largest := parsed.Layers[0]
	for _, l := range parsed.Layers {
		if l.Size > largest.Size {
			largest = l
		}
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
		fmt.Fprintf(c, "GET /v2/%s/blobs/%s HTTP/1.1\r\nHost: %s\r\n\r\n", repository, largest.Digest, target.Host)
	}
	result.Stalled = p99()
	return json.NewEncoder(os.Stdout).Encode(result)
}
