package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCRIOConfigUsesTheNodesPrograms(t *testing.T) {
	c := testCluster(t, IPv4)
	n := Node{Name: "n2", Index: 2, PauseImage: "example.com/pause:1", Runtime: "crio-1.35"}
	files := make(map[string][]byte)
	n.runtime().addFiles(files, c, n)
	for _, want := range []string{`pause_image = "example.com/pause:1"`, `runtime_path = "` + crioRuncPath + `"`,
		`pinns_path = "` + c.path(binDir, "crio-1.35", "pinns") + `"`, `plugin_dirs = ["` + c.path(binDir) + `"]`} {
		if !strings.Contains(string(files[crioConfigPath]), want+"\n") {
			t.Errorf("%s is not in\n%s", want, files[crioConfigPath])
		}
	}
}

func TestCRIORuncDropsWhatTheMachineRefuses(t *testing.T) {
	const spec = `{
	"process": {
		"oomScoreAdj": -997
	},
	"linux": {
		"resources": {
			"hugepageLimits": [
				{
					"pageSize": "2MB",
					"limit": 0
				}
			],
			"cpu": {}
		}
	}
}
`
	const want = `{
	"process": {
		"oomScoreAdj": 0
	},
	"linux": {
		"resources": {
			"hugepageLimits": [
			],
			"cpu": {}
		}
	}
}
`
	dir := t.TempDir()
	for name, content := range map[string]string{"wrapper": crioRunc, "runc": "#!/bin/sh\necho \"$@\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	config, process := filepath.Join(dir, "config.json"), filepath.Join(dir, "process.json")
	for _, test := range []struct {
		args          []string
		file, content string
		want          string
	}{
		{[]string{"create", "--bundle", dir, "--pid-file", "x", "id"}, config, spec, want},
		{[]string{"exec", "--process", process, "id"}, process, `{"oomScoreAdj":-997,"args":[]}`, `{"oomScoreAdj": 0,"args":[]}`},
		{[]string{"exec", "--process", process, "id"}, process, `{"oomScoreAdj":1000}`, `{"oomScoreAdj":1000}`},
		{[]string{"state", "id"}, config, spec, spec},
	} {
		if err := os.WriteFile(test.file, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(filepath.Join(dir, "wrapper"), test.args...).CombinedOutput()
		if args := strings.Join(test.args, " "); err != nil || string(out) != args+"\n" {
			t.Errorf("runc %s: %v: %s", args, err, out)
		}
		if got, err := os.ReadFile(test.file); err != nil || string(got) != test.want {
			t.Errorf("after runc %v, the file is %s (%v), want %s", test.args, got, err, test.want)
		}
	}
}
