package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// cost counts requests to the API server since a node was created.
type cost struct {
	// byNode and byOthers count requests for objects in the release's namespace: by the node, and by
	// Kubernetes' controllers and scheduler. A watch counts once.
	byNode, byOthers int
	all              int // requests by the node in all namespaces
}

// readAudit counts the requests since begin in an audit log of level Metadata.
func readAudit(log io.Reader, begin time.Time, node, namespace string) (c cost, err error) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20) // lines contain the whole user
	watches := map[string]bool{}
	for scanner.Scan() {
		var event struct {
			AuditID, Verb, Stage     string
			RequestReceivedTimestamp time.Time
			User                     struct{ Username string }
			ObjectRef                struct{ Namespace, Resource string }
		}
		if err := json.Unmarshal(scanner.Bytes(), &event); err != nil {
			return c, fmt.Errorf("parsing the audit log: %w", err)
		}
		if event.RequestReceivedTimestamp.Before(begin) || watches[event.AuditID] {
			continue // a watch is logged twice: when it starts and when it ends
		}
		watches[event.AuditID] = event.Verb == "watch"
		user := event.User.Username
		if user == node {
			c.all++
		}
		switch {
		case event.ObjectRef.Namespace != namespace:
		case user == node:
			c.byNode++
		case user == "system:kube-scheduler", strings.HasPrefix(user, "system:serviceaccount:kube-system:"):
			c.byOthers++
		}
	}
	return c, scanner.Err()
}
