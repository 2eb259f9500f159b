package noderuntime

import (
	"errors"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// redacted replaces what is not shown.
const redacted = "<REDACTED>"

// mask returns what may be shown of a string and whether that is less than all of it. Values of
// unexpected form are hidden: a misplaced value may be a secret.
func (m valueType) mask(s string) (shown string, hidden bool) {
	ok := false
	switch m {
	case toggle:
		ok = yesNo.MatchString(s)
	case host:
		if ok = hostPattern(s); !ok {
			if strings.Contains(s, "://") {
				return maskURL(s)
			}
			if i := strings.LastIndexByte(s, '@'); i >= 0 && hostPattern(s[i+1:]) {
				return redacted + s[i:], true
			}
		}
	case endpoint, deprecatedAuth:
		return maskURL(s)
	case pattern:
		ok = len(s) <= 256 && !strings.ContainsFunc(s, unicode.IsControl)
	case replacement:
		ok = len(s) <= 256 && strings.ContainsAny(s, "/$") && repository.MatchString(s) // any word could be a repository
	case certificate:
		ok = plainFile(s) && (s[0] == '/' || namedFile.MatchString(s))
	case capability:
		ok = slices.Contains(capabilities, strings.ToLower(s))
	case duration:
		_, err := time.ParseDuration(s)
		ok = err == nil
	case headerName:
		ok = knownHeader.MatchString(s)
	case location:
		name, _, _ := strings.Cut(strings.TrimPrefix(s, "*."), "/")
		ok = validHost(name) && safeLocation.MatchString(s)
	case choice:
		ok = slices.Contains([]string{"enforcing", "permissive", "disabled", "all", "digest-only", "tag-only"}, s)
	}
	if ok {
		return s, false
	}
	return redacted, true
}

var (
	capabilities = []string{"pull", "resolve", "push", "referrers"}
	yesNo        = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|y|n)$`) // the booleans of YAML 1.1
	namedFile    = regexp.MustCompile(`/|\.[a-z]{2,6}$`)                      // any word could be a file name
	repository   = regexp.MustCompile(`^[A-Za-z0-9._/${}-]+$`)
	safePath     = regexp.MustCompile(`^/?[A-Za-z0-9._+,@-]+(/[A-Za-z0-9._+,@-]+)*/?$`)
	safeLocation = regexp.MustCompile(`^[A-Za-z0-9._:/*\[\]-]*$`)
	knownHeader  = regexp.MustCompile(`(?i)^(authorization|proxy-authorization|cookie|user-agent|accept|x(-[a-z]+)+)$`)
	// words matches names of settings, but not tokens and most passwords.
	words     = regexp.MustCompile(`^[a-z]+([_-][a-z]+)*$`)
	schemes   = []string{"http", "https", "ftp", "unix", "docker", "oci"}
	plainPath = regexp.MustCompile(`^[A-Za-z0-9._~/-]*$`)
	word      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,39}$`)
)

// plainFile accepts paths, but not keys and certificates, which users also put there.
func plainFile(s string) bool { return len(s) <= 256 && safePath.MatchString(s) }

// bareWord reports whether host is a valid host only because any word is.
func bareWord(host string) bool {
	return host != "localhost" && host != "*" && !strings.ContainsAny(host, ".:")
}

// maskURL removes user information and everything after the path except parameter names from a URL,
// which may lack a scheme.
func maskURL(s string) (shown string, hidden bool) {
	u, err := parseEndpoint(s)
	if err != nil || u.Scheme == "" && bareWord(u.Host) {
		return redacted, true
	}
	if u.Scheme != "" && !slices.Contains(schemes, u.Scheme) || !plainPath.MatchString(u.EscapedPath()) {
		// If a password contains a slash, its rest looks like a path.
		return redacted, true
	}
	if u.Scheme != "" {
		shown = u.Scheme + "://"
	}
	if u.User != nil {
		shown, hidden = shown+redacted+"@", true
	}
	shown += u.Host + u.EscapedPath()
	if u.RawQuery != "" || u.ForceQuery {
		shown, hidden = shown+"?"+maskQuery(u.RawQuery), true
	}
	if u.Fragment != "" {
		shown, hidden = shown+"#"+redacted, true
	}
	return shown, hidden
}

func maskQuery(query string) string {
	parts := strings.Split(query, "&")
	for i, part := range parts {
		if name, _, found := strings.Cut(part, "="); found && words.MatchString(name) {
			parts[i] = name + "=" + redacted
		} else {
			parts[i] = redacted
		}
	}
	return strings.Join(parts, "&")
}

// parseEndpoint parses a URL like K3s and containerd: without a scheme, it starts with the host.
func parseEndpoint(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "//" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, errNoURL // url's error contains the URL
	}
	if !validHost(u.Host) {
		return nil, errNoURL
	}
	return u, nil
}

// validHost accepts host and host:port as in image references.
func validHost(s string) bool {
	name, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		name, port = s[:i], s[i+1:]
		if p, err := strconv.Atoi(port); err != nil || p < 1 || p > 65535 || port[0] == '+' || port[0] == '0' {
			return false
		}
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		addr, err := netip.ParseAddr(name[1 : len(name)-1])
		return err == nil && addr.Is6() && addr.Zone() == ""
	}
	return len(name) <= 253 && hostName.MatchString(name)
}

var hostName = regexp.MustCompile(
	`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*$`,
)

// hostPattern accepts the hosts that registries.yaml supports: a host, all hosts, or a domain's
// subdomains.
func hostPattern(s string) bool { return s == "*" || validHost(strings.TrimPrefix(s, "*.")) }

var errNoURL = errors.New("not a URL with a host")
