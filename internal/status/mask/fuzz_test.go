package mask_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/status/mask"
)

// FuzzWriter masks a text with a secret in it, in writes of any size: the result does not depend on them, and
// contains the secret in no form.
func FuzzWriter(f *testing.F) {
	f.Add("text with {} in it\nand {}\n", "s3cr3t-Value", uint8(3), uint8(0))
	f.Add("https://me:{}@host/ {}{}", "pa/ss:wo@rd", uint8(7), uint8(2))
	f.Add("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n{}", "MIIEvQIBADANBg", uint8(1), uint8(1))
	f.Add(`{"auth":"{}","x":"\"{}"}`, "x\\y\"zz\n second line", uint8(5), uint8(3))
	f.Fuzz(func(t *testing.T, text, secret string, size, form uint8) {
		m := mask.New()
		secret = strings.TrimSpace(secret)
		if !m.Add(secret) || len(secret) < mask.MinLength || strings.Contains(text, secret) ||
			strings.Contains(mask.Masked, secret) || strings.Contains(secret, "\n") {
			return
		}
		planted := secret
		switch form % 4 {
		case 1:
			planted = base64.StdEncoding.EncodeToString([]byte(secret))
		case 2:
			planted = base64.StdEncoding.EncodeToString([]byte("." + secret))
		case 3:
			planted = base64.RawURLEncoding.EncodeToString([]byte(".." + secret + "."))
		}
		text = strings.ReplaceAll(text, "{}", planted)
		var out bytes.Buffer
		w := m.Writer(&out)
		for data := []byte(text); len(data) > 0; {
			n := min(len(data), int(size)+1)
			if _, err := w.Write(data[:n]); err != nil {
				t.Fatal(err)
			}
			data = data[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if whole := m.String(text); whole != out.String() {
			t.Errorf("in writes of %d bytes: %q, in one: %q", int(size)+1, out.String(), whole)
		}
		// What masking joins is no occurrence: text before, "(masked)", text after.
		rest := strings.ReplaceAll(out.String(), mask.Masked, "\n")
		if strings.Contains(rest, secret) {
			t.Errorf("%q remains in %q", secret, out.String())
		}
		if strings.Contains(text, planted) && strings.Contains(rest, planted) {
			t.Errorf("%q, a form of %q, remains in %q", planted, secret, out.String())
		}
	})
}
