package certs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// maxOwnImages is how many digests are recorded: those of some 15 releases, so that a rollback finds its images
// accepted.
const maxOwnImages = 100

// RecordOwnImages records the digests of the project's own images in the state, in front of those that are already
// there, and hands all to the registry, which serves them to nodes without a signature. previous may be the digest
// of an earlier release's image; such releases recorded none.
func (k *Keeper) RecordOwnImages(ctx context.Context, digests []string, previous string) error {
	recorded, err := k.ownImages(ctx)
	if err != nil {
		return err
	}
	all := slices.Clone(digests)
	for _, d := range append(recorded, previous) {
		if d != "" && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	all = all[:min(len(all), maxOwnImages)]
	if err := k.AnnotateState(ctx, names.AnnotationOwnImages, strings.Join(all, " ")); err != nil {
		return err
	}
	return k.WriteRegistryAuth(ctx)
}

// ownImages returns the recorded digests; none if there is no state yet.
func (k *Keeper) ownImages(ctx context.Context) ([]string, error) {
	secret, err := k.Secret(ctx, k.Settings.Name+names.SuffixState)
	if err != nil || secret == nil {
		return nil, err
	}
	return strings.Fields(secret.Annotations[names.AnnotationOwnImages]), nil
}

// AwaitOwnImages waits until all ready registry pods that verify signatures know the recorded digests. It returns the
// number of these pods.
func (k *Keeper) AwaitOwnImages(ctx context.Context) (int, error) {
	recorded, err := k.ownImages(ctx)
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256(ownImagesFile(recorded))
	want := hex.EncodeToString(sum[:])
	ctx, cancel := context.WithTimeout(ctx, waitTimeout(ctx, loadTimeout))
	defer cancel()
	var refreshed time.Time
	for {
		know, others, err := k.knowOwnImages(ctx, want)
		if err == nil && len(others) == 0 {
			return know, nil
		}
		if err == nil && time.Since(refreshed) >= RefreshInterval {
			refreshed = time.Now()
			err = k.RefreshPods(ctx, others)
		}
		if err != nil && ctx.Err() == nil && !release.IsTransient(err) {
			return 0, err
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			return 0, fmt.Errorf("waiting for pods %s to load the key %s of %s, without which they deny the project's own "+
				"images: see their log: %w", release.List(others), names.KeyOwnImages,
				k.Object("Secret", k.Settings.Name+names.SuffixRegistryAuth), sleepErr)
		}
	}
}

// knowOwnImages returns how many ready pods know the digests, and the names of the others.
func (k *Keeper) knowOwnImages(ctx context.Context, want string) (know int, others []string, err error) {
	pods, err := k.ListPods(ctx, names.ComponentRegistry)
	if err != nil {
		return 0, nil, err
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || !release.PodReady(pod) {
			continue
		}
		report, err := k.QueryPod(ctx, &pod)
		switch {
		case err != nil:
			others = append(others, pod.Name)
		case report.Verification == nil: // of the previous revision, which verified nothing
		case report.Verification.OwnImages == want:
			know++
		default:
			others = append(others, pod.Name)
		}
	}
	return know, others, nil
}

// ownImagesFile is the file that the registry reads.
func ownImagesFile(digests []string) []byte {
	var file bytes.Buffer
	for _, d := range digests {
		file.WriteString(d + "\n")
	}
	return file.Bytes()
}
