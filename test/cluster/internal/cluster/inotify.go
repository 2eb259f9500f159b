package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// inotifyFile is the kernel's limit of inotify instances for each user. It cannot be
	// set for a cluster alone.
	inotifyFile = "/proc/sys/fs/inotify/max_user_instances"
	// inotifyInstances is enough for some thirty nodes: a cluster of two takes about
	// 30, so that the usual 128 end in "too many open files" when four run at once.
	inotifyInstances = 1024
)

// raiseInotify raises the limit where it is lower, and leaves it so.
func raiseInotify(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading how many inotify instances there may be: %w", err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && n >= inotifyInstances {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(inotifyInstances)), 0o644); err != nil {
		return fmt.Errorf("allowing more inotify instances: %w", err)
	}
	return nil
}
