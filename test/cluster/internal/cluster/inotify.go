package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// inotifyFile is the kernel's per-user limit of inotify instances. It cannot be set for a cluster
	// alone.
	inotifyFile = "/proc/sys/fs/inotify/max_user_instances"
	// inotifyInstances is enough for some thirty nodes. A cluster of two takes about 30 instances, so
	// the default of 128 fails with "too many open files" when four run at once.
	inotifyInstances = 1024
)

// raiseInotify raises the limit permanently if it is lower.
func raiseInotify(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the limit of inotify instances: %w", err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && n >= inotifyInstances {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(inotifyInstances)), 0o644); err != nil {
		return fmt.Errorf("raising the limit of inotify instances: %w", err)
	}
	return nil
}
