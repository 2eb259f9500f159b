package request

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestErrorsAreNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		status int
		want   string
	}{
		{Denied("no"), http.StatusForbidden, `"DENIED","message":"no"`},
		{fmt.Errorf("waiting: %w", context.Canceled), http.StatusServiceUnavailable, "the request was canceled"},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, "the request was canceled"},
		{errors.New("disk gone"), http.StatusInternalServerError, `"UNKNOWN","message":"disk gone"`},
	} {
		w := httptest.NewRecorder()
		WriteError(w, tt.err)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%v: status %d, %s", tt.err, w.Code, w.Body)
		}
	}
}
