package pki_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

func TestBundle(t *testing.T) {
	a, b, c := newCA(t, nil, "a").cert, newCA(t, nil, "b").cert, newCA(t, nil, "c").cert
	ab := pki.NewBundle(a, b, a)
	names := func(bundle pki.Bundle) string {
		var out []string
		for _, cert := range bundle.Certificates() {
			out = append(out, cert.Subject.CommonName)
		}
		return strings.Join(out, " ")
	}
	if got := names(ab); got != "a b" {
		t.Errorf("the bundle has %s", got)
	}
	if got := names(pki.NewBundle(c, b).Union(ab)); got != "c b a" {
		t.Errorf("the union has %s", got)
	}
	if got := names(ab); got != "a b" {
		t.Errorf("a union changed the bundle: it has %s", got)
	}
	ab.Certificates()[0] = c
	if got := names(ab); got != "a b" {
		t.Errorf("its certificates were changed from outside: it has %s", got)
	}
	read, err := pki.ParseBundle(ab.PEM())
	if err != nil || !bytes.Equal(read.PEM(), ab.PEM()) ||
		!slices.Equal(read.Fingerprints(), []string{pki.Fingerprint(a), pki.Fingerprint(b)}) {
		t.Errorf("read back it has %s (%v)", names(read), err)
	}
	for question, holds := range map[string]bool{
		"a bundle contains a part":          ab.Contains(pki.NewBundle(b)),
		"and itself":                        ab.Contains(ab),
		"and nothing":                       ab.Contains(pki.Bundle{}),
		"but not more":                      !ab.Contains(pki.NewBundle(b, c)),
		"order does not matter":             ab.Equal(pki.NewBundle(b, a)),
		"a part is not equal":               !ab.Equal(pki.NewBundle(a)),
		"nor is more":                       !pki.NewBundle(a).Equal(ab),
		"nothing is empty":                  pki.Bundle{}.Empty() && !ab.Empty(),
		"nothing is nothing in PEM":         len(pki.Bundle{}.PEM()) == 0,
		"what is trusted adds up in unions": pki.Bundle{}.Union(ab).Union(pki.Bundle{}).Equal(ab),
	} {
		if !holds {
			t.Errorf("%q does not hold", question)
		}
	}
}

func TestParseBundle(t *testing.T) {
	one := newCA(t, nil, "one")
	file := pki.NewBundle(one.cert).PEM()
	var certs []*x509.Certificate
	for i := range 30 {
		certs = append(certs, newCA(t, nil, fmt.Sprint("many ", i)).cert)
	}
	for name, c := range map[string]struct {
		file  []byte
		count int
		err   string
	}{
		"one":             {file, 1, ""},
		"twice the same":  {slices.Concat(file, file), 1, ""},
		"blank lines":     {slices.Concat([]byte("\n\n"), file, []byte(" \r\n"), file), 1, ""},
		"a union of many": {pki.NewBundle(certs...).PEM(), 30, ""},
		"empty":           {nil, 0, "the CA certificates are missing: the file is empty"},
		"blank":           {[]byte("\n"), 0, "the CA certificates are missing: the file is empty"},
		"rubbish":         {[]byte("hunter2"), 0, "parsing CA certificates: no PEM block found"},
		"rubbish behind": {slices.Concat(file, []byte("hunter2")), 0,
			"parsing CA certificates: there is something after PEM block 1: only PEM blocks may be in the file"},
		"a damaged one first": {slices.Concat([]byte("-----BEGIN CERTIFICATE-----\nhunter2!\n-----END CERTIFICATE-----\n"),
			file), 0, "parsing CA certificates: PEM block 1 is damaged"},
		"10 MB": {make([]byte, 10<<20), 0,
			"parsing CA certificates: 10485760 bytes are too many, the limit is 262144"},
		"a key": {pkcs8(t, one.key), 0,
			`parsing CA certificates: found a PEM block "PRIVATE KEY" where a certificate is expected`},
		"a leaf": {chainPEM(one.cert, sign(t, one, "leaf", one.key)), 0, `certificate "CN=leaf" is not a CA`},
		"one that cannot sign": {chainPEM(sign(t, nil, "mute", one.key, asCA,
			func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })), 0,
			`certificate "CN=mute" may not sign certificates: its key usages lack that`},
	} {
		t.Run(name, func(t *testing.T) {
			bundle, err := pki.ParseBundle(c.file)
			if got := len(bundle.Certificates()); got != c.count || (c.err == "") != (err == nil) || err != nil &&
				err.Error() != c.err {
				t.Errorf("got %d authorities and error %v, want %d and %q", got, err, c.count, c.err)
			}
		})
	}
}
