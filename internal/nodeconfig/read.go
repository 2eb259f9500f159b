package nodeconfig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gopkg.in/yaml.v2"

	"github.com/zarf-dev/zarf-registry/internal/noderuntime"
)

// sumTime is how long the configuration that a pod is made for is waited for. Kubelets look at mounted Secrets again within 90 s.
const sumTime = 3 * time.Minute

// Sum is a sum of the chart's Secret: the first 32 hexadecimal digits of the SHA-256 of config.json, a line feed, and the
// registries.yaml of the values, which is empty where there is none or where it is the user's Secret's. The chart has the same rule.
func Sum(config, registries []byte) string {
	sum := sha256.Sum256(slices.Concat(config, []byte("\n"), registries))
	return hex.EncodeToString(sum[:])[:32]
}

// awaitSum waits until the mounted configuration is the one that the pod is made for.
func (r *run) awaitSum(ctx context.Context) error {
	if r.Sum == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sumTime)
	defer cancel()
	for told := false; ; told = true {
		is, err := hasSum(r.ConfigDir, r.Sum)
		if is || err != nil {
			return err
		}
		if !told {
			fmt.Fprintln(r.Log, "waiting for the kubelet, which has mounted a former configuration")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the kubelet has mounted another configuration than the one that this pod is made for, and did not mount that within %s; this is tried again", sumTime)
		case <-time.After(time.Second):
		}
	}
}

func hasSum(dir, sum string) (bool, error) {
	dir = generation(dir)
	config, err := os.ReadFile(filepath.Join(dir, noderuntime.KeyConfig))
	if err != nil {
		return false, Refusal{fmt.Errorf("reading the configuration: %w", err)}
	}
	if sum == Sum(config, nil) {
		return true, nil // registries.yaml is the user's, or there is none
	}
	registries, err := optional(dir, noderuntime.KeyRegistries)
	return sum == Sum(config, registries), err
}

// generation is where the files of a mounted Secret really are: the kubelet changes all of them at once, by changing a link.
func generation(dir string) string {
	if target, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		return target
	}
	return dir
}

// read reads the mounted configuration. To put everything back nothing is needed but config.json.
func read(dir string, restore bool) (noderuntime.Inputs, error) {
	dir = generation(dir)
	data, err := os.ReadFile(filepath.Join(dir, noderuntime.KeyConfig))
	if err != nil {
		return noderuntime.Inputs{}, fmt.Errorf("reading the configuration: %w", err)
	}
	var in noderuntime.Inputs
	if in.Config, err = noderuntime.ParseConfig(data); err != nil || restore {
		return in, err
	}
	if in.Registries, err = optional(dir, noderuntime.KeyRegistries); err != nil {
		return in, err
	}
	in.CA, err = optional(dir, noderuntime.KeyCA)
	return in, err
}

// optional is nil where there is no such file; Build says whether there must be one.
func optional(dir, name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the configuration: %w", err)
	case data == nil:
		return []byte{}, nil
	}
	return data, nil
}

// hasAuth says whether a registries.yaml that Build has accepted has credentials.
func hasAuth(registries []byte) bool {
	var doc struct {
		Configs map[string]struct {
			Auth map[string]any `yaml:"auth"`
		} `yaml:"configs"`
	}
	if yaml.Unmarshal(registries, &doc) != nil {
		return true // which asks for one restart too many, not too few
	}
	for _, config := range doc.Configs {
		if len(config.Auth) > 0 {
			return true
		}
	}
	return false
}
