package mask

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
)

var (
	beginKey = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----`)
	endKey   = regexp.MustCompile(`-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----`)

	// token matches what is a secret by its own form: JSON Web Tokens; keys of AWS; tokens of GitHub and GitLab;
	// keys of age; hashes of htpasswd files.
	token = regexp.MustCompile(`\beyJ[\w-]{6,}\.[\w-]{6,}(\.[\w-]*)?|\b(AKIA|ASIA)[A-Z0-9]{16}\b|` +
		`\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}|` +
		`\$2[abxy]\$\d\d\$[./A-Za-z0-9]{20,}|\$apr1\$[^\s"':]+|\{SHA\}[A-Za-z0-9+/=]{20,}`)

	// header matches headers with credentials, up to the end of the value.
	header = regexp.MustCompile(
		`(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]*(?:token|auth|key))` +
			`(\\*["']?\s*[:=]\s*[\["'\\]*)([^"'\\\]]+)`)
	scheme = regexp.MustCompile(`(?i)\b(bearer|basic)(\s+)[A-Za-z0-9+/=._~-]{16,}`)

	// userinfo matches the user and password of a URL, which may lack a scheme. The last group is what follows.
	userinfo = regexp.MustCompile(`(://)([^\s"'@/<>]*@|[^\s"'@/:<>]*:[^\s"'@<>]*@)(\w*)`)
	noScheme = regexp.MustCompile(`(^|[\s"'=,(\[])([\w.+-]+:[^\s"'@/:]+@)(\w*)`)

	// assignment matches NAME=VALUE, "name": "value" and --flag VALUE, with the value in one of the last groups.
	assignment = regexp.MustCompile(`(?i)([\w.-]*(?:` + secretWords + `)|\bauth)` +
		`(\\*["']?\s*[:=]\s*)(?:(\\+")((?:[^"\\]|\\\\+[^"\\])*)|(")((?:[^"\\]|\\.)*)|(')([^']*)|([^\s"'\\]+))`)
	flag = regexp.MustCompile(`(?i)((?:^|[\s"'\[(,=])--?[\w.-]*(?:` + secretWords + `)` +
		`(?:\\*["']\s*,\s*\\*["']|\\*["']?\s+\\*["']?))([^\s"'\\-][^\s"'\\]*)`)

	// encodedPEM and encodedDocker match base64 of PEM files, and of docker's configuration.
	encodedPEM    = regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/_-]*=*`)
	encodedDocker = regexp.MustCompile(`(` + strings.Join(dockerStarts(), "|") + `)[A-Za-z0-9+/_-]*=*`)
)

// secretWords are the ends of names of secrets.
const secretWords = `password|passwd|passphrase|pwd|token|htpasswd|client[_-]?secret|` +
	`(?:secret|access|api|private|signing|encryption)[_-]?(?:access[_-]?)?key`

// dockerStarts returns the beginnings of base64 of docker's configuration.
func dockerStarts() []string {
	var all []string
	for _, start := range []string{`{"auth`, `{ "auth`, "{\n\t\"auth", "{\n  \"auth", "{\n    \"auth"} {
		all = append(all, base64.RawStdEncoding.EncodeToString([]byte(start))[:len(start)*8/6])
	}
	return all
}

// rule is a pattern of secrets.
type rule struct {
	// needs are parts of texts in lower case. The pattern, which is slow, is tried only if one of them is in a
	// line.
	needs []string
	mask  func(line string) string
}

var rules = []rule{
	{[]string{"ls0tls1crudjti"}, func(line string) string {
		return encodedPEM.ReplaceAllStringFunc(line, func(text string) string {
			// Certificates and public keys are shown.
			data, err := base64.StdEncoding.DecodeString(text)
			if err == nil && !strings.Contains(string(data), "PRIVATE") {
				return text
			}
			return Masked
		})
	}},
	{lower(dockerStarts()), func(line string) string { return encodedDocker.ReplaceAllLiteralString(line, Masked) }},
	{[]string{"eyj", "akia", "asia", "gh", "glpat-", "age-secret", "$2", "$apr1", "{sha}"}, func(line string) string {
		return token.ReplaceAllLiteralString(line, Masked)
	}},
	{[]string{"authorization", "cookie", "x-"}, func(line string) string {
		return replace(header, line, func(g []string) string {
			if value := strings.TrimSpace(g[3]); value == Masked || strings.HasPrefix(value, "<REDACTED>") {
				return g[0]
			}
			return g[1] + g[2] + Masked
		})
	}},
	{[]string{"bearer", "basic"}, func(line string) string { return scheme.ReplaceAllString(line, "${1}${2}"+Masked) }},
	{[]string{"@"}, func(line string) string {
		return replace(noScheme, replace(userinfo, line, unlessDigest), unlessDigest)
	}},
	{[]string{"pass", "pwd", "token", "htpasswd", "secret", "key", "auth"}, func(line string) string {
		line = replace(assignment, line, func(g []string) string {
			value := g[4] + g[6] + g[8] + g[9]
			if harmless(value) {
				return g[0]
			}
			return g[1] + g[2] + g[3] + g[5] + g[7] + Masked
		})
		return replace(flag, line, func(g []string) string {
			if harmless(g[2]) {
				return g[0]
			}
			return g[1] + Masked
		})
	}},
}

func lower(texts []string) []string {
	for i := range texts {
		texts[i] = strings.ToLower(texts[i])
	}
	return texts
}

// patterns masks what has the form of a secret.
func patterns(line string) string {
	folded := strings.ToLower(line)
	for _, r := range rules {
		if slices.ContainsFunc(r.needs, func(part string) bool { return strings.Contains(folded, part) }) {
			line = r.mask(line)
		}
	}
	return line
}

// replace replaces each match by the result of with for its groups, the whole match first.
func replace(pattern *regexp.Regexp, text string, with func(groups []string) string) string {
	var out strings.Builder
	done := 0
	for _, at := range pattern.FindAllStringSubmatchIndex(text, -1) {
		groups := make([]string, len(at)/2)
		for i := range groups {
			if at[2*i] >= 0 {
				groups[i] = text[at[2*i]:at[2*i+1]]
			}
		}
		out.WriteString(text[done:at[0]] + with(groups))
		done = at[1]
	}
	return out.String() + text[done:]
}

// unlessDigest masks the second group, unless it and the third are the tag and the digest of an image
// reference.
func unlessDigest(g []string) string {
	if g[3] == "sha256" || g[3] == "sha512" || g[2] == Masked+"@" {
		return g[0]
	}
	return g[1] + Masked + "@" + g[3]
}

var (
	constant = regexp.MustCompile(`^(?i:|true|false|null|nil|none|~|-|<redacted>.*|\d{1,4}|\d+(ms|s|m|h))[,;.)}\]]*$`)
	filePath = regexp.MustCompile(`^/[a-z][a-z0-9._-]*(/[a-z0-9._-]+)+$`)
)

// harmless reports whether the value of something that has the name of a secret is shown: it is masked
// already, a constant, the path of a file, or the begin of a nested value.
func harmless(value string) bool {
	return constant.MatchString(value) || filePath.MatchString(value) || strings.HasPrefix(value, Masked) ||
		strings.HasPrefix(value, "{") || strings.HasPrefix(value, "[") || value == "|" || value == ">"
}
