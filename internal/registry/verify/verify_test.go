package verify

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
)

func TestResultsOfAVerificationBeforeAChangeDoNotCount(t *testing.T) {
	t.Parallel()
	var r results
	d, now := digest.FromString("image"), time.Now()
	memory := r.forRepository("a")
	r.forget("a")
	r.put(memory, d, verdict{}, now)
	if _, ok := r.get("a", d, now); ok {
		t.Error("a result from before the change counts")
	}
	if r.size != 0 {
		t.Errorf("%d results count that are not in memory", r.size)
	}
	r.put(r.forRepository("a"), d, verdict{}, now)
	if _, ok := r.get("a", d, now); !ok {
		t.Error("a result from after the change does not count")
	}
	for n := range maxResults + 1 {
		r.put(r.forRepository("b"), digest.FromString(fmt.Sprint(n)), verdict{}, now)
	}
	if n := len(r.known["b"].known); n > 10 {
		t.Errorf("%d results in memory", n)
	}
}

func TestImagesAreAuditedBeforeSignaturesAreEnforced(t *testing.T) {
	t.Parallel()
	store := &content.Store{Driver: inmemory.New(), Log: slog.New(slog.DiscardHandler)}
	open := func() *Verifier {
		return New(Enforce, t.TempDir(), "", store, true, store.Log)
	}
	v := open()
	if v.indexed() {
		t.Error("it does not wait for back links")
	}
	if !v.decide(t.Context()) || v.enforcing.Load() {
		t.Error("signatures are enforced before the stored images are audited")
	}
	if err := v.audit(t.Context()); err != nil || !v.enforcing.Load() || v.unsigned.Load() != 0 {
		t.Errorf("audit() = %v, enforcing %t, %d unsigned", err, v.enforcing.Load(), v.unsigned.Load())
	}
	if again := open(); !again.decide(t.Context()) || !again.enforcing.Load() {
		t.Error("a registry that restarts does not enforce signatures at once")
	}
}
