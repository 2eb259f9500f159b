package soak

import (
	"regexp"
	"strings"
)

// A Class is what a client saw of a failure.
type Class string

const (
	Refused      Class = "refused" // no connection
	Reset        Class = "reset"   // a connection that broke
	Timeout      Class = "timeout"
	Unavailable  Class = "5xx"
	NoSpace      Class = "507"
	Unauthorized Class = "401"
	Certificate  Class = "certificate"
	// Other is never excused: 403, 404, a wrong digest, and whatever is not listed here.
	Other Class = "other"
)

// statuses finds the status codes in messages of HTTP clients, such as "404 Not Found".
var statuses = regexp.MustCompile(`\b([45]\d\d) [A-Z]`)

// symptoms are parts of messages without a status, the first that matches decides.
var symptoms = []struct {
	class Class
	parts []string
}{
	// The first of an upload that the registry refused, the second of a push that has not begun.
	{NoSpace, []string{"refuses pushes (507)", "that the registry does not have, and it accepts"}},
	{Certificate, []string{"push certificate", "x509: "}},
	{Refused, []string{"connection refused", "no route to host", "network is unreachable", "no ready registry pod"}},
	{Timeout, []string{"timeout", "timed out", "deadline exceeded", "signal: killed"}}, // the last ends a push
	{Reset, []string{"connection reset", "broken pipe", "EOF", "lost connection"}},
}

// ClassOf returns the class of an error message. A status counts more than the reason that a proxy gives for
// it, and a client's error (4xx) more than any other.
func ClassOf(message string) Class {
	class := Other
	for _, match := range statuses.FindAllStringSubmatch(message, -1) {
		switch status := match[1]; {
		case status == "401":
			return Unauthorized
		case status[0] == '4':
			return Other
		case status == "507" || class == NoSpace:
			class = NoSpace
		default:
			class = Unavailable
		}
	}
	if class != Other {
		return class
	}
	for _, s := range symptoms {
		for _, part := range s.parts {
			if strings.Contains(message, part) {
				return s.class
			}
		}
	}
	return Other
}
