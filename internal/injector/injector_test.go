package injector_test

import (
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"

	"github.com/zarf-dev/zarf-registry/internal/injector"
)

func TestConfigMapName(t *testing.T) {
	got := injector.ConfigMapName(
		"zarf-registry", "0.1.0", injector.Program{Name: "registry-node", Architecture: "amd64"}, 0,
	)
	if want := "zarf-registry-payload-0.1.0-registry-node-amd64-00"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The rule for charts in the comment of PayloadID.
var chartRules = template.Must(template.New("").Funcs(sprig.TxtFuncMap()).Parse(
	`{{ define "tag" }}{{ regexReplaceAll "[-.]+$" (.tag | lower | replace "_" "-" | trunc 20) "" }}{{ end }}` +
		`{{ define "digest" }}{{ .digest | trimPrefix "sha256:" | trunc 12 }}{{ end }}`))

func TestPayloadIDMatchesCharts(t *testing.T) {
	digest := "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for input, want := range map[string]string{
		"0.1.0":                              "0.1.0",
		"v1.2.3-RC.1":                        "v1.2.3-rc.1",
		"snapshot_2026_11_20":                "snapshot-2026-11-20",
		"0.1.0-alpha.20261120":               "0.1.0-alpha.20261120",
		"0.1.0-alpha.2026112.":               "0.1.0-alpha.2026112",
		"0.1.0-alpha.20261120-abcdef1":       "0.1.0-alpha.20261120",
		"0123456789012345678-.x":             "0123456789012345678",
		"_x":                                 "-x",
		"x__":                                "x",
		"X-":                                 "x",
		"latest":                             "latest",
		"1" + strings.Repeat("-", 126) + "x": "1",
		digest:                               "0123456789ab",
	} {
		t.Run(input, func(t *testing.T) {
			got, err := injector.PayloadID(input)
			if err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
			rule := "tag"
			if input == digest {
				rule = "digest"
			}
			var chart strings.Builder
			if err := chartRules.ExecuteTemplate(&chart, rule, map[string]string{rule: input}); err != nil {
				t.Fatal(err)
			}
			if chart.String() != want {
				t.Errorf("a chart computes %q, want %q", &chart, want)
			}
		})
	}
}

func TestPayloadIDRefuses(t *testing.T) {
	for input, want := range map[string]string{
		"":                       `"" is neither an image tag nor a sha256 digest`,
		"a b":                    `"a b" is neither an image tag nor a sha256 digest`,
		".hidden":                `".hidden" is neither an image tag nor a sha256 digest`,
		"sha256:0123":            `"sha256:0123" is neither an image tag nor a sha256 digest`,
		strings.Repeat("x", 129): `"` + strings.Repeat("x", 129) + `" is neither an image tag nor a sha256 digest`,
		"___":                    `image tag "___" cannot be part of a ConfigMap's name: use another tag for the init-hook image`,
		"1..2":                   `image tag "1..2" cannot be part of a ConfigMap's name: use another tag for the init-hook image`,
		"1._2":                   `image tag "1._2" cannot be part of a ConfigMap's name: use another tag for the init-hook image`,
		"1-.2":                   `image tag "1-.2" cannot be part of a ConfigMap's name: use another tag for the init-hook image`,
	} {
		t.Run(input, func(t *testing.T) {
			if id, err := injector.PayloadID(input); err == nil || err.Error() != want {
				t.Errorf("got %q, %v\nwant %s", id, err, want)
			}
		})
	}
}
