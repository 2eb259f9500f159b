package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/clusters"
)

// First arguments that make the program pull on a node.
const (
	pullMode  = "pull"
	firstMode = "first-pull"
)

// pullPause is the pause between the pulls of a loop. It limits the accuracy of gaps.
const pullPause = 50 * time.Millisecond

// pulls is the result of a pull loop.
type pulls struct {
	Pulls, Failed int
	First         string        // the first failure
	Gap           time.Duration // the longest time between the ends of two successful pulls
}

// add records the end of a pull.
func (p *pulls) add(err error, last, now time.Time) time.Time {
	p.Pulls++
	if err != nil {
		p.Failed++
		if p.First == "" {
			p.First = err.Error()
		}
		return last
	}
	p.Gap = max(p.Gap, now.Sub(last))
	return now
}

// pullUntil pulls an image in a loop, each time over new connections, until a file exists. It prints
// the result as JSON.
func pullUntil(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 3 {
		return errors.New("usage: pull HOST:PORT REPOSITORY:TAG STOP-FILE")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // in case the parent has died
	defer cancel()
	repository, tag, _ := strings.Cut(args[1], ":")
	// Failures are not retried, unlike in a container runtime.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	var seen pulls
	last := time.Now()
	for ctx.Err() == nil {
		if _, err := os.Stat(args[2]); err == nil {
			return json.NewEncoder(out).Encode(seen)
		}
		err := pull(ctx, client, "http://"+args[0]+"/v2/"+repository, tag)
		last = seen.add(err, last, time.Now())
		_ = clusters.Sleep(ctx, pullPause)
	}
	return errors.New("the stop file did not appear")
}

// pull pulls an index, the manifest for this architecture, and its config and layers, and verifies
// every digest.
func pull(ctx context.Context, client *http.Client, repository, tag string) error {
	var index struct {
		Manifests []struct {
			Digest   string
			Platform struct{ Architecture string }
		}
	}
	body, err := get(ctx, client, repository+"/manifests/"+tag)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &index); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	for _, m := range index.Manifests {
		if m.Platform.Architecture != runtime.GOARCH {
			continue
		}
		type blob struct{ Digest string }
		var manifest struct {
			Config blob
			Layers []blob
		}
		body, err := get(ctx, client, repository+"/manifests/"+m.Digest)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(body, &manifest); err != nil {
			return fmt.Errorf("manifest: %w", err)
		}
		for _, b := range append(manifest.Layers, manifest.Config) {
			body, err := get(ctx, client, repository+"/blobs/"+b.Digest)
			if err != nil {
				return err
			}
			if sum := sha256.Sum256(body); "sha256:"+hex.EncodeToString(sum[:]) != b.Digest {
				return fmt.Errorf("digest mismatch: %s", b.Digest)
			}
		}
		return nil
	}
	return fmt.Errorf("%s has no image for %s", tag, runtime.GOARCH)
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header["Accept"] = []string{"application/vnd.oci.image.index.v1+json",
		"application/vnd.oci.image.manifest.v1+json"}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return body, err
}

// firstPull makes the node's container runtime pull an image, retries until that succeeds, and prints
// the time as JSON.
func firstPull(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: first-pull IMAGE TIMEOUT")
	}
	timeout, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		output, err := exec.CommandContext(ctx, "crictl", "pull", args[0]).CombinedOutput()
		if err == nil {
			return json.NewEncoder(out).Encode(time.Now())
		}
		if sleepErr := clusters.Sleep(ctx, pullPause); sleepErr != nil {
			return fmt.Errorf("pulling %s: %w: %s", args[0], err, output)
		}
	}
}
