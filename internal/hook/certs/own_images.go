package certs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// maxOwnImages is how many digests are recorded: those of some 15 releases, so that a rollback finds its images
// accepted.
const maxOwnImages = 100

// OwnImages returns the digests of the project's own images to record: these, and then those that are recorded.
func OwnImages(digests, recorded []string) []string {
	all := slices.Clone(digests)
	for _, d := range recorded {
		if !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all[:min(len(all), maxOwnImages)]
}

// ownImages returns the recorded digests, which the registry serves to nodes without a signature; none if there is no
// state yet.
func (m *Manager) ownImages(ctx context.Context) ([]string, error) {
	_, s, err := m.LoadState(ctx)
	if err != nil || s == nil {
		return nil, err
	}
	return s.OwnImages, nil
}

// AwaitOwnImages waits until all ready registry pods that verify signatures know the recorded digests. It returns the
// number of these pods.
func (m *Manager) AwaitOwnImages(ctx context.Context) (int, error) {
	recorded, err := m.ownImages(ctx)
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256(ownImagesFile(recorded))
	want := hex.EncodeToString(sum[:])
	ctx, cancel := context.WithTimeout(ctx, waitTimeout(ctx, loadTimeout))
	defer cancel()
	return m.awaitPods(ctx, func() (int, map[string]string, error) { return m.knowOwnImages(ctx, want) },
		func(others map[string]string, _, ended error) error {
			return fmt.Errorf("waiting for pods %s to load the key %s of %s, without which they deny the project's own "+
				"images: see their log: %w", release.List(slices.Sorted(maps.Keys(others))), names.KeyOwnImages,
				m.Object("Secret", m.Settings.Name+names.SuffixRegistryAuth), ended)
		})
}

// knowOwnImages returns how many ready pods know the digests, and the others, with what is known about them.
func (m *Manager) knowOwnImages(ctx context.Context, want string) (know int, others map[string]string, err error) {
	pods, err := m.readyRegistries(ctx)
	if err != nil {
		return 0, nil, err
	}
	others = map[string]string{}
	for _, pod := range pods {
		report, err := m.QueryPod(ctx, &pod)
		switch {
		case err != nil:
			others[pod.Name] = err.Error()
		case report.Signatures == nil: // of the previous revision, which verified nothing
		case report.Signatures.OwnImages == want:
			know++
		default:
			others[pod.Name] = "it knows other digests"
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
