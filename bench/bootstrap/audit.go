package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// cost is what was requested from the API server since a node was created.
type cost struct {
	// ofNode are the node's own requests for objects of the release's namespace, where a watch counts
	// once; ofOthers those of Kubernetes' controllers and scheduler.
	ofNode, ofOthers int
	// all are all requests of the node.
	all int
}

// readAudit counts the requests since begin in an audit log of level Metadata.
func readAudit(log io.Reader, begin time.Time, node, namespace string) (c cost, err error) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20) // a line has everything known about a user
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
			continue // a watch is logged when it begins and when it ends
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
