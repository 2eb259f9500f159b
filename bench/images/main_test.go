package main

import (
	"bufio"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries/registriestest"
)

// tiny is the scale of sets for tests.
const tiny = 0.0005

func tinySet(t *testing.T, seed uint64) *imageSet {
	t.Helper()
	set, err := makeSet(registriestest.Memory(t), seed, tiny)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSet(t *testing.T) {
	one, same, other := tinySet(t, 1), tinySet(t, 1), tinySet(t, 2)
	equal := func(a, b ocispec.Descriptor) bool { return a.Digest == b.Digest && a.Size == b.Size }
	if !slices.EqualFunc(one.blobs, same.blobs, equal) {
		t.Error("equal seeds give different sets")
	}
	if slices.EqualFunc(one.blobs, other.blobs, equal) {
		t.Error("different seeds give equal sets")
	}
	layers := families * (len(baseLayers) + members*len(ownLayers))
	if got, want := len(one.blobs), layers+2*families*members; got != want || want != 330 {
		t.Errorf("%d blobs, want %d", got, want)
	}
	for _, dir := range []string{one.layout, one.tagged, one.images[0].single} {
		if err := checkPulled(dir, one, true); err != nil {
			t.Errorf("the layout in %s: %v", dir, err)
		}
	}
	var sum, scales float64
	for _, scale := range familyScales {
		scales += scale
	}
	for _, size := range baseLayers {
		sum += size
	}
	for _, size := range ownLayers {
		sum += members * size
	}
	if got := sum * scales / 1e9; math.Abs(got-1.48) > 0.01 {
		t.Errorf("a full set has %.2f GB", got)
	}
}

func TestLargeImage(t *testing.T) {
	set, err := makeLarge(registriestest.Memory(t), 1, tiny)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.images) != 1 || len(set.blobs) != len(largeLayers)+2 {
		t.Errorf("%d images, %d blobs", len(set.images), len(set.blobs))
	}
	var sum float64
	for _, size := range largeLayers {
		sum += size
	}
	if sum != 1e9 {
		t.Errorf("a full image has %.0f bytes", sum)
	}
	if name := set.images[0].reference("127.0.0.1:31999"); name != "127.0.0.1:31999/bench/large:v1" {
		t.Errorf("the image is called %s", name)
	}
}

// Each tool runs one command per image, or one that names all of them.
func TestToolsTransferAllImages(t *testing.T) {
	set := tinySet(t, 1)
	for _, tool := range tools() {
		j := job{program: tool.name, host: "127.0.0.1:5000", set: set, dir: t.TempDir()}
		if err := j.configure(map[string][]byte{}, map[string][]byte{}); err != nil {
			t.Fatal(err)
		}
		listed, err := os.ReadFile(j.path(listFile))
		if err != nil {
			t.Fatal(err)
		}
		for operation, commands := range map[string][][]string{"push": tool.push(j), "pull": tool.pull(j, "out")} {
			text := ""
			for _, command := range commands {
				text += strings.Join(command, " ") + "\n"
			}
			if strings.Contains(text, set.layout) { // names all of them
				continue
			}
			text = strings.ReplaceAll(text, j.path(listFile), string(listed))
			for _, reference := range j.references() {
				if !strings.Contains(text, reference) {
					t.Errorf("%s: %s lacks %s", tool.name, operation, reference)
				}
			}
		}
	}
}

func TestMissingContentIsAnError(t *testing.T) {
	set := tinySet(t, 1)
	damaged := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, digest, _ := strings.Cut(r.URL.Path, "sha256:")
		if damaged && strings.Contains(r.URL.Path, set.images[39].repository) {
			digest = set.images[0].manifest.Digest.Encoded()
		}
		http.ServeFile(w, r, filepath.Join(set.layout, ocispec.ImageBlobsDir, "sha256", digest))
	}))
	defer server.Close()
	if err := hasManifests(t.Context(), server.Client(), server.URL, set); err != nil {
		t.Error(err)
	}
	damaged = true
	if err := hasManifests(t.Context(), server.Client(), server.URL, set); err == nil ||
		!strings.Contains(err.Error(), "not found in "+set.images[39].repository) {
		t.Errorf("a registry without a manifest passes the check: %v", err)
	}
	if _, err := measureOperation(t.Context(), [][]string{{"false"}}, t.TempDir(), os.Getpid(), nil); err == nil {
		t.Error("no error for a failing command")
	}
	blob := set.path(set.blobs[0].Digest)
	content, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	for description, damage := range map[string]func() error{
		"a blob with other content": func() error { return os.WriteFile(blob, make([]byte, len(content)), 0o600) },
		"a truncated blob":          func() error { return os.Truncate(blob, 1) },
		"no blob":                   func() error { return os.Remove(blob) },
	} {
		t.Run(description, func(t *testing.T) {
			if err := os.WriteFile(blob, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := checkPulled(set.layout, set, true); err != nil {
				t.Fatal(err)
			}
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			if err := checkPulled(set.layout, set, true); err == nil {
				t.Error("the damaged output passes the check")
			}
		})
	}
}

func TestOperationsAreMeasured(t *testing.T) {
	dir := t.TempDir()
	u, err := measureOperation(t.Context(), [][]string{
		{"bash", "-c", "for ((n = 0; n < 50000; n++)); do :; done"}, {"true"}}, dir, os.Getpid(), nil)
	if err != nil || u.seconds <= 0 || u.client <= 0 || u.registry <= 0 || u.clientMemory <= 0 || u.registryMemory <= 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestAddressesOfPortForward(t *testing.T) {
	var f forward
	err := f.addresses(bufio.NewScanner(strings.NewReader("Forwarding from 127.0.0.1:45001 -> 5000\nForwarding from " +
		"127.0.0.1:45002 -> 5001\n")))
	if err != nil || f.mutual != "127.0.0.1:45001" || f.plain != "127.0.0.1:45002" {
		t.Errorf("%+v, %v", f.mutual, err)
	}
	f = forward{}
	if err := f.addresses(bufio.NewScanner(strings.NewReader("Forwarding from 127.0.0.1:1 -> 5000\n"))); err == nil {
		t.Error("no error without the plain port")
	}
}

func TestBadInput(t *testing.T) {
	for description, tt := range map[string]struct {
		args []string
		want string
	}{
		"no size":          {[]string{"-scale", "0"}, "-scale"},
		"an argument":      {[]string{"crane"}, "positional arguments"},
		"too little space": {[]string{"-scale", "1e6"}, "are needed"},
		"no directory":     {[]string{"-dir", filepath.Join(t.TempDir(), "none")}, "none"},
		"an unknown tool":  {[]string{"-tools", "docker", "-scale", "0.0005"}, "docker"},
		"a missing tool": {[]string{"-tools", nameOurs, "-init-hook", filepath.Join(t.TempDir(), "none"), "-scale",
			"0.0005"}, "make bench-images"},
	} {
		t.Run(description, func(t *testing.T) {
			if err := bench(t.Context(), tt.args, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("bench(%q) = %v, want %q in it", tt.args, err, tt.want)
			}
		})
	}
}
