package heal

import (
	"context"
	"slices"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
)

// The passes of Once. For a moment after a replacement, the kubelet still reports the failure of the
// previous image, and while a kubelet writes a status, a patch meets a change.
const (
	maxPasses = 10
	passPause = time.Second
)

// Result is what Once did about a pod.
type Result struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
	// Action is Replace, also in a dry run, Wait or Report.
	Action Action `json:"action"`
	// Before is the image that is missing, Image its replacement.
	PreviousImage string `json:"previousImage"`
	Image         string `json:"image,omitempty"`
	Reason        string `json:"reason"`

	changed bool // the patch met a change
}

// Once replaces the images of the release's pods that wait for one, or says what it would replace with dryRun. It
// looks again, a few times, while pods wait; in a dry run, only if one changes meanwhile. It returns what
// it did about the pods that need another image. An error means that no further pod was looked at.
func Once(ctx context.Context, client *Client, rules nodeimages.Rules, dryRun bool) ([]Result, error) {
	results := []Result{}
	for n := 1; ; n++ {
		last := n == maxPasses
		found, err := once(ctx, client, rules, dryRun)
		// What was replaced stays in the results, and is not reported as waiting afterwards.
		results = slices.DeleteFunc(results, func(r Result) bool { return r.Action != Replace || dryRun })
		for _, r := range found {
			done := slices.ContainsFunc(results, func(before Result) bool { return before.Pod == r.Pod })
			if !done || r.Action == Report || last {
				results = append(results, r)
			}
		}
		again := slices.ContainsFunc(found, func(r Result) bool { return r.changed || r.Action == Wait && !dryRun })
		if err != nil || !again || last {
			return results, err
		}
		select {
		case <-ctx.Done():
			return results, ctx.Err()
		case <-time.After(passPause):
		}
	}
}

func once(ctx context.Context, client *Client, rules nodeimages.Rules, dryRun bool) ([]Result, error) {
	pods, err := client.list(ctx, client.unfinished())
	if err != nil {
		return nil, err
	}
	results := []Result{}
	for _, p := range pods {
		if waits, _ := p.Waits(); !waits {
			continue
		}
		d, _, err := client.decide(ctx, p, rules)
		if err != nil {
			return results, err
		}
		changed := false
		if d.Action == Nothing {
			continue
		}
		if d.Action == Replace {
			err := client.replace(ctx, p, d, dryRun)
			if changed = conflict(err); changed {
				d.Action, d.Image, d.Reason = Wait, "", "the pod changed meanwhile: run the command again"
			} else if err != nil {
				return results, err
			} else if !dryRun {
				// The replacement is what matters, and the output says it too.
				_ = client.event(ctx, p, eventReplaced, d.Reason)
			}
		}
		results = append(results, Result{Pod: p.Metadata.Name, Node: p.Spec.NodeName, Action: d.Action,
			PreviousImage: d.PreviousImage,
			Image:         d.Image, Reason: d.Reason, changed: changed})
	}
	return results, nil
}
