package hostfiles

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	docker = certs + "/docker.io/hosts.toml"
	quay   = certs + "/quay.io/hosts.toml"
	yaml   = k3s + "/registries.yaml"
	kept   = backupSuffix
)

// Each case runs twice, and the second run must change nothing. Then everything is uninstalled, and
// the tree must be as before, including inodes, unless a case lists what is left.
func TestTrees(t *testing.T) {
	for description, tt := range map[string]struct {
		before files
		wants  Desired
		after  files
		did    string
		warns  string
		left   files // files after the restore, if they differ from the original ones
	}{
		"new files in new folders": {
			before: files{k3s + "/config.yaml": "a: b\n"},
			wants:  Desired{Files: []File{want(docker, "one\n"), want(quay, "two\n"), want(yaml, "three\n")}},
			after:  files{k3s + "/config.yaml": "a: b\n", docker: mark + "one\n", quay: mark + "two\n", yaml: mark + "three\n"},
			did:    "new " + docker + "\nnew " + quay + "\nnew " + yaml + "\n",
		},
		"several files in a new folder": {
			wants: Desired{Files: []File{want(certs+"/a/ca.crt", "ca\n"), want(certs+"/a/hosts.toml", "h\n")}},
			after: files{certs + "/a/ca.crt": mark + "ca\n", certs + "/a/hosts.toml": mark + "h\n"},
			did:   "new " + certs + "/a/ca.crt\nnew " + certs + "/a/hosts.toml\n",
		},
		"a new file beside those of others": {
			before: files{certs + "/docker.io/ca.pem": "pem", certs + "/other/": ""},
			wants:  Desired{Files: []File{want(docker, "one\n")}},
			after:  files{certs + "/docker.io/ca.pem": "pem", certs + "/other/": "", docker: mark + "one\n"},
			did:    "new " + docker + "\n",
		},
		"a file of others with force": {
			before: files{yaml: "old\n"},
			wants:  Desired{Force: true, Files: []File{want(yaml, "new\n")}},
			after:  files{yaml: mark + "new\n", yaml + kept: "old\n"},
			did:    "changed " + yaml + " keeps registries.yaml.before-zarf-registry\n",
		},
		"a file of others with the desired content": {
			before: files{yaml: "same\n"},
			wants:  Desired{Files: []File{want(yaml, "same\n")}},
			after:  files{yaml: "same\n"},
			did:    "unchanged " + yaml + "\n",
		},
		"an obsolete file of the release": {
			before: files{docker: mark + "old\n", quay: mark + "q\n"},
			wants:  Desired{Files: []File{want(quay, "q\n")}},
			after:  files{quay: mark + "q\n"},
			did:    "removed " + docker + "\nchanged " + quay + "\n", // the mode
			left:   files{},
		},
		"an obsolete file of the release in a folder with others": {
			before: files{docker: mark + "old\n", certs + "/docker.io/ca.pem": "pem"},
			after:  files{certs + "/docker.io/ca.pem": "pem"},
			did:    "removed " + docker + "\n",
			left:   files{certs + "/docker.io/ca.pem": "pem"},
		},
		"a previous file is restored": {
			before: files{yaml: mark + "ours\n", yaml + kept: "old\n"},
			after:  files{yaml: "old\n"},
			did:    "restored " + yaml + "\n",
			left:   files{yaml: "old\n"},
		},
		"a previous file is restored after somebody removed ours": {
			before: files{yaml + kept: "old\n"},
			after:  files{yaml: "old\n"},
			did:    "restored " + yaml + "\n",
			left:   files{yaml: "old\n"},
		},
		"a file of others in place of ours is left": {
			before: files{yaml: "newest\n", yaml + kept: "old\n"},
			after:  files{yaml: "newest\n", yaml + kept: "old\n"},
			warns:  "was replaced by others",
		},
		"a backup is made once": {
			before: files{yaml: mark + "ours\n", yaml + kept: "old\n"},
			wants:  Desired{Files: []File{want(yaml, "newer\n")}},
			after:  files{yaml: mark + "newer\n", yaml + kept: "old\n"},
			did:    "changed " + yaml + " keeps registries.yaml.before-zarf-registry\n",
			left:   files{yaml: "old\n"},
		},
		"a backup that is the same as the file is reused": {
			before: files{yaml: "old\n", yaml + kept: "old\n"},
			wants:  Desired{Force: true, Files: []File{want(yaml, "newer\n")}},
			after:  files{yaml: mark + "newer\n", yaml + kept: "old\n"},
			did:    "changed " + yaml + " keeps registries.yaml.before-zarf-registry\n",
			left:   files{yaml: "old\n"},
		},
		"a file of another release with force is taken over": {
			before: files{docker: theirs + "x\n", docker + kept: "old\n"},
			wants:  Desired{Force: true, Files: []File{want(docker, "y\n")}},
			after:  files{docker: mark + "y\n", docker + kept: "old\n"},
			did:    "changed " + docker + " keeps hosts.toml.before-zarf-registry\n",
			left:   files{docker: "old\n"},
		},
		"files of another release are left": {
			before: files{docker: theirs + "x\n", docker + kept: "old\n", quay: theirs + "y\n"},
			after:  files{docker: theirs + "x\n", docker + kept: "old\n", quay: theirs + "y\n"},
		},
		"left-overs of an earlier run are removed": {
			before: files{
				certs + "/.docker.io.zarf-registry-new/.hosts.toml.zarf-registry-new": "half",
				certs + "/.quay.io.zarf-registry-new/hosts.toml":                      mark + "q\n",
				certs + "/.ghcr.io.zarf-registry-new/":                                "",
				certs + "/gcr.io/.hosts.toml.zarf-registry-new":                       "half",
				certs + "/gcr.io/hosts.toml":                                          "theirs\n",
				k3s + "/.registries.yaml.zarf-registry-new":                           "half",
			},
			wants: Desired{Files: []File{want(docker, "one\n")}},
			after: files{docker: mark + "one\n", certs + "/gcr.io/hosts.toml": "theirs\n"},
			did:   "new " + docker + "\n",
			left:  files{certs + "/gcr.io/hosts.toml": "theirs\n"},
		},
		"a file deeper than the release writes is ignored": {
			before: files{certs + "/a/b/hosts.toml": mark + "x\n"},
			after:  files{certs + "/a/b/hosts.toml": mark + "x\n"},
		},
		"links of others are left": {
			before: files{
				certs + "/a": "-> /etc", certs + "/b/hosts.toml": "-> /etc/passwd",
				certs + "/b/.x.zarf-registry-new": "-> /etc/passwd",
			},
			after: files{certs + "/a": "-> /etc", certs + "/b/hosts.toml": "-> /etc/passwd"},
			left:  files{certs + "/a": "-> /etc", certs + "/b/hosts.toml": "-> /etc/passwd"},
		},
	} {
		t.Run(description, func(t *testing.T) {
			host := newHost(t, tt.before)
			before := snapshot(t, host)
			plan := mustRun(t, host, tt.wants)
			if got := summary(plan); got != tt.did {
				t.Errorf("did\n%s\nwant\n%s", got, tt.did)
			}
			if got := strings.Join(plan.Warnings, "\n"); got == "" != (tt.warns == "") || !strings.Contains(got, tt.warns) {
				t.Errorf("warnings %q, want %q", got, tt.warns)
			}
			if tt.after == nil {
				tt.after = files{}
			}
			sameFiles(t, host, tt.after)

			after := snapshot(t, host)
			again := mustRun(t, host, tt.wants)
			sameSnapshot(t, "after a second run", snapshot(t, host), after)
			for _, c := range again.Changes {
				if c.Action != Unchanged {
					t.Errorf("the second run: %s %s", c.Action, c.Path)
				}
			}
			if again.Pending() {
				t.Error("the second run has pending changes")
			}

			mustRun(t, host, Desired{})
			if tt.left != nil {
				sameFiles(t, host, tt.left)
				return
			}
			sameSnapshot(t, "after a restore", snapshot(t, host), before)
		})
	}
}

func TestModes(t *testing.T) {
	host := newHost(t, nil)
	files := []File{want(docker, "a\n"), {Path: k3s + "/ca.crt", Content: []byte("b\n"), Mode: 0o644}}
	mustRun(t, host, Desired{Files: files})
	now := snapshot(t, host)
	if got := now[docker].mode; got != 0o600 {
		t.Errorf("mode %v", got)
	}
	if got := now[k3s+"/ca.crt"].mode; got != 0o644 {
		t.Errorf("mode %v", got)
	}
	if got := now[certs+"/docker.io/"].mode.Perm(); got != 0o755 {
		t.Errorf("mode of the folder %v", got)
	}
	files[1].Mode = 0o600
	plan := mustRun(t, host, Desired{Files: files})
	if got, want := summary(plan), "unchanged "+docker+"\nchanged "+k3s+"/ca.crt\n"; got != want {
		t.Errorf("did\n%s\nwant\n%s", got, want)
	}
	after := snapshot(t, host)
	if after[k3s+"/ca.crt"].mode != 0o600 || after[docker] != now[docker] {
		t.Errorf("now %+v", after)
	}
}

// Plan or Open refuses each case, and nothing changes.
func TestRefusals(t *testing.T) {
	one := Desired{Files: []File{want(yaml, "new\n")}}
	force := Desired{Force: true, Files: one.Files}
	for description, tt := range map[string]struct {
		before files
		wants  Desired
		change func(*Options)
		want   []string
	}{
		"a file of others": {
			before: files{yaml: "old\n"},
			wants:  one,
			want:   []string{yaml + " was not written by zarf-registry", "nodeConfig.force=true", yaml + kept},
		},
		"a file of another release": {
			before: files{yaml: theirs + "old\n"}, wants: one, want: []string{"release other/registry", "force"},
		},
		"a link in place of the file": {
			before: files{yaml: "-> /etc/passwd"}, wants: force, want: []string{yaml + ` is a symbolic link to "/etc/passwd"`},
		},
		"a dangling link in place of the file": {
			before: files{yaml: "-> nowhere"}, wants: force, want: []string{`is a symbolic link to "nowhere"`},
		},
		"a link in place of the folder": {
			before: files{certs + "/docker.io": "-> ../x", "/etc/containerd/x/": ""},
			wants:  Desired{Force: true, Files: []File{want(docker, "a\n")}},
			want:   []string{certs + `/docker.io is a symbolic link to "../x"`},
		},
		"a file in place of the folder": {
			before: files{certs + "/docker.io": "a"},
			wants:  Desired{Force: true, Files: []File{want(docker, "a\n")}},
			want:   []string{certs + "/docker.io is not a directory"},
		},
		"a directory in place of the file": {
			before: files{yaml + "/": ""}, wants: force, want: []string{yaml + " is a directory"},
		},
		"a directory in place of the backup": {
			before: files{yaml: "old\n", yaml + kept + "/": ""}, wants: force, want: []string{yaml + kept + " is a directory"},
		},
		"the same without force": {
			before: files{yaml: "newer\n", yaml + kept: "old\n"}, wants: one, want: []string{"move one of them away"},
		},
		"an unrelated backup": {
			before: files{yaml: "newer\n", yaml + kept: "old\n"}, wants: force, want: []string{"move one of them away"},
		},
		"a file too large for a configuration": {
			before: files{yaml: strings.Repeat("x", maxSize+1)}, wants: force, want: []string{"1048577 bytes"},
		},
		"an installed file that is too large": {
			wants: Desired{
				Files: []File{want(yaml, strings.Repeat("x", maxSize))},
			}, want: []string{"exceeds the maximum size of 1048576"},
		},
		"a path outside the directories": {
			wants: Desired{Files: []File{want("/etc/passwd", "a")}}, want: []string{"/etc/passwd is not in a mounted directory"},
		},
		"a path with ..":          {wants: Desired{Files: []File{want(k3s+"/../../passwd", "a")}}, want: []string{`without ".."`}},
		"a path that is too deep": {wants: Desired{Files: []File{want(certs+"/a/b/c", "a")}}, want: []string{"too deep"}},
		"a duplicate file":        {wants: Desired{Files: []File{one.Files[0], one.Files[0]}}, want: []string{"twice"}},
		"a backup name":           {wants: Desired{Files: []File{want(yaml+kept, "a")}}, want: []string{"reserved for backups"}},
		"a temporary name": {
			wants: Desired{Files: []File{want(k3s+"/.a.zarf-registry-new", "a")}}, want: []string{"reserved for backups"},
		},
		"a file of others with a temporary name": {
			before: files{certs + "/.docker.io.zarf-registry-new/passwd": "x"},
			wants:  one,
			want:   []string{"passwd has a name that zarf-registry uses"},
		},
		"a missing directory": {
			change: func(o *Options) { o.Directories = append(o.Directories, "/etc/crio") },
			want:   []string{"directory /etc/crio is missing: mount it at "},
		},
		"a directory that is a file": {
			before: files{"/etc/crio": "a"},
			change: func(o *Options) { o.Directories = append(o.Directories, "/etc/crio") },
			want:   []string{"directory /etc/crio cannot be opened"},
		},
		"a directory with ..": {
			change: func(o *Options) { o.Directories = []string{"/etc/../x"} }, want: []string{`"/etc/../x"`},
		},
		"a missing root": {
			change: func(o *Options) { o.Root += "/none" }, want: []string{"none: no such file"},
		},
		"one directory with two names": {
			before: files{"/etc/link": "-> rancher/k3s"},
			change: func(o *Options) { o.Directories = append(o.Directories, "/etc/link") },
			wants:  Desired{Files: []File{want("/etc/rancher/k3s/a", "a\n"), want("/etc/link/b", "b\n")}},
			want:   []string{"is the same as"},
		},
		"all problems, not only the first": {
			before: files{yaml: "old\n", docker: "-> x"},
			wants:  Desired{Files: []File{want(yaml, "a\n"), want(docker, "a\n")}},
			want:   []string{yaml, docker},
		},
		"a pipe in place of the file, without waiting for it": {
			before: files{}, wants: force, want: []string{"is not a regular file"},
		},
	} {
		t.Run(description, func(t *testing.T) {
			host := newHost(t, tt.before)
			if strings.HasPrefix(description, "a pipe") {
				require.NoError(t, syscall.Mkfifo(filepath.Join(host, yaml), 0o600))
			}
			before := map[string]node{}
			if !strings.HasPrefix(description, "a pipe") {
				before = snapshot(t, host)
			}
			o := options(host)
			if tt.change != nil {
				tt.change(&o)
			}
			_, err := run(o, tt.wants)
			got := refusal(t, err)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("refused with\n%s\nwant %q in it", got, want)
				}
			}
			if len(before) > 0 {
				sameSnapshot(t, "after the refusal", snapshot(t, host), before)
			}
		})
	}
}

func TestDirectoryWithTwoNames(t *testing.T) {
	host := newHost(t, files{"/etc/link": "-> rancher/k3s", yaml: mark + "a\n"})
	o := options(host)
	o.Directories = append(o.Directories, "/etc/link")
	plan := require.Value(run(o, Desired{}))(t)
	if len(plan.Changes) != 1 {
		t.Errorf("changes: %s", summary(plan))
	}
	sameFiles(t, host, files{"/etc/link": "-> rancher/k3s"})
}

func TestNestedDirectories(t *testing.T) {
	host := newHost(t, files{yaml: mark + "a\n", "/etc/rancher/x/y": mark + "b\n"})
	o := options(host)
	o.Directories = append(o.Directories, "/etc/rancher")
	plan := require.Value(run(o, Desired{Files: []File{want(yaml, "c\n")}}))(t)
	if got, want := summary(plan), "changed "+yaml+"\nremoved /etc/rancher/x/y\n"; got != want {
		t.Errorf("did\n%s\nwant\n%s", got, want)
	}
}

func TestSkipMissing(t *testing.T) {
	host := newHost(t, files{yaml: mark + "a\n", yaml + kept: "old\n"})
	o := options(host)
	o.Directories, o.SkipMissing = append(o.Directories, "/etc/crio"), true
	require.Value(run(o, Desired{}))(t)
	sameFiles(t, host, files{yaml: "old\n"})
}

func TestReading(t *testing.T) {
	host := newHost(t, files{docker: mark + "ours\n", quay: "theirs\n", certs + "/file": ""})
	tree := require.Value(Open(t.Context(), options(host)))(t)
	defer tree.Close()
	for name, want := range map[string]bool{docker: true, certs + "/quay.io": true, certs + "/none": false,
		certs + "/file/x": false} {
		if got, err := tree.Exists(name); got != want || err != nil {
			t.Errorf("%s exists: %v, %v", name, got, err)
		}
	}
	if got := tree.Modified(quay); !got.Equal(originalTime) {
		t.Errorf("modified %v", got)
	}
	if got := tree.Modified(certs + "/none"); !got.IsZero() {
		t.Errorf("modified %v", got)
	}
}

// Nothing above the directories is opened, and canceling the context ends the wait for another run.
func TestLock(t *testing.T) {
	host := newHost(t, nil)
	first := require.Value(Open(t.Context(), options(host)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, options(host)); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("got %v", err)
	}
	o := options(host)
	o.lockTimeout = 1
	if _, err := Open(t.Context(), o); !strings.Contains(refusal(t, err), "locked by another run") {
		t.Errorf("got %v", err)
	}
	opened := make(chan error)
	go func() {
		second, err := Open(t.Context(), options(host))
		if err == nil {
			second.Close()
		}
		opened <- err
	}()
	first.Close()
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// Eight concurrent runs with different desired states leave one of these states.
func TestConcurrentRuns(t *testing.T) {
	host := newHost(t, files{yaml: "old\n"})
	before := snapshot(t, host)
	ended := make(chan error)
	const runs = 8
	for i := range runs {
		go func() {
			content := strings.Repeat("x", i+1) + "\n"
			_, err := run(options(host), Desired{
				Force: true,
				Files: []File{want(yaml, content), want(docker, content), want(certs+"/"+content[:i+1]+"/hosts.toml", content)},
			})
			ended <- err
		}()
	}
	for range runs {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	now := contents(snapshot(t, host))
	content := strings.TrimPrefix(now[yaml], mark)
	want := files{
		yaml:        mark + content,
		yaml + kept: "old\n",
		docker:      mark + content,
		certs + "/" + strings.TrimSpace(content) + "/hosts.toml": mark + content,
	}
	sameFiles(t, host, want)
	mustRun(t, host, Desired{})
	sameSnapshot(t, "after a restore", snapshot(t, host), before)
}

func TestMark(t *testing.T) {
	for content, want := range map[string]string{
		mark + "x":                         release,
		theirs:                             "other/registry",
		strings.TrimSuffix(mark, "\n"):     release,
		"":                                 "",
		"\n" + mark:                        "",
		markPrefix + "\n":                  "",
		markPrefix + markSuffix:            "",
		markPrefix + "a/b. Changed.\nx":    "",
		strings.Repeat("x", 1000) + "\n":   "",
		"# Written by zarf-registry, a\nb": "",
	} {
		if got, _ := markOf([]byte(content)); got != want {
			t.Errorf("the release of %q is %q, want %q", content, got, want)
		}
	}
	if longest := Mark(strings.Repeat("n", 63) + "/" + strings.Repeat("r", 53)); len(longest) > maxMark {
		t.Errorf("a mark may have %d bytes", len(longest))
	}
}

func TestMain(m *testing.M) {
	syscall.Umask(0o077) // must not affect modes
	os.Exit(m.Run())
}
