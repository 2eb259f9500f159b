package status_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/status"
)

// started asks a server that answers in the API server's place.
func started(t *testing.T, answer http.HandlerFunc) (time.Time, error) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return status.KubeletStarted(client.CoreV1().RESTClient())(ctx, "n1")
}

func TestTheStartOfAKubeletIsReadAndNoMore(t *testing.T) {
	when, err := started(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/n1/proxy/metrics" {
			t.Errorf("it asks for %s", r.URL)
		}
		fmt.Fprint(w, "# HELP process_start_time_seconds Start time\n# TYPE process_start_time_seconds "+
			"gauge\nprocess_start_time_seconds_of_another 1\nprocess_start_time_seconds 1.79523e+09\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done() // there would be more
	})
	if want := time.Unix(1_795_230_000, 0); err != nil || !when.Equal(want) {
		t.Errorf("it was started at %s, want %s; %v", when, want, err)
	}
}

func TestAKubeletThatDoesNotSay(t *testing.T) {
	answers := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"has no such metric":    {answers("a 1\n"), "missing process_start_time_seconds"},
		"has a metric of words": {answers("process_start_time_seconds soon\n"), `invalid process_start_time_seconds "soon"`},
		"has a metric of zero":  {answers("process_start_time_seconds 0\n"), `invalid process_start_time_seconds "0"`},
		"has no number":         {answers("process_start_time_seconds NaN\n"), `invalid process_start_time_seconds "NaN"`},
		"has one endless line":  {answers(strings.Repeat("x", 1<<20)), "token too long"},
		"never comes to it": {func(w http.ResponseWriter, _ *http.Request) {
			line := strings.Repeat("x", 1023) + "\n"
			for range 128 << 10 { // the double of what is read
				if _, err := io.WriteString(w, line); err != nil {
					return
				}
			}
		}, "more than 67108864 bytes before process_start_time_seconds"},
		"is gone": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
			"requesting the metrics of the kubelet of node n1"},
	} {
		t.Run(name, func(t *testing.T) {
			if when, err := started(t, c.answer); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %v", when, err)
			}
		})
	}
	_, err := started(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"nodes \"n1\" is forbidden","code":403}`)
	})
	if !apierrors.IsForbidden(err) {
		t.Errorf("forbidden is %v", err)
	}
}
