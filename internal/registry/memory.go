package registry

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
)

// memoryLimit is the file with the memory limit of the cgroup of a container.
const memoryLimit = "/sys/fs/cgroup/memory.max"

// LimitMemory makes Go return memory before the limit of the pod is reached, unless GOMEMLIMIT says otherwise. A tenth
// is left to buffers of the kernel. A quarter of the usual garbage remains, because an inventory of a million blobs is
// most of the memory (GOGC).
func LimitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	text, err := os.ReadFile(memoryLimit)
	if err != nil {
		return // no cgroup v2
	}
	if limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil { // otherwise it is "max"
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}
