package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// cost is what was asked of the API server since a node began to be.
type cost struct {
	// ofNode are the node's own requests for objects of the release's namespace, a watch
	// counted once; ofOthers those of Kubernetes' controllers and scheduler.
	ofNode, ofOthers int
	// all are the node's requests for whatever.
	all int
}

// readAudit counts the requests since begin in an audit log of level Metadata.
func readAudit(log io.Reader, begin time.Time, node, namespace string) (c cost, err error) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20) // a line has all that is known of a user
	watches := map[string]bool{}
	for scanner.Scan() {
		var event struct {
			AuditID, Verb, Stage     string
			RequestReceivedTimestamp time.Time
			User                     struct{ Username string }
			ObjectRef                struct{ Namespace, Resource string }
		}
		if err := json.Unmarshal(scanner.Bytes(), &event); err != nil {
			return c, fmt.Errorf("a line of the audit log: %w", err)
		}
		if event.RequestReceivedTimestamp.Before(begin) || watches[event.AuditID] {
			continue // a watch is there when it begins, and when it ends
		}
		watches[event.AuditID] = event.Verb == "watch"
		user := event.User.Username
		in := event.ObjectRef.Namespace == namespace
		if user == node {
			c.all++
		}
		switch {
		case !in:
		case user == node:
			c.ofNode++
		case user == "system:kube-scheduler", strings.HasPrefix(user, "system:serviceaccount:kube-system:"):
			c.ofOthers++
		}
	}
	return c, scanner.Err()
}
