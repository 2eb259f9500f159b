package noderuntime

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"gopkg.in/yaml.v2"
)

// A document is a random registries.yaml or hosts.toml with unique secrets, so that a leaked one
// can be identified.
type document struct {
	*rand.Rand
	// correct documents are valid most of the time. Others have wrong types, unknown keys and broken
	// syntax.
	correct bool
	hosts   []string
	secrets []string
}

// secret returns a new secret, which is a plain word in YAML and TOML.
func (d *document) secret() string {
	s := fmt.Sprintf("S3cret%08xZz", d.Uint32())
	d.secrets = append(d.secrets, s)
	return s
}

func (d *document) wrong() bool { return !d.correct && d.IntN(12) == 0 }

func (d *document) pick(of ...string) string { return of[d.IntN(len(of))] }

func (d *document) host() string {
	h := d.pick(
		"docker.io", "quay.io", "ghcr.io", "registry.example.com:5000", "127.0.0.1:5000", "localhost", "*", "*.gcr.io",
		"10.0.0.1", "[fd00::1]:5000",
	)
	if d.wrong() {
		h = d.pick(
			"u:"+d.secret()+"@"+h, d.secret()+"/"+d.secret(), "https://"+d.secret()+":"+d.secret()+"@x", "@"+d.secret()+"@",
			d.secret()+" "+d.secret(),
		)
	}
	return h
}

func (d *document) url() string {
	u := d.pick("https://", "http://", "") + d.pick(
		"docker.io", "mirror.example.com", "127.0.0.1:5000", "[::1]:5000",
	) + d.pick("", "/", "/v2", "/prefix/v2", "/project")
	if d.correct {
		return u
	}
	scheme, rest, found := strings.Cut(u, "://")
	if !found {
		scheme, rest = "https", u
	}
	switch d.IntN(8) {
	case 0:
		u = scheme + "://" + d.secret() + ":" + d.secret() + "@" + rest
	case 1:
		u += "?token=" + d.secret() + "&" + d.secret()
	case 2:
		u += "#" + d.secret()
	case 3:
		u = scheme + ":/" + d.secret() + ":" + d.secret() + "@" + rest
	case 4:
		u = scheme + "://" + d.secret() + ":1/" + d.secret() + "@" + rest
	case 5:
		u = d.pick("ftp", "unix", "htps") + "://" + d.secret() + "@" + rest + " " + d.secret()
	}
	return u
}

// strange returns a misplaced value: one of another type that contains secrets.
func (d *document) strange() string {
	return d.pick(
		"{"+d.secret()+": "+d.secret()+"}", "["+d.secret()+", ["+d.secret()+"]]", "{a: {"+d.secret()+": ["+d.secret()+"]}}",
		"!!binary "+base64.StdEncoding.EncodeToString([]byte(d.secret())), "!!int "+d.secret(), "*"+d.secret(),
		"&a "+strconv.Quote(d.secret()+": "+d.secret()),
		"-----BEGIN "+d.secret(), "{"+d.secret()+"}", "\"\\"+d.secret(), "{? ["+d.secret()+"] : b}",
		"|\n        "+d.secret()+"\n        "+d.secret(),
	)
}

// secretValue returns a secret in its proper place.
func (d *document) secretValue() string {
	s := d.secret()
	switch {
	case d.wrong():
		return d.strange()
	case d.IntN(3) == 0:
		return strconv.Quote(s)
	case d.IntN(4) == 0:
		return "'" + s + ": " + d.secret() + "'"
	}
	return s
}

func (d *document) value(correct string) string {
	if d.wrong() {
		return d.strange()
	}
	return correct
}

func (d *document) registries() string {
	var b strings.Builder
	line := func(indent int, format string, args ...any) {
		if d.wrong() && d.IntN(8) == 0 {
			indent += d.IntN(3)
		}
		fmt.Fprintf(&b, strings.Repeat(" ", indent)+format+d.pick("", "", "", " # "+d.secret())+"\n", args...)
	}
	line(0, "mirrors:")
	used := map[string]bool{}
	for range d.IntN(4) {
		h := d.host()
		if used[h] && d.correct {
			continue
		}
		used[h] = true
		d.hosts = append(d.hosts, h)
		line(2, "%q:", h)
		if d.IntN(4) == 0 && !d.correct {
			line(4, "<<: {endpoint: [%q], %s: %s}", d.url(), d.secret(), d.secret())
		}
		line(4, "endpoint:")
		for range 1 + d.IntN(3) {
			line(6, "- %s", d.value(strconv.Quote(d.url())))
		}
		if d.IntN(2) == 0 {
			line(4, "rewrite:")
			line(6, "%q: %s", d.pick("^a/(.*)", `^\d"`, "(.*)"), d.value(`"b/$1"`))
		}
	}
	line(0, "configs:")
	used = map[string]bool{}
	for range d.IntN(4) {
		h := d.host()
		if used[h] && d.correct {
			continue
		}
		used[h] = true
		line(2, "%q:", h)
		if d.IntN(2) == 0 {
			line(4, "auth:%s", d.pick("", "", " &anchor"))
			for _, key := range []string{"username", "password", "identity_token", "token", "pasword", "registrytoken"} {
				if d.IntN(2) == 0 && (!d.correct || key != "pasword" && key != "registrytoken") {
					line(6, "%s: %s", key, d.secretValue())
				}
			}
			if d.IntN(3) == 0 {
				line(6, "auth: %s", base64.StdEncoding.EncodeToString([]byte(d.secret()+":"+d.secret())))
			}
			if d.wrong() {
				line(6, "%s: %s", d.secret(), d.secretValue())
			}
			if d.wrong() {
				line(6, "%s:%s", "password", d.secret())
			}
		} else if d.wrong() {
			line(4, "auth: %s", d.pick(d.strange(), d.secret(), "*anchor"))
		}
		if d.IntN(2) == 0 {
			line(4, "tls:")
			line(6, "insecure_skip_verify: %s", d.value("true"))
			line(6, "ca_file: %s", d.value("/etc/ssl/ca.pem"))
		}
	}
	if d.wrong() {
		line(0, "auths: {%q: {password: %s}}", "https://u:"+d.secret()+"@x", d.secretValue())
	}
	if d.wrong() {
		line(0, "configs: %s", d.strange())
	}
	if d.wrong() {
		line(0, "---\n%s: %s", d.secret(), d.secret())
	}
	return b.String()
}

func (d *document) tomlValue(correct string) string {
	if !d.wrong() {
		return correct
	}
	return d.pick(
		strconv.Quote(d.secret()), "["+strconv.Quote(d.secret())+"]", "{"+d.secret()+" = "+strconv.Quote(d.secret())+"}",
		d.secret(), "'"+d.secret(), "\"\\q"+d.secret()+"\"",
	)
}

func (d *document) toml() string {
	var b strings.Builder
	line := func(format string, args ...any) {
		fmt.Fprintf(&b, format+d.pick("", "", " # "+d.secret())+"\n", args...)
	}
	table := func(in string) {
		line("capabilities = %s", d.tomlValue(`["pull"]`))
		line("ca = %s", d.tomlValue(`"/etc/ssl/ca.pem"`))
		line("client = %s", d.tomlValue(`[["/etc/ssl/c.pem", "/etc/ssl/k.pem"]]`))
		line("skip_verify = %s", d.tomlValue("true"))
		line("dial_timeout = %s", d.tomlValue(`"10s"`))
		if d.wrong() {
			line("%s = %s", d.secret(), d.tomlValue("1"))
		}
		if d.wrong() {
			line("capabilities = [%q]", d.secret())
		}
		line("[%sheader]", in)
		for range d.IntN(3) {
			line(
				"%q = %s",
				d.pick("Authorization", "X-Token", "Basic "+d.secret(), d.secret()),
				d.pick(strconv.Quote(d.secret()), "["+strconv.Quote(d.secret())+"]", "{"+d.secret()+" = 1}"),
			)
		}
	}
	line("server = %s", d.tomlValue(strconv.Quote(d.url())))
	table("")
	for range d.IntN(3) {
		host := "host." + strconv.Quote(d.url())
		line("[%s]", host)
		table(host + ".")
	}
	if d.wrong() {
		line("[[registry]]\nlocation = %q\nprefix = %q", "u:"+d.secret()+"@x", d.secret()+" x")
	}
	return b.String()
}

// FuzzMask generates random documents. No secret may appear in any output, however invalid they
// are.
func FuzzMask(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, seed%5 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, correct bool) {
		d := &document{Rand: rand.New(rand.NewPCG(seed, 0)), correct: correct}
		before, after, hosts, more := d.registries(), d.registries(), d.toml(), d.toml()
		var seen []string
		for _, kind := range []Kind{KindRegistries, KindHosts, KindRegistriesConf, KindCA} {
			for _, pair := range [][2]string{{before, after}, {hosts, more}, {before, hosts}} {
				seen = append(
					seen, Diff("f", kind, []byte(pair[0]), []byte(pair[1])), Diff("f", kind, nil, []byte(pair[1])),
					Diff("f", kind, []byte(pair[0]), nil),
				)
			}
		}
		config := k3sConfig()
		config.Directories = append(config.Directories, certsDir)
		config.Address, config.Containerd = address, Containerd{
			Directories: []string{certsDir}, Hosts: map[string]string{"docker.io": hosts, d.host(): more},
		}
		config.Mirrors = []string{d.host(), "!" + d.host()}
		for _, document := range []string{before, after} {
			inputs := Inputs{Config: config, Registries: []byte(document), CheckTLS: func(string) error { return ErrNotMounted }}
			desired, err := Build(inputs)
			if again, errAgain := Build(inputs); !reflect.DeepEqual(desired, again) || errorText(err) != errorText(errAgain) {
				t.Errorf("two builds differ:\n%+v, %v\nand\n%+v, %v", desired, err, again, errAgain)
			}
			seen = append(seen, errorText(err))
			if desired == nil {
				continue
			}
			checkDesired(t, []byte(document), desired)
			seen = append(seen, desired.Warnings...)
			for _, file := range desired.Files {
				seen = append(
					seen, Diff(file.Path, file.Kind, nil, file.Content), Diff(file.Path, file.Kind, []byte(before), file.Content),
				)
			}
		}
		text := strings.Join(seen, "\n")
		for _, secret := range d.secrets {
			for _, form := range []string{secret, secret[:10], base64.RawStdEncoding.EncodeToString([]byte(secret))[:12]} {
				if strings.Contains(text, form) {
					at := strings.Index(text, form)
					t.Fatalf("%s of secret %s is contained in:\n%s", form, secret, text[max(0, at-300):min(len(text), at+100)])
				}
			}
		}
	})
}

// FuzzParse feeds arbitrary documents to the parsers. For a document that they accept, K3s' parser
// returns the same before and after, the output is deterministic, and values in the place of
// credentials are masked.
func FuzzParse(f *testing.F) {
	f.Add([]byte("mirrors: {x: {<<: *a}}"), []byte("[[a.b]]\nc = {d = [1]}"))
	f.Add([]byte("? {a: b}\n: c\n? [d]\n: e\n~: f\n"), []byte("\"a\\u0062\" = 1\nab = 2"))
	f.Add([]byte(
		"mirrors:\n  docker.io:\n    endpoint: [\"https://a.example\"]\nconfigs:\n  a.example:\n    auth:\n      "+
			"username: hunter0001\n      password: \"hunter0002\"\n",
	),
		[]byte(
			"server = \"https://a.example\"\n[host.\"https://b.example\"]\n  [host.\"https://b.example\".header]\n    "+
				"Authorization = [\"hunter0003\"]\n",
		))
	f.Add(
		[]byte("configs: {a: {auth: {auth: aHVudGVyMDAwMTpodW50ZXIwMDAy, pasword: hunter0004}}}"),
		[]byte("[header]\nx-a = 'hunter0005'\nhunter0006 = 1"),
	)
	f.Fuzz(func(t *testing.T, y, m []byte) {
		var shown []string
		for _, kind := range []Kind{KindRegistries, KindHosts, KindRegistriesConf, KindCA} {
			if Diff("f", kind, y, y) != "" {
				t.Errorf("%s differs from itself", kind)
			}
			for _, pair := range [][2][]byte{{y, m}, {nil, y}, {nil, m}, {m, nil}} {
				diff := Diff("f", kind, pair[0], pair[1])
				if again := Diff("f", kind, pair[0], pair[1]); again != diff {
					t.Errorf("two diffs of the same files differ:\n%s\n%s", diff, again)
				}
				shown = append(shown, diff)
			}
		}
		config := k3sConfig()
		config.Directories = append(config.Directories, certsDir)
		config.Containerd = Containerd{Directories: []string{certsDir}, Hosts: map[string]string{"docker.io": string(m)}}
		inputs := Inputs{Config: config, Registries: y}
		desired, err := Build(inputs)
		again, errAgain := Build(inputs)
		if !reflect.DeepEqual(desired, again) || errorText(err) != errorText(errAgain) {
			t.Errorf("two builds differ:\n%+v, %v\nand\n%+v, %v", desired, err, again, errAgain)
		}
		shown = append(shown, errorText(err))
		if err == nil {
			shown = append(shown, desired.Warnings...)
			checkDesired(t, y, desired)
		}
		Embedded(append([]byte(generatedMarks[0]+"\n"), m...))
		text := strings.Join(shown, "\n")
		for _, secret := range append(authIn(y), headersIn(m)...) {
			if strings.Count(string(y)+"\n"+string(m), secret) == 1 && strings.Contains(text, secret) {
				t.Errorf("%s is displayed in\n%s", secret, text)
			}
		}
	})
}

// checkDesired checks the result of Build for a registries.yaml.
func checkDesired(t *testing.T, registriesYAML []byte, desired *Desired) {
	t.Helper()
	before, err := readAsK3s(registriesYAML)
	if err != nil {
		t.Errorf("K3s cannot read an accepted document: %v", err)
	}
	found := false
	for _, file := range desired.Files {
		switch file.Kind {
		case KindRegistries:
			found = true
			if after, err := readAsK3s(append([]byte("# a mark\n"), file.Content...)); err != nil ||
				!reflect.DeepEqual(before, after) {
				t.Errorf("K3s reads\n%+v, %v\nwant\n%+v", after, err, before)
			}
		case KindHosts:
			if _, err := parseTOML(file.Content); err != nil {
				t.Errorf("%s: %v\n%s", file.Path, err, file.Content)
			}
		}
	}
	if !found {
		t.Error("registries.yaml was accepted but is not written")
	}
}

// likeSecret matches words that our own text does not contain. Others may appear by chance.
var likeSecret = regexp.MustCompile(`^[a-z]{4,}[0-9]{4,}[A-Za-z0-9]*$`)

// authIn returns the values below configs.HOST.auth of a document without aliases.
func authIn(document []byte) (secrets []string) {
	var doc struct {
		Configs map[string]struct{ Auth map[string]string }
	}
	if strings.ContainsAny(string(document), "*&") || yaml.Unmarshal(document, &doc) != nil {
		return nil
	}
	for _, config := range doc.Configs {
		for _, value := range config.Auth {
			if likeSecret.MatchString(value) {
				secrets = append(secrets, value)
			}
		}
	}
	return secrets
}

// headersIn returns the values of headers.
func headersIn(document []byte) (secrets []string) {
	var doc struct {
		Header map[string]any
		Host   map[string]struct{ Header map[string]any }
	}
	if toml.Unmarshal(document, &doc) != nil {
		return nil
	}
	add := func(header map[string]any) {
		for _, value := range header {
			list, _ := value.([]any)
			for _, value := range append(list, value) {
				if text, _ := value.(string); likeSecret.MatchString(text) {
					secrets = append(secrets, text)
				}
			}
		}
	}
	add(doc.Header)
	for _, host := range doc.Host {
		add(host.Header)
	}
	return secrets
}
