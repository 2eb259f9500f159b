package release

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

// PollInterval is the polling interval of waits: short enough to go unnoticed, and long enough for
// an API server that answers in milliseconds.
const PollInterval = 200 * time.Millisecond

// MaxConflicts limits consecutive update conflicts.
const MaxConflicts = 20

const (
	// overloadTries limits the attempts of a write while the API server is overloaded. With the delays
	// below they take about a minute.
	overloadTries = 8
	// overloadDelay is the first delay, doubled each time up to maxOverloadDelay, unless the server
	// suggests one.
	overloadDelay    = 250 * time.Millisecond
	maxOverloadDelay = 15 * time.Second
)

// RefuseForbidden turns a missing permission into a Refusal. The API server's message names the
// permission and the user that lacks it.
func RefuseForbidden(err error) error {
	if MissingPermission(err) {
		return exitcode.Refuse("%w; request that permission, or run this as a user who has it", err)
	}
	return err
}

// MissingPermission distinguishes a missing RBAC permission from other causes of a Forbidden error:
// quotas, Pod Security, policies.
func MissingPermission(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot ") &&
		strings.Contains(err.Error(), " resource ")
}

// Rejected reports whether the API server, a policy, a quota or a webhook rejected an object.
func Rejected(err error) bool {
	return err != nil && !MissingPermission(err) && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || strings.Contains(err.Error(), "webhook"))
}

// PortOutOfRange reports whether the API server rejected a node port because it is outside of the
// cluster's range: no Service can have it.
func PortOutOfRange(err error) bool {
	return err != nil && strings.Contains(err.Error(), "not in the valid range")
}

// PortAllocated reports whether the API server rejected a node port because a Service has it.
func PortAllocated(err error) bool {
	return err != nil && strings.Contains(err.Error(), "already allocated")
}

// QuotaExceeded reports whether a ResourceQuota has no room for an object.
func QuotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// IsConflict reports whether another writer changed the object first.
func IsConflict(err error) bool {
	return !exitcode.IsRefusal(err) &&
		(apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err))
}

// IsTransient reports whether an error may go away by itself because the API server is restarting
// or overloaded. A rejected request stays rejected.
func IsTransient(err error) bool {
	return !exitcode.IsRefusal(err) && (overloaded(err) || apierrors.ReasonForError(err) == metav1.StatusReasonUnknown)
}

// overloaded recognizes the responses of an overloaded API server. etcd's "too many requests"
// arrives quoted in an internal error.
func overloaded(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) && (strings.Contains(err.Error(), "too many requests") ||
			strings.Contains(err.Error(), "ResourceExhausted"))
}

// RetryOnConflict repeats a read-modify-write function while it hits update conflicts: the CronJob
// and an upgrade may run at the same time.
func RetryOnConflict(ctx context.Context, do func() error) error {
	for range MaxConflicts {
		if err := do(); !IsConflict(err) {
			return err
		}
		if err := Sleep(ctx, PollInterval); err != nil {
			return err
		}
	}
	return do()
}

// RetryOverload repeats a write while the API server is overloaded.
func RetryOverload(ctx context.Context, write func() error) error {
	delay := overloadDelay
	for try := 1; ; try++ {
		err := write()
		if err == nil || !overloaded(err) || try == overloadTries {
			return err
		}
		pause := delay + rand.N(delay/2)
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			pause = time.Duration(seconds)*time.Second + rand.N(delay/2)
		}
		if sleepErr := Sleep(ctx, pause); sleepErr != nil {
			return errors.Join(err, sleepErr)
		}
		delay = min(2*delay, maxOverloadDelay)
	}
}

// Sleep waits for d. It returns the context's error if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// listed limits how many objects a message names.
const listed = 10

// List formats several things for a message: it names the first and counts the rest.
func List(things []string) string {
	if more := len(things) - listed; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(things[:listed], "; "), more)
	}
	return strings.Join(things, "; ")
}

// ListNodes formats nodes for a message: "node n1", "nodes n1, n2".
func ListNodes(nodes []string) string {
	switch {
	case len(nodes) == 1:
		return "node " + nodes[0]
	case len(nodes) > listed:
		return fmt.Sprintf("nodes %s and %d more", strings.Join(nodes[:listed], ", "), len(nodes)-listed)
	}
	return "nodes " + strings.Join(nodes, ", ")
}
