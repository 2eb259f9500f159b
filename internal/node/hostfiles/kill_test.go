package hostfiles

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var errKilled = errors.New("killed")

// stop ends a run at the nth system call, before or after it. It returns the hook and the call that
// was hit.
func stop(n int, after bool) (hook func(call, path string, after bool) error, hit *string) {
	hit = new(string)
	count := 0
	return func(call, path string, done bool) error {
		if *hit != "" {
			return errKilled
		}
		if done != after {
			return nil
		}
		if count++; count == n {
			*hit = call + " " + path
			return errKilled
		}
		return nil
	}, hit
}

// story is a tree and a sequence of desired states, followed by a restore.
type story struct {
	before files
	wants  []Desired
}

// The stories cover every kind of step.
var stories = map[string]story{
	"new files": {
		before: files{k3s + "/config.yaml": "a\n"},
		wants: []Desired{
			{Files: []File{want(docker, "d\n"), want(certs+"/docker.io/ca.crt", "c\n"), want(quay, "q\n"), want(yaml, "y\n")}},
		},
	},
	"replaced files, then changed, then fewer": {
		before: files{
			yaml: "old\n", docker: "generated\n", quay: "generated\n", certs + "/quay.io/ca.pem": "pem",
			certs + "/ghcr.io/ca.pem": "pem",
		},
		wants: []Desired{
			{
				Force: true,
				Files: []File{
					want(docker, "d1\n"), want(yaml, "y1\n"), want(certs+"/ghcr.io/hosts.toml", "g\n"),
					want(certs+"/new/hosts.toml", "n\n"),
				},
			},
			{Force: true, Files: []File{want(docker, "d2\n"), want(quay, "q\n"), want(certs+"/gcr.io/hosts.toml", "g\n")}},
			{Force: true, Files: []File{want(yaml, "y2\n")}},
		},
	},
}

// eachStage runs a test for each state of each story, and for the restore that follows.
func eachStage(t *testing.T, test func(t *testing.T, s story, stage int, w Desired)) {
	for description, s := range stories {
		for stage, w := range append(slices.Clone(s.wants), Desired{}) {
			t.Run(fmt.Sprintf("%s, stage %d", description, stage), func(t *testing.T) { test(t, s, stage, w) })
		}
	}
}

// reach runs the first n states of a story.
func reach(t *testing.T, s story, n int) (host string, before map[string]node) {
	t.Helper()
	host = newHost(t, s.before)
	before = snapshot(t, host)
	for _, w := range s.wants[:n] {
		mustRun(t, host, w)
	}
	return host, before
}

// A run is killed before and after each system call. Every file is then in its old or new state.
// The same run again reaches the same state as without the interruption, and so does an immediate
// restore, including inodes.
func TestKilledAtEveryCall(t *testing.T) {
	eachStage(t, func(t *testing.T, s story, stage int, w Desired) {
		host, _ := reach(t, s, stage)
		old := contents(snapshot(t, host))
		mustRun(t, host, w)
		end := contents(snapshot(t, host))

		for _, after := range []bool{false, true} {
			hits := 0
			for n := 1; ; n++ {
				host, before := reach(t, s, stage)
				hook, hit := stop(n, after)
				o := options(host)
				o.hook = hook
				_, err := run(o, w)
				if *hit == "" {
					require.NoError(t, err)
					break
				}
				hits++
				where := fmt.Sprintf("killed at %s (%d, after: %v)", *hit, n, after)
				wholeFiles(t, where, contents(snapshot(t, host)), old, end)

				plan, err := run(options(host), w)
				require.NoError(t, err, where, "the next run")
				if got := contents(snapshot(t, host)); got.String() != end.String() {
					t.Fatalf("%s: after the next run the tree is\n%s\nwant\n%s", where, got, end)
				}
				if plan == nil || len(plan.Warnings) > 0 {
					t.Errorf("%s: warnings %v", where, plan.Warnings)
				}
				if _, err := run(options(host), Desired{}); err != nil {
					t.Fatalf("%s: the restore: %v", where, err)
				}
				sameSnapshot(t, where+", run again, and restored", snapshot(t, host), before)

				host, before = reach(t, s, stage)
				o = options(host)
				o.hook, _ = stop(n, after)
				_, _ = run(o, w)
				if _, err := run(options(host), Desired{}); err != nil {
					t.Fatalf("%s: the immediate restore: %v", where, err)
				}
				sameSnapshot(t, where+", and restored", snapshot(t, host), before)
				if t.Failed() {
					return
				}
			}
			if hits < 20 {
				t.Errorf("only %d system calls were seen: the test checked nothing", hits)
			}
		}
	})
}

// wholeFiles checks that every file without a temporary name is complete.
func wholeFiles(t *testing.T, where string, got, old, end files) {
	t.Helper()
	names := map[string]bool{}
	for name := range old {
		names[name] = true
	}
	for name := range end {
		names[name] = true
	}
	for name, content := range got {
		if strings.Contains(name, temporarySuffix) {
			continue
		}
		was, hadIt := old[name]
		is, hasIt := end[name]
		// A file with neither its old nor its new content may be a backup or being restored from one.
		between := slices.Contains([]string{old[name+kept], end[name+kept], old[strings.TrimSuffix(name, kept)]}, content)
		whole := hadIt && content == was || hasIt && content == is || between
		if !whole {
			t.Errorf("%s: %s is %q, neither %q nor %q", where, name, content, was, is)
		}
	}
	for name := range names {
		if _, there := got[name]; there {
			continue
		}
		_, hadIt := old[name]
		_, hasIt := end[name]
		if hadIt && hasIt {
			t.Errorf("%s: %s is gone", where, name)
		}
	}
}

// Each system call fails once. Before the first write that is a refusal, and nothing changes.
// Later, the affected file is complete, and no temporary file is left.
func TestFailureOfEveryCall(t *testing.T) {
	reads := []string{"open", "lock", "lstat", "read", "readdir", "access", "readlink"}
	eachStage(t, func(t *testing.T, s story, stage int, w Desired) {
		host, _ := reach(t, s, stage)
		old := contents(snapshot(t, host))
		mustRun(t, host, w)
		end := contents(snapshot(t, host))
		seen := 0
		for n := 2; ; n++ { // twice each: not executed, and executed but reported as failed
			fault := []error{syscall.ENOSPC, syscall.EROFS, syscall.EIO}[n/2%3]
			host, before := reach(t, s, stage)
			now := snapshot(t, host)
			o := options(host)
			count, call, at := 0, "", ""
			o.hook = func(c, path string, after bool) error {
				if after == (n%2 == 0) {
					return nil
				}
				if count++; count != n/2 {
					return nil
				}
				call, at = c, path
				return fault
			}
			_, err := run(o, w)
			if call == "" {
				break
			}
			seen++
			where := fmt.Sprintf("%s %s (%d) failed with %v", call, at, n, fault)
			if err == nil {
				t.Fatalf("%s: no error", where)
			}
			if !strings.Contains(err.Error(), fault.Error()) || !strings.Contains(err.Error(), "/etc/") {
				t.Errorf("%s: the error is %v", where, err)
			}
			if slices.Contains(reads, call) {
				refusal(t, err)
				sameSnapshot(t, where, snapshot(t, host), now)
			} else if errors.As(err, new(*exitcode.Refusal)) {
				t.Errorf("%s: the error is a refusal: %v", where, err)
			}
			got := contents(snapshot(t, host))
			wholeFiles(t, where, got, old, end)
			for name := range got {
				// A temporary file that cannot be removed stays, and so does a folder that has just been
				// renamed to be removed.
				stays := call == "remove" || call == "sync" || call == "rename" && n%2 == 1
				if strings.Contains(name, temporarySuffix) && !stays {
					t.Errorf("%s: %s is left", where, name)
				}
			}
			mustRun(t, host, w)
			if got := contents(snapshot(t, host)); got.String() != end.String() {
				t.Fatalf("%s: after the next run the tree is\n%s\nwant\n%s", where, got, end)
			}
			mustRun(t, host, Desired{})
			sameSnapshot(t, where+", and restored", snapshot(t, host), before)
			if t.Failed() {
				return
			}
		}
		if seen < 20 {
			t.Errorf("only %d system calls were seen: the test checked nothing", seen)
		}
	})
}

// A failed run reports correctly which changes were made.
func TestDoneAfterFailure(t *testing.T) {
	host := newHost(t, nil)
	o := options(host)
	o.hook = func(call, path string, after bool) error {
		if call == "write" && strings.Contains(path, k3s) {
			return syscall.ENOSPC
		}
		return nil
	}
	tree := require.Value(Open(t.Context(), o))(t)
	defer tree.Close()
	plan := require.Value(tree.Plan(Desired{Files: []File{want(docker, "d\n"), want(yaml, "y\n")}}))(t)
	if err := plan.Apply(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), yaml) {
		t.Errorf("got %v", err)
	}
	if got := summary(plan); got != "new "+docker+"\nnew "+yaml+" done=false\n" {
		t.Errorf("did\n%s", got)
	}
	sameFiles(t, host, files{docker: mark + "d\n"})
}
