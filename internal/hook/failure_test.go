package hook_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// The API server fails one request of a run, once and not as an overloaded one does. The run reports it,
// unless it may do without the response.
func TestFailedRequestIsReported(t *testing.T) {
	t.Parallel()
	broken := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure,
		Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "etcd is corrupt"}}
	const probe, refresh = "delete pods zarf-registry-probe-N", "patch pods N" // best effort
	for name, c := range map[string]struct {
		setUp func(*testing.T) *bench
		run   func(*bench) error
		// unnoticed may fail: what is read again while waiting, and what is best effort.
		unnoticed []string
	}{
		"installation": {
			setUp: func(t *testing.T) *bench { return newBench(t) },
			run:   (*bench).prepareAndFinish,
			unnoticed: []string{probe, probe, "get deployments zarf-registry", "list daemonsets ", "list nodes ",
				"list nodes ", "list pods ", "list pods ", "list pods ", "list pods "},
		},
		"switch to a node port": {
			setUp: func(t *testing.T) *bench {
				b := installed(t)
				b.mode(state.ModeNodePort)
				return b
			},
			run: (*bench).prepareAndFinish,
			unnoticed: []string{probe, probe, "get deployments zarf-registry", "list endpointslices ", "list nodes ",
				"list pods ", "list pods ", "list pods ", "patch endpointslices zarf-registry-nodeport"},
		},
		"internal to existingSecret": {
			setUp: func(t *testing.T) *bench {
				b := installed(t)
				b.corp()
				b.pki(state.PKIExistingSecret)
				return b
			},
			run: func(b *bench) error { return b.hook.Prepare(b.Context()) },
			unnoticed: []string{"get secrets zarf-registry-state", refresh, refresh, refresh, // what the pods are missing
				"update secrets zarf-registry-state"},
		},
		"renewal with new user certificates": {
			setUp: func(t *testing.T) *bench {
				b := installed(t, func(b *bench) { b.corp(); b.pki(state.PKIExistingSecret) })
				b.corp()
				return b
			},
			run: (*bench).renew,
			unnoticed: append([]string{"get secrets zarf-registry-state"}, // to record the outcome
				slices.Repeat([]string{refresh}, 9)...),
		},
		"cleanup": {
			setUp: func(t *testing.T) *bench { return installed(t) },
			run:   func(b *bench) error { return b.hook.Cleanup(b.Context()) },
			// It warns that it does not know all directories on nodes.
			unnoticed: []string{"get secrets zarf-registry-state"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				whole := c.setUp(t)
				var requests []string
				whole.fail = func(request string) error {
					requests = append(requests, request)
					return nil
				}
				whole.must(c.run(whole))
				var unnoticed []string
				for n, request := range requests {
					if slices.Contains(requests[max(0, n-3):n], request) {
						continue // it polls
					}
					b := c.setUp(t)
					seen := 0
					b.fail = func(string) error {
						if seen++; seen == n+1 {
							return broken
						}
						return nil
					}
					switch err := c.run(b); {
					case err == nil:
						unnoticed = append(unnoticed, generated.ReplaceAllString(request, "${1}N"))
					case !strings.Contains(err.Error(), "etcd is corrupt"):
						t.Errorf("request %d, %s, failed, and the error is %v", n+1, request, err)
					}
				}
				if slices.Sort(unnoticed); !slices.Equal(unnoticed, c.unnoticed) {
					t.Errorf("these failed unnoticed:\n%q, want\n%q", unnoticed, c.unnoticed)
				}
			})
		})
	}
}

var generated = regexp.MustCompile(`^(delete pods zarf-registry-probe-|patch pods ).*`)
