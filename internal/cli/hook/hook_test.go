package hook

import (
	"context"
	"encoding/json"
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

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
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
				f := &Flags{Timeout: 4 * time.Minute}
				f.Settings.Namespace = "zarf"
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

// jobSettings are settings that a Job accepts, with changes.
func jobSettings(changes ...func(*settings.Settings)) settings.Settings {
	s := settings.Settings{
		Namespace: "a", Release: "b", Name: "c", Mode: state.ModeProxy, ModeSource: state.SourceState,
		Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4, IPFamilySource: state.SourceDefault,
		Injector: settings.Injector{Enabled: true, PayloadID: "1", PauseRules: nodeimages.Rules{Digest: "^$", Name: "^$", Own: "^$"}},
		PKI: settings.PKI{Source: state.SourceValue, PKI: state.PKI{
			Mode: state.PKIInternal, LeafLifetime: state.Duration(2160 * time.Hour),
			CALifetime: state.Duration(8760 * time.Hour), ClusterDomain: "example.org",
		}},
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

// jobArguments are the arguments of a Job with settings.
func jobArguments(t *testing.T, step string, s settings.Settings, more ...string) []string {
	t.Helper()
	document := require.Value(json.Marshal(s))(t)
	return append([]string{step, "--settings=" + string(document), "--timeout=4m", "--log-format=json"}, more...)
}

func TestSettingsOfAJob(t *testing.T) {
	want := jobSettings(func(s *settings.Settings) {
		s.NodeConfig = settings.NodeConfig{Directories: []string{"/etc/containerd/certs.d", "/etc/containers"},
			DirectoriesInUse: []string{"/etc/containers"},
			RegistriesSecret: "corp", RegistriesKey: "registries.yaml", CA: true, DaemonSets: []string{"a", "b"}}
		s.Push.Secret = "mine"
	})
	got, err := settings.OfJob(jobArguments(t, "prepare", want))
	require.NoError(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	_, err = settings.OfJob(jobArguments(t, "prepare", jobSettings(func(s *settings.Settings) { s.Mode = "boat" })))
	if !exitcode.IsRefusal(err) || !strings.Contains(err.Error(), `invalid mode "boat"`) {
		t.Errorf("invalid settings: error is %v, want a refusal", err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing": {nil, "use the chart of the same version"},
		"an unknown setting": {[]string{"prepare", `--settings={"colour":"red"}`},
			`use the chart of the same version: decoding settings: json: unknown field "colour"`},
	} {
		if _, err := settings.OfJob(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.want)
		}
	}
}

func TestCleanupTakesSettingsOrTheNamesOfTheRelease(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string // in the error; "" means no error
	}{
		"settings":               {jobArguments(t, "cleanup", jobSettings())[1:], ""},
		"the defaults":           {nil, ""},
		"names":                  {[]string{"--namespace=a", "--release=b", "--name=c", "--pod-security-label"}, ""},
		"an impossible name":     {[]string{"--namespace=A"}, `invalid namespace "A"`},
		"invalid settings":       {[]string{"--settings={}"}, "invalid --settings: "},
		"settings and a name":    {[]string{"--settings={}", "--name=c"}, "--settings cannot be combined with --name"},
		"settings and the label": {[]string{"--settings={}", "--pod-security-label"}, "with --pod-security-label"},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewFlags(&cmdflags.Global{})
			cmd := f.cleanup()
			f.Attach(cmd)
			err := cmd.ParseFlags(c.args)
			if err == nil {
				err = f.validate(cmd.Flags())
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
}
