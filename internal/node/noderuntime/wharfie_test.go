package noderuntime

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rancher/wharfie/pkg/registries"
	"gopkg.in/yaml.v2"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Below the owner's mark K3s' parser reads the same as without it, whatever the document
// starts and ends with.
func TestK3sIgnoresTheMark(t *testing.T) {
	const auth = "configs: \n  a:\n    auth:\n      username: u\n      password: "
	for _, document := range []string{
		auth + "p", auth + "p\n", auth + "|\n        p", auth + "|\n        p\n", auth + "|\n        p\n\n",
		auth + "|-\n        p", auth + "|+\n        p\n\n", auth + ">\n        p", auth + "!!binary aHVudGVyMg==",
		strings.ReplaceAll(auth, "\n", "\r\n") + "p\r\n", strings.ReplaceAll(auth, "\n", "\r") + "p",
		"%YAML 1.1\n---\n" + auth + "p\n...\n", "---\n" + auth + "p\n---\n", "# ours\n" + auth + "p # theirs",
	} {
		desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(document)})
		if err != nil {
			t.Errorf("%q: %v", document, err)
			continue
		}
		at := slices.IndexFunc(desired.Files, func(f File) bool { return f.Path == k3sFile })
		var alone, below registries.Registry
		require.NoError(t, yaml.Unmarshal([]byte(document), &alone))
		if err := yaml.Unmarshal(belowMark(desired.Files[at].Content), &below); err != nil {
			t.Errorf("%q: below the mark: %v", document, err)
		} else if diff := cmp.Diff(alone, below); diff != "" || below.Configs["a"].Auth == nil {
			t.Errorf("%q: below the mark:\n%s", document, diff)
		}
	}
}
