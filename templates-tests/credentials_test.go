package templates

import (
	"strings"
	"testing"
)

// Who may write team-a/app here replaces docker.io/team-a/app, too, where that comes from here.
//
// Claim: A push credential with repositories replaces images of other registries only if the values permit
// it.
func TestLimitedCredentialsDoNotReplaceMirroredImagesUnasked(t *testing.T) {
	const limited, allowed = "auth.push=[{name: ci, repositories: [team-a]}]",
		"auth.push=[{name: ci, repositories: [team-a], mayReplaceMirrored: true}]"
	for name, tt := range map[string]struct {
		sets   []string
		denied string // the cause that the error names
	}{
		"mirrors":                              {[]string{limited, "nodeConfig.mirrors=[docker.io]"}, "nodeConfig.mirrors"},
		"rewriting":                            {[]string{limited, "rewrite.enabled=true"}, "rewrite.enabled"},
		"mirrors, and the user agrees":         {[]string{allowed, "nodeConfig.mirrors=[docker.io]"}, ""},
		"rewriting, and the user agrees":       {[]string{allowed, "rewrite.enabled=true"}, ""},
		"neither":                              {[]string{limited}, ""},
		"mirrors, and an unlimited credential": {[]string{"auth.push=[{name: ci}]", "nodeConfig.mirrors=[docker.io]"}, ""},
	} {
		_, err := rendering{values: proxyMode(t, tt.sets...)}.try(t)
		if tt.denied == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		want := "zarf-registry: auth.push: credential ci may write team-a, where nodes also pull images of other registries, " +
			"because of " + tt.denied + "; "
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
