package stored

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// What comes from a registry controls the terminal in no row of any command.
func TestRowsDoNotControlTheTerminal(t *testing.T) {
	const evil = "e\x1b]52;c;ZXZpbA==\x07\u009b31m\u202e"
	facts := &storedFacts{Problem: evil + "\nFAKE"}
	problem := `{"problem":{"kind":"damaged","digest":"\u001b","images":[{"repository":"\u009b","tag":"\u202e"}]}}` +
		"\n" + `{"result":{"problems":1}}` + "\n"
	removed := `{"removed":{"repository":"\u009b","digest":"\u001b"}}` + "\n" + `{"result":{}}` + "\n"
	answering := func(answer string) (http.RoundTripper, release.PushAccess) {
		return newTLSServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }),
			release.PushAccess{ServerName: "r", Username: "me", Password: "secret"}
	}
	for name, write := range map[string]func(io.Writer) error{
		"list": func(w io.Writer) error {
			return render.Report(w, render.FormatTable, render.ImageList,
				Images{Items: []Listed{{Reference: evil + "\nFAKE", storedFacts: facts}}},
				func(w io.Writer, list Images) error { return printStored(w, list, false) }, nil)
		},
		"list --repositories": func(w io.Writer) error {
			return render.Report(w, render.FormatTable, render.RepositoryList,
				repositoryList{Items: []listedRepository{{Repository: evil, storedFacts: facts}}}, printRepositories, nil)
		},
		"missing": func(w io.Writer) error {
			return render.Report(w, render.FormatTable, render.MissingImages, &missingReport{Images: []neededImage{{
				Reference: evil, Problem: facts.Problem, NeededBy: []string{evil}}}},
				func(w io.Writer, report *missingReport) error { return printMissing(w, report, false) }, nil)
		},
		"missing --output name": func(w io.Writer) error {
			return render.Report(w, render.FormatName, render.MissingImages,
				&missingReport{Images: []neededImage{{Origin: evil, NeededBy: []string{evil}}}}, printMissingNames, nil)
		},
		"prune": func(w io.Writer) error {
			return render.Report(w, render.FormatTable, render.ImageRemoval, &removal{
				Images: []removedImage{{References: []string{evil + "\nFAKE"}}}, Untagged: []string{evil}}, (&removalFlags{}).print, nil)
		},
		"scrub": func(w io.Writer) error {
			transport, access := answering(problem)
			f := scrubFlags{request: scrub.Request{Rate: 1000}, output: render.FormatTable}
			_ = f.scrub(t.Context(), transport, access, w, slog.New(slog.DiscardHandler))
			return nil
		},
		"garbage-collect": func(w io.Writer) error {
			transport, access := answering(removed)
			f := collectFlags{output: render.FormatTable}
			_ = f.collect(t.Context(), transport, access, w, slog.New(slog.DiscardHandler))
			return nil
		},
	} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text := out.String(); strings.ContainsAny(text, "\x1b\x07\u009b\u202e") || strings.Contains(text, "\nFAKE") ||
			!strings.Contains(text, `\u001b`) {
			t.Errorf("%s prints %q", name, text)
		}
	}
}
