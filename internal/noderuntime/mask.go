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

// redacted stands for what is not shown.
const redacted = "<REDACTED>"

// mask is what may be shown of a text, and whether that is less than all of it. What does not look like what it should be is
// not shown: a value in the wrong place may be a secret.
func (m matter) mask(s string) (shown string, hidden bool) {
	ok := false
	switch m {
	case switched:
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
	yesNo        = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|y|n)$`) // YAML 1.1 has all of them
	namedFile    = regexp.MustCompile(`/|\.[a-z]{2,6}$`)                      // any word could be the name of a file
	repository   = regexp.MustCompile(`^[A-Za-z0-9._/${}-]+$`)
	safePath     = regexp.MustCompile(`^/?[A-Za-z0-9._+,@-]+(/[A-Za-z0-9._+,@-]+)*/?$`)
	safeLocation = regexp.MustCompile(`^[A-Za-z0-9._:/*\[\]-]*$`)
	knownHeader  = regexp.MustCompile(`(?i)^(authorization|proxy-authorization|cookie|user-agent|accept|x(-[a-z]+)+)$`)
	// words are what names of settings are made of, and tokens and most passwords are not.
	words     = regexp.MustCompile(`^[a-z]+([_-][a-z]+)*$`)
	schemes   = []string{"http", "https", "ftp", "unix", "docker", "oci"}
	plainPath = regexp.MustCompile(`^[A-Za-z0-9._~/-]*$`)
	word      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,39}$`)
)

// plainFile accepts paths, and neither a key nor a certificate itself, which people put there, too.
func plainFile(s string) bool { return len(s) <= 256 && safePath.MatchString(s) }

// bareWord says whether a host is one only because any word could be.
func bareWord(host string) bool {
	return host != "localhost" && host != "*" && !strings.ContainsAny(host, ".:")
}

// maskURL leaves out of a URL, whose scheme may be missing, who asks, and all that follows the path but names of parameters.
func maskURL(s string) (shown string, hidden bool) {
	u, err := parseEndpoint(s)
	if err != nil || u.Scheme == "" && bareWord(u.Host) {
		return redacted, true
	}
	if u.Scheme != "" && !slices.Contains(schemes, u.Scheme) || !plainPath.MatchString(u.EscapedPath()) {
		// A password with a slash in it makes a path of what follows.
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

// parseEndpoint reads a URL as K3s and containerd do: without a scheme, it begins with a host.
func parseEndpoint(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "//" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, errNoURL // url's own error has the URL in it
	}
	if !validHost(u.Host) {
		return nil, errNoURL
	}
	return u, nil
}

// validHost accepts host and host:port as image references have them.
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

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*$`)

// hostPattern accepts what registries.yaml may have for a host: one, all, or all below a domain.
func hostPattern(s string) bool { return s == "*" || validHost(strings.TrimPrefix(s, "*.")) }

// maskKey is what may be shown of a mapping's key, by what the mapping may have.
func (s *shape) maskKey(i item) (shown string, hidden bool) {
	key := i.key
	switch {
	case s.key == host && bareWord(key) && i.value.form != mapping:
		return redacted, true
	case s.each != nil:
		return s.key.mask(key)
	case s.fields[key] != nil:
		return key, false
	case word.MatchString(key) && s.guess(key) != "" || words.MatchString(key) && len(key) <= 24 && !s.private:
		return key, false
	}
	return redacted, true
}

var errNoURL = errors.New("is not a URL with a host")
