package root

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
)

// memoryLimit is the file with the memory limit of the cgroup of a container.
const memoryLimit = "/sys/fs/cgroup/memory.max"

// limitMemory makes Go return memory before the limit of the pod is reached; a tenth is left to the kernel.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		followHeap()
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	text, _ := os.ReadFile(memoryLimit)
	// Without cgroup v2, there is no file; without a limit, it contains "max".
	if limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

const (
	// largeHeap is more than pulls and pushes need, so that a larger one has an inventory of the storage.
	largeHeap = 64 << 20
	// Garbage that may remain, in percent of what is in use: of an inventory of a million blobs it would be 200 MB.
	// Always 25 makes pushes a fifth slower.
	smallHeapGarbage, largeHeapGarbage = 100, 25
)

// followHeap limits how much garbage remains, now and after each cycle of Go's collector.
func followHeap() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	percent := smallHeapGarbage
	if live[0].Value.Uint64() > largeHeap {
		percent = largeHeapGarbage
	}
	debug.SetGCPercent(percent)
	// It runs when the next cycle has found that nothing refers to the value.
	runtime.AddCleanup(new([16]byte), func(struct{}) { followHeap() }, struct{}{})
}
