package noderuntime

import (
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// The files for a valid configuration are sorted, and in allowed directories. FuzzMask tests that the result is
// deterministic.
func TestFilesOfValidConfigurations(t *testing.T) {
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
		desired, err := Build(in)
		if err != nil {
			continue
		}
		accepted++
		if !slices.IsSortedFunc(desired.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) }) {
			t.Errorf("seed %d: not in order", seed)
		}
		for _, f := range desired.Files {
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
