package nodeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/mounted"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
)

// sumTime is how long to wait for the expected configuration. Kubelets refresh mounted Secrets
// within 90 s.
const sumTime = 3 * time.Minute

// keySum is the key of the chart's Secret that changes with its other keys.
const keySum = "sum"

// awaitSum waits until the expected configuration is mounted.
func (r *run) awaitSum(ctx context.Context) error {
	if r.Sum == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sumTime)
	defer cancel()
	for told := false; ; told = true {
		sum, err := os.ReadFile(filepath.Join(r.ConfigDir, keySum))
		if err != nil {
			return fmt.Errorf("reading the configuration: %w", err)
		}
		if string(sum) == r.Sum {
			return nil
		}
		if !told {
			fmt.Fprintln(r.Log, "waiting for the kubelet, which has mounted a previous configuration")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the kubelet did not mount the expected configuration within %s; the pod retries", sumTime)
		case <-time.After(time.Second):
		}
	}
}

// read reads one generation of the mounted configuration. Restore needs only config.json.
func read(dir string, restore bool) (in noderuntime.Inputs, err error) {
	_, err = mounted.Read(dir, func(generation string) (err error) {
		in, err = readFrom(generation, restore)
		return err
	})
	return in, err
}

func readFrom(dir string, restore bool) (noderuntime.Inputs, error) {
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

// optional returns nil if the file does not exist. Build decides whether it is required.
func optional(dir, name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return data, nil
}
