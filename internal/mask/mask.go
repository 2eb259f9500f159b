// Package mask replaces secrets in decoded documents, such as the files of container runtimes, the values of a chart
// and Kubernetes objects, by [Redacted]: everything below keys that hold credentials or TLS keys, the data of Secrets,
// environment variables with the name of a secret, user information and parameters of URLs, and private keys.
//
// It does not search texts for the values of secrets.
package mask

import (
	"fmt"
	"regexp"
	"strings"
)

// Redacted replaces secrets.
const Redacted = "<REDACTED>"

// keys are those whose values are secrets, in lower case and without separators.
var keys = map[string]bool{
	"username": true, "password": true, "token": true, "identitytoken": true, "registrytoken": true, "auth": true,
	"auths": true, "authorization": true, "header": true, "headers": true, // credentials of registries
	"keyfile": true, "client": true, "tlskey": true, "privatekey": true, // TLS keys
	"htpasswd": true, "accesskey": true, "secretkey": true, "secretaccesskey": true,
}

var (
	separators = strings.NewReplacer("_", "", "-", "", ".", "")
	// variable matches names of environment variables with secrets.
	variable = regexp.MustCompile(`(?i)pass|pwd|secret|token|key|credential|auth|dsn`)
	// userinfo matches the user and password of a URL, and noScheme those of one without a scheme. The last group is
	// what follows.
	userinfo = regexp.MustCompile(`(://)(?:[^\s"'@/<>]*@|[^\s"'@/:<>]*:[^\s"'@<>]*@)(\w*)`)
	noScheme = regexp.MustCompile(`(^|[\s"'=,(\[])[\w.+-]+:[^\s"'@/:]+@(\w*)`)
	// parameters matches a URL with parameters or a fragment.
	parameters = regexp.MustCompile(`(://[^\s"'?#]*[?#])[^\s"']+`)
)

// lastApplied is kubectl's copy of an object, which is dropped.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Document returns a masked copy of what encoding/json or gopkg.in/yaml.v2 decodes into an any. Null and empty strings
// are shown.
func Document(v any) any { return document(v, false) }

func document(v any, secret bool) any {
	switch v := v.(type) {
	case map[any]any:
		table := make(map[string]any, len(v))
		for key, value := range v {
			table[fmt.Sprint(key)] = value
		}
		return mapping(table, secret)
	case map[string]any:
		return mapping(v, secret)
	case []any:
		masked := make([]any, len(v))
		for i, item := range v {
			masked[i] = document(item, secret)
		}
		return masked
	case nil:
		return nil
	case string:
		if !secret || v == "" {
			return Text(v)
		}
	}
	if secret {
		return Redacted
	}
	return v
}

func mapping(v map[string]any, secret bool) map[string]any {
	masked := make(map[string]any, len(v))
	name, _ := v["name"].(string)
	for key, value := range v {
		if key == lastApplied {
			continue
		}
		masked[Text(key)] = document(value, secret || keys[separators.Replace(strings.ToLower(key))] ||
			v["kind"] == "Secret" && (key == "data" || key == "stringData") ||
			key == "value" && variable.MatchString(name))
	}
	return masked
}

// Text masks user information and parameters of URLs in a text. A text with a private key is masked as a whole.
func Text(text string) string {
	if strings.Contains(text, "PRIVATE KEY") {
		return Redacted
	}
	if strings.Contains(text, "@") {
		text = unlessDigest(noScheme, unlessDigest(userinfo, text))
	}
	return parameters.ReplaceAllString(text, "${1}"+Redacted)
}

// unlessDigest masks user information, unless it is the name and the tag of an image reference with a digest.
func unlessDigest(pattern *regexp.Regexp, text string) string {
	return pattern.ReplaceAllStringFunc(text, func(match string) string {
		groups := pattern.FindStringSubmatch(match)
		if groups[2] == "sha256" || groups[2] == "sha512" {
			return match
		}
		return groups[1] + Redacted + "@" + groups[2]
	})
}
