package cli

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

func TestAttemptsOfAJobShareItsTime(t *testing.T) {
	for name, c := range map[string]struct {
		name string
		ago  time.Duration
		want time.Duration
		// ahead is by how much the clock of the node is ahead of that of the control plane.
		ahead time.Duration
	}{
		"the first attempt":            {"r-finish", 2 * time.Second, 238 * time.Second, 0},
		"a later one gets the rest":    {"r-finish", 3 * time.Minute, time.Minute, 0},
		"one that comes too late":      {"r-finish", 5 * time.Minute, 0, 0},
		"a node whose clock is ahead":  {"r-finish", 3 * time.Minute, time.Minute, 5 * time.Minute},
		"a node whose clock is behind": {"r-finish", 3 * time.Minute, time.Minute, -5 * time.Minute},
		"a Job that does not exist":    {"other", time.Minute, 4 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &hookFlags{timeout: 4 * time.Minute}
				f.settings.Namespace = "zarf"
				begin := time.Now()
				// The pod was created a second ago, and the kubelet has seen it at once.
				pod := func(name string, ago time.Duration) *corev1.Pod {
					return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf",
						Labels:            map[string]string{"batch.kubernetes.io/job-name": c.name},
						CreationTimestamp: metav1.NewTime(begin.Add(-ago - c.ahead))},
						Status: corev1.PodStatus{StartTime: &metav1.Time{Time: begin.Add(-ago)}}}
				}
				client := fake.NewClientset(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: c.name, Namespace: "zarf"},
					Status: batchv1.JobStatus{StartTime: &metav1.Time{Time: begin.Add(-c.ago - c.ahead)}}},
					pod("failed", c.ago), pod("own", time.Second))
				ctx, stop := f.limitByJob(t.Context(), client, "r-finish", slog.New(slog.DiscardHandler))
				defer stop()
				<-ctx.Done()
				if took := time.Since(begin); took != c.want {
					t.Errorf("the run may take %s, want %s", took, c.want)
				}
				if !exitcode.IsRefusal(context.Cause(ctx)) {
					t.Error("the Job would retry")
				}
				if why := context.Cause(ctx).Error(); !errors.Is(ctx.Err(), context.DeadlineExceeded) ||
					!strings.Contains(why, "not done within 4m0s of the start of Job zarf/r-finish") {
					t.Errorf("the cause is %s", why)
				}
			})
		})
	}
}
