package nodeconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zarf-dev/zarf-registry/internal/node/hostfiles"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
)

// maxReport is the kubelet's limit for a termination message in bytes. Truncated JSON would be
// invalid.
const maxReport = 4096

// count adds the changes to the report.
func (r *run) count(plan *hostfiles.Plan) {
	for _, c := range plan.Changes {
		switch {
		case c.Action == hostfiles.Unchanged:
			r.report.Unchanged++
		case !c.Done:
			continue
		case c.Action == hostfiles.Restored:
			r.report.Restored++
		case c.Action == hostfiles.Removed:
			r.report.Removed++
		default:
			r.report.Written++
		}
		gone := c.Action == hostfiles.Restored || c.Action == hostfiles.Removed
		written := r.tree.Modified(c.Path)
		if !gone && !c.Foreign && written.After(r.report.Changed) {
			r.report.Changed = written
		}
		if r.kind(c.Path) != noderuntime.KindRegistries {
			continue
		}
		registries := &noderuntime.RegistriesReport{Path: c.Path, Changed: written}
		if gone {
			// The restored file has its original modification time.
			registries = &noderuntime.RegistriesReport{Path: c.Path, Changed: time.Now(), Gone: true}
		}
		// An existing file takes precedence over a removed one, as when nodeConfig.k3s.path was changed.
		if r.report.Registries == nil || r.report.Registries.Gone {
			r.report.Registries = registries
		}
	}
}

// WriteReport writes a report to a file, which may exist, as a termination message does.
func WriteReport(file string, report noderuntime.Report) error {
	if err := os.WriteFile(file, Encode(report), 0o600); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// Encode returns a report as JSON that fits into a termination message. It drops excess warnings,
// then truncates the error. The log contains both completely.
func Encode(report noderuntime.Report) []byte {
	left := 0
	warnings := report.Warnings
	for {
		if left > 0 {
			report.Warnings = append(
				warnings[:len(warnings)-left:len(warnings)-left], fmt.Sprintf("and %d more, see the log", left),
			)
		}
		data := encode(report)
		switch {
		case len(data) < maxReport:
			return data
		case left < len(warnings):
			left++
		case report.Error != "":
			report.Error = shorten(report.Error, (len(data)-maxReport)/6) // JSON escapes a byte with up to six
		default:
			return data // paths of thousands of bytes, which no node has
		}
	}
}

func encode(report noderuntime.Report) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // else <REDACTED> would be three times as long
	_ = encoder.Encode(report)   // plain data, to memory
	return out.Bytes()
}

// shorten removes at least by bytes from the end.
func shorten(text string, by int) string {
	const mark = " …"
	text = strings.TrimSuffix(text, mark)
	keep := max(0, len(text)-by-len(mark)-1)
	for keep > 0 && !utf8.RuneStart(text[keep]) {
		keep--
	}
	if keep == 0 {
		return ""
	}
	return text[:keep] + mark
}
