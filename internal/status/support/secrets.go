package support

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// helmSecret is the type of the Secrets with Helm's releases, which helm reads.
const helmSecret = "helm.sh/release.v1"

// secrets learns the values of the namespace's Secrets and lists their keys and sizes.
func (c *collector) secrets(ctx context.Context) error {
	ctx, cancel := request(ctx)
	defer cancel()
	list, err := c.Client.CoreV1().Secrets(c.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type!=" + helmSecret})
	if err != nil {
		c.result.SecretsRead = false
		c.failed(ctx, "secrets.txt, and the values of Secrets to search for", err)
		return nil
	}
	list.Items = slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return s.Type == helmSecret })
	for i := range list.Items {
		c.learn(&list.Items[i])
	}
	return c.file("secrets.txt", func(w io.Writer) error {
		if c.unmasked {
			text, err := yaml.Marshal(list)
			fmt.Fprintf(w, "%s", text)
			return err
		}
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "NAME\tTYPE\tKEYS, WITH SIZES IN BYTES\tLABELS\n")
		for _, s := range list.Items {
			var keys []string
			for _, key := range slices.Sorted(maps.Keys(s.Data)) {
				keys = append(keys, fmt.Sprintf("%s (%d)", key, len(s.Data[key])))
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Name, s.Type, strings.Join(keys, ", "), metav1.FormatLabelSelector(
				&metav1.LabelSelector{MatchLabels: s.Labels}))
		}
		return table.Flush()
	})
}

// learn adds the values of a Secret to those that are searched for.
func (c *collector) learn(s *corev1.Secret) {
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		if !public(s, key) && !c.learnText(string(s.Data[key])) {
			c.result.Unsearched = append(c.result.Unsearched, fmt.Sprintf("Secret %s/%s, key %s", c.Namespace, s.Name, key))
		}
	}
}

// public reports whether the value of a key is no secret. Other files contain it.
func public(s *corev1.Secret, key string) bool {
	switch key {
	case names.KeyUsername, state.Key, names.KeyOwnImages:
		return true
	case corev1.ServiceAccountNamespaceKey:
		return s.Type == corev1.SecretTypeServiceAccountToken
	case "sum": // pods have it, too
		return s.Labels[names.LabelComponent] == names.ComponentNodeConfig
	}
	return publicPEM(s.Data[key])
}

// publicPEM reports whether data contains certificates and public keys only.
func publicPEM(data []byte) bool {
	blocks := 0
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return blocks > 0 && strings.TrimSpace(string(data)) == ""
		}
		if block.Type != "CERTIFICATE" && block.Type != "PUBLIC KEY" {
			return false
		}
		blocks, data = blocks+1, rest
	}
}

var (
	// hashed matches a line of an htpasswd file.
	hashed = regexp.MustCompile(`^[^:\s]+:(\$\S+|\{SHA\}\S+)$`)
	// random matches what may be generated, unlike most names of objects, which have hyphens and no capitals.
	random   = regexp.MustCompile(`^([A-Za-z0-9+/=]{20,}|[A-Za-z0-9_-]{20,})$`)
	capital  = regexp.MustCompile(`[A-Z]`)
	digit    = regexp.MustCompile(`\d`)
	compound = regexp.MustCompile(`[_-]`)
)

// learnText adds the secrets in a value, which may be a document. It returns false if it is too short.
func (c *collector) learnText(text string) bool {
	text = strings.TrimSpace(text)
	if document, ok := parse(text); ok {
		if !strings.Contains(text, "\n") {
			c.mask.Add(text) // it may be a password in brackets
		}
		c.mask.Values(document) // learns what has the key of a secret
		c.learnDocument(document, shown(text, document))
		return true
	}
	for line := range strings.Lines(text) {
		if m := hashed.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			c.mask.Add(m[1])
		}
	}
	return c.mask.Add(text)
}

// parse decodes YAML, JSON or TOML with more than a scalar.
func parse(text string) (any, bool) {
	if !utf8.ValidString(text) || !strings.ContainsAny(text, "\n{[") {
		return nil, false
	}
	var document any
	if yaml.Unmarshal([]byte(text), &document) == nil {
		switch document.(type) {
		case map[string]any, []any:
			return document, true
		}
	}
	var table map[string]any
	if toml.Unmarshal([]byte(text), &table) == nil && len(table) > 0 {
		return table, true
	}
	return nil, false
}

// Keys of the configuration files of container runtimes.
var (
	registriesKeys = []string{"mirrors", "configs", "auths"}
	hostsKeys      = []string{"server", "host", "capabilities", "ca", "client", "skip_verify", "header", "override_path",
		"dial_timeout", "rewrite"}
)

// shown returns the masked form of a configuration file of a container runtime; empty for other documents.
func shown(text string, document any) string {
	table, _ := document.(map[string]any)
	for _, of := range []struct {
		kind noderuntime.Kind
		keys []string
	}{{noderuntime.KindRegistries, registriesKeys}, {noderuntime.KindHosts, hostsKeys}} {
		unknown := slices.ContainsFunc(slices.Collect(maps.Keys(table)), func(key string) bool {
			return !slices.Contains(of.keys, key)
		})
		if len(table) > 0 && !unknown {
			return shownFile(of.kind, text)
		}
	}
	return ""
}

// learnDocument adds the strings of a document that look random, those that are documents themselves and, with
// the masked form of the document, those that it lacks.
func (c *collector) learnDocument(v any, shown string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			c.learnDocument(key, shown)
			c.learnDocument(value, shown)
		}
	case []any:
		for _, value := range v {
			c.learnDocument(value, shown)
		}
	case string:
		if _, nested := parse(v); nested || shown != "" && !strings.Contains(shown, v) ||
			random.MatchString(v) && digit.MatchString(v) && (capital.MatchString(v) || !compound.MatchString(v)) {
			c.learnText(v)
		}
	}
}
