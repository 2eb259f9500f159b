package stored

import (
	"strings"
	"testing"
)

func TestImagesOfTheRegistryComplete(t *testing.T) {
	content := contents(map[string][]string{"library/nginx": {"1"}, "team/app": {"1", "2"},
		"zarf-registry/init-hook": {"0.1.0"}})
	content.Manifests[1].Repository = "team/app" // without a tag
	const address = "127.0.0.1:31999"
	for word, want := range map[string]string{
		"":                  "library/nginx:1 team/app:1 team/app:2 team/app@sha256:",
		"team/app:":         "team/app:1 team/app:2",
		"127.":              "127.0.0.1:31999/library/nginx:1 127.0.0.1:31999/team/app:1",
		"127.0.0.1:31999/t": "127.0.0.1:31999/team/app:1 127.0.0.1:31999/team/app:2",
	} {
		var got []string
		for _, reference := range references(content, address, word) {
			if strings.HasPrefix(reference, word) {
				got = append(got, reference)
			}
		}
		if text := strings.Join(got, " "); !strings.HasPrefix(text, want) || strings.Contains(text, "init-hook") {
			t.Errorf("%q completes to %s, want %s", word, text, want)
		}
	}
	if got := strings.Join(repositories(content, address, ""), " "); got != "library/nginx team/app" {
		t.Errorf("repositories complete to %s", got)
	}
}
