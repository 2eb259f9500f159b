package nodeimages_test

import (
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/nodeimages"
)

func list(images ...nodeimages.Image) []nodeimages.Image { return images }

func image(size int64, names ...string) nodeimages.Image {
	return nodeimages.Image{Names: names, SizeBytes: size}
}

func TestChoose(t *testing.T) {
	for description, c := range map[string]struct {
		images []nodeimages.Image
		except []string
		want   string
	}{
		"the newest pause image": {
			list(image(1, "registry.k8s.io/pause:3.9"), image(9, "registry.k8s.io/pause:3.10.1"), image(0, "a/b:1")),
			nil, "registry.k8s.io/pause:3.10.1",
		},
		"a tag before a digest of the same image": {
			list(image(1, "registry.k8s.io/pause@sha256:aa", "registry.k8s.io/pause:3.9")), nil, "registry.k8s.io/pause:3.9",
		},
		"a digest, if there is no tag": {
			list(image(1, "example.com/pause@sha256:aa", "<none>:<none>"), image(0, "a/b:1")), nil, "example.com/pause@sha256:aa",
		},
		"the next pause image": {
			list(image(1, "a/pause:3.9"), image(1, "a/pause:3.10")), []string{"a/pause:3.10"}, "a/pause:3.9",
		},
		"the smallest image after the only pause image": {
			list(image(1, "a/pause:3.9"), image(30, "a/big:1"), image(20, "a/small:1")), []string{"a/pause:3.9"}, "a/small:1",
		},
		"the smallest image": {list(image(30, "a/big:1"), image(20, "a/small:1", "a/small@sha256:bb")), nil, "a/small:1"},
		"none of this registry": {
			list(image(1, "127.0.0.1:31999/pause:3.9"), image(1, "[::1]:31999/pause:3.9"), image(5, "a/b:1")), nil, "a/b:1",
		},
		"nothing without names": {list(image(1, "<none>@<none>")), nil, ""},
		"nothing if all failed": {list(image(1, "a/b:1")), []string{"a/b:1"}, ""},
		"nothing of no images":  {nil, nil, ""},
	} {
		if got := nodeimages.Choose(c.images, c.except...); got != c.want {
			t.Errorf("%s: %q, want %q", description, got, c.want)
		}
	}
}

func TestComplete(t *testing.T) {
	full := make([]nodeimages.Image, nodeimages.MaxReported)
	for description, c := range map[string]struct {
		images []nodeimages.Image
		want   bool
	}{
		"no list yet":               {nil, false},
		"a short list":              {full[1:], true},
		"a truncated list":          {full, false},
		"a full list with pause":    {append(list(image(1, "a/pause:3")), full[1:]...), true},
		"a full list with pauseful": {append(list(image(1, "a/pauseful:3")), full[1:]...), false},
	} {
		if got := nodeimages.Complete(c.images); got != c.want {
			t.Errorf("%s: %t", description, got)
		}
	}
	if images := list(image(1, "a:1", "b:1")); !nodeimages.Reported(images, "b:1") || nodeimages.Reported(images, "c:1") {
		t.Error("Reported is wrong")
	}
}
