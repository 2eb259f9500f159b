package front

import (
	"testing"
	"time"
)

// Claim: Tokens expire and cannot be forged.
func TestSealedCredentials(t *testing.T) {
	t.Parallel()
	now := time.Now()
	expiry := now.Add(time.Minute)
	sealer := NewTokens("a secret that all replicas share")
	token := sealer.seal("user", "pass:word", expiry)
	if again := sealer.seal("user", "pass:word", expiry); again == token {
		t.Error("equal credentials have equal tokens")
	}
	replica := NewTokens("a secret that all replicas share")
	if user, password, ok := replica.open(token, expiry.Add(-time.Second)); !ok || user != "user" ||
		password != "pass:word" {
		t.Errorf("another replica opens %q, %q, %t", user, password, ok)
	}
	altered := []byte(token)
	altered[len(altered)/2] ^= 1
	for name, tt := range map[string]struct {
		tokens *Tokens
		token  string
		now    time.Time
	}{
		"expired":                 {sealer, token, expiry},
		"of another registry":     {NewTokens("another secret"), token, now},
		"altered":                 {sealer, string(altered), now},
		"cut off":                 {sealer, token[:len(token)-4], now},
		"shorter than its nonce":  {sealer, "YQ", now},
		"empty":                   {sealer, "", now},
		"not base64":              {sealer, "?", now},
		"that of nobody":          {sealer, anonymousToken, now},
		"a password in base64":    {sealer, "dXNlcjpwYXNzd29yZA", now},
		"with a suffix of spaces": {sealer, token + " ", now},
	} {
		if got, _, ok := tt.tokens.open(tt.token, tt.now); ok {
			t.Errorf("a token that is %s is accepted for %q", name, got)
		}
	}
}
