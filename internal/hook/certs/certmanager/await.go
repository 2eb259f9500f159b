package certmanager

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// timeout is the wait timeout for cert-manager. An issuer in the cluster needs seconds; manual
	// approval takes longer than any run.
	timeout = 90 * time.Second
	// poll is the interval at which cert-manager's objects are read while waiting.
	poll = time.Second
)

// check returns why a Certificate is not done, "" if it is, and whether waiting is pointless.
type check func(context.Context, issued) (why string, failed bool, err error)

// pendingCertificate is a Certificate that is not done, and what its check said.
type pendingCertificate struct {
	issued
	why    string
	failed bool
}

// wait is one wait for Certificates.
type wait struct {
	*Client
	issuer state.Issuer
	leaves []Leaf
	check  check
	begin  time.Time
	// applied are the Certificates that this wait has applied.
	applied  map[string]bool
	waiting  []pendingCertificate // as of the last complete look
	lookErr  error                // of the last look
	reported string
}

// await applies the Certificates, and polls them until check returns no reason to wait for any of them.
func (c *Client) await(ctx context.Context, issuer state.Issuer, leaves []Leaf, check check) error {
	w := &wait{Client: c, issuer: issuer, leaves: leaves, check: check, begin: time.Now(), applied: map[string]bool{}}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		waiting, err := w.look(limited)
		switch {
		case err == nil && len(waiting) == 0:
			return nil
		case err == nil:
			w.waiting, w.lookErr = waiting, nil
		case limited.Err() == nil && !retryable(err):
			return err
		case limited.Err() == nil || w.lookErr == nil && w.waiting == nil:
			w.lookErr = err
		}
		if n := slices.IndexFunc(w.waiting, func(u pendingCertificate) bool { return u.failed }); n >= 0 {
			return c.notIssued(ctx, slices.Concat(w.waiting[n:], w.waiting[:n]), 0)
		}
		w.report()
		if release.Sleep(limited, poll) != nil {
			return w.timedOut(ctx)
		}
	}
}

// look returns the Certificates that are not done.
func (w *wait) look(ctx context.Context) (waiting []pendingCertificate, err error) {
	for _, leaf := range w.leaves {
		i, err := w.applyOnce(ctx, leaf)
		if err != nil {
			return nil, err
		}
		why, failed, err := w.check(ctx, i)
		if err != nil {
			return nil, err
		}
		if why != "" {
			waiting = append(waiting, pendingCertificate{i, why, failed})
		}
	}
	return waiting, nil
}

// applyOnce applies the Certificate of a leaf unless this wait has done so, and returns its current
// version. Applying it in each round would be a fight with whatever changes it meanwhile.
func (w *wait) applyOnce(ctx context.Context, leaf Leaf) (issued, error) {
	name := w.Settings.Name + leaf.Suffix
	i, foreign, err := w.read(ctx, name)
	switch {
	case err != nil:
		return i, err
	case len(foreign) > 0: // cert-manager would overwrite the Secret
		return i, w.NotOurs(foreign[0][0], foreign[0][1])
	case w.ReadOnly && i.Certificate == nil:
		return i, exitcode.Refuse("%s is missing, and this identity may not create it: run helm upgrade, which does",
			w.Object("Certificate", name))
	case w.ReadOnly, i.Certificate != nil && (w.applied[name] || i.DeletionTimestamp != nil):
		return i, nil
	}
	if i.Certificate, err = w.apply(ctx, w.wanted(w.issuer, leaf)); err == nil {
		w.applied[name] = true
	}
	return i, err
}

// report reports what is missing, when that changes.
func (w *wait) report() {
	missing := ""
	switch {
	case w.lookErr != nil:
		missing = w.lookErr.Error()
	case len(w.waiting) > 0:
		missing = w.Object("Certificate", w.waiting[0].Name) + ": " + w.waiting[0].why
	}
	if missing != w.reported {
		w.Progress.Waiting("cert-manager", missing)
		w.reported = missing
	}
}

// timedOut returns the error of a wait that has ended.
func (w *wait) timedOut(ctx context.Context) (err error) {
	took := time.Since(w.begin).Round(time.Second)
	switch {
	case len(w.waiting) == 0:
		err = fmt.Errorf("waiting %s for cert-manager: %w", took, w.lookErr)
	case w.lookErr != nil:
		err = fmt.Errorf("%w; and then %w", w.notIssued(ctx, w.waiting, took), w.lookErr)
	default:
		err = w.notIssued(ctx, w.waiting, took)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// retryable reports whether an error may be gone at the next poll: a conflict, or cert-manager's
// webhook, which starts last, is not ready yet.
func retryable(err error) bool {
	if exitcode.IsRefusal(err) {
		return false
	}
	return release.IsTransient(err) || apierrors.IsConflict(err) || apierrors.IsInternalError(err)
}
