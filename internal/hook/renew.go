package hook

import (
	"context"
	"errors"
)

// Renew renews the certificates that are due, goes on with a change of authorities
// that is under way, and copies what has changed in Secrets of the user. It reads
// from the state what Prepare was told.
func (h *Hook) Renew(ctx context.Context) error { return errors.New("not written yet") }

// Rotate replaces all certificates, due or not, and with authority the authority
// that signs them as well; it returns when every pod has loaded them.
func (h *Hook) Rotate(ctx context.Context, authority bool) error {
	return errors.New("not written yet")
}

// Credential is one of the two user names and passwords.
type Credential string

// The credentials.
const (
	PushCredential Credential = "push"
	PullCredential Credential = "pull"
)

// RotateCredential replaces a credential that the hook made, and returns when the
// registry takes the new one.
func (h *Hook) RotateCredential(ctx context.Context, credential Credential) error {
	return errors.New("not written yet")
}
