package images

import (
	"bytes"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/images"
)

func TestReferencesDoNotControlTheTerminal(t *testing.T) {
	var out bytes.Buffer
	list := render.List[images.Result]{Items: []images.Result{{Reference: "\x1b]0;\x07\u009b\u202e"}}}
	if err := render.Report(&out, render.FormatTable, render.TransferList, list, printReferences, nil); err != nil || strings.ContainsAny(out.String(), "\x1b\x07\u009b\u202e") {
		t.Errorf("it prints %q, %v", out.String(), err)
	}
}
