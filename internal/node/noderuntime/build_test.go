package noderuntime

import (
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

// The result for a valid configuration is deterministic, free of duplicates, and contains only
// files in allowed directories.
func TestBuildIsDeterministic(t *testing.T) {
	accepted := 0
	for seed := range uint64(400) {
		d := document{Rand: rand.New(rand.NewPCG(seed, 1)), correct: true}
		config := k3sConfig()
		config.Directories = append(config.Directories, certsDir, crioConf)
		config.Address, config.Containerd.Directories, config.CRIO.ConfDirectory = address, []string{certsDir}, crioConf
		config.K3s.Live = d.IntN(2) == 0
		for _, name := range d.hosts {
			switch d.IntN(3) {
			case 0:
				config.Mirrors = append(config.Mirrors, name)
			case 1:
				config.Mirrors = append(config.Mirrors, "!"+name)
			}
		}
		in := Inputs{Config: config, Registries: []byte(d.registries())}
		first, err := Build(in)
		second, again := Build(in)
		if errorText(err) != errorText(again) {
			t.Fatalf("seed %d: %v, then %v", seed, err, again)
		}
		if err != nil {
			continue
		}
		accepted++
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if !slices.IsSortedFunc(first.Files, func(a, b File) int { return cmpStrings(a.Path, b.Path) }) {
			t.Errorf("seed %d: not in order", seed)
		}
		for _, f := range first.Files {
			if !slices.ContainsFunc(config.Directories, func(dir string) bool { return f.Path != dir && below(f.Path, dir) }) ||
				path.Clean(f.Path) != f.Path {
				t.Errorf("seed %d: %s", seed, f.Path)
			}
			if f.Kind == KindHosts {
				asContainerd(t, f.Content)
			}
		}
	}
	if accepted < 100 {
		t.Fatalf("only %d configurations were accepted", accepted)
	}
}

func cmpStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func TestReadAsK3sDoesNotLog(t *testing.T) {
	before := logrus.GetLevel()
	read, err := readAsK3s([]byte("mirrors: {x: {endpoint: [y]}}\n"))
	if err != nil || len(read.Mirrors["x"].Endpoints) != 1 {
		t.Fatalf("%+v, %v", read, err)
	}
	if logrus.GetLevel() != before {
		t.Error("the log level has changed")
	}
	// more than a pipe's buffer
	big := "mirrors:\n"
	for range 5000 {
		big += "  # a comment that is as long as comments are\n"
	}
	if read, err = readAsK3s([]byte(big + "  x: {endpoint: [y]}\n")); err != nil || len(read.Mirrors) != 1 {
		t.Fatalf("%+v, %v", read, err)
	}
}
