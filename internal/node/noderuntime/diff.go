package noderuntime

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"gopkg.in/yaml.v2"

	"github.com/zarf-dev/zarf-registry/internal/mask"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// Diff describes the change of a file, with secrets masked: the whole new file if old is nil, otherwise a unified
// diff, which is against an empty file if new is nil. It is empty if nothing changes.
func Diff(path string, kind Kind, old, new []byte) string {
	if old != nil && new != nil && bytes.Equal(old, new) {
		return ""
	}
	if old == nil {
		return Masked(kind, new)
	}
	diff := udiff.Unified("OLD "+path, "NEW "+path, Masked(kind, old), Masked(kind, new))
	if diff == "" && new != nil {
		return fmt.Sprintf("%s: only masked values, comments, order or layout changed\n", path)
	}
	return diff
}

// Masked returns the content of a file as YAML, without comments and with secrets masked, and a line for each
// certificate of a PEM file. It is empty if data is nil.
func Masked(kind Kind, data []byte) string {
	if data == nil {
		return ""
	}
	if kind == KindCA {
		if lines, ok := certificates(data); ok {
			return lines
		}
	} else if document, err := parse(kind, data); err == nil {
		if text, err := yaml.Marshal(mask.Document(document)); err == nil {
			return string(text)
		}
	}
	return fmt.Sprintf("(%d bytes of invalid %s: not shown)\n", len(data), kind)
}

func parse(kind Kind, data []byte) (any, error) {
	if kind == KindRegistries {
		var document any
		err := yaml.Unmarshal(data, &document)
		return document, err
	}
	return parseTOML(data)
}

// certificates returns a line per certificate of a PEM file, and false if it contains anything else.
func certificates(data []byte) (string, bool) {
	var lines strings.Builder
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return lines.String(), len(bytes.TrimSpace(data)) == 0
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			return "", false
		}
		fmt.Fprintf(&lines, "certificate %q, SHA-256 %s, until %s\n", cert.Subject, pki.Fingerprint(cert)[:16],
			cert.NotAfter.UTC().Format(time.DateOnly))
		data = rest
	}
}
