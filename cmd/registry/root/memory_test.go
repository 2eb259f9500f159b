package root

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// It runs alone, because it measures.
func TestLessGarbageRemainsOfALargeHeap(t *testing.T) {
	percent := func() int {
		p := debug.SetGCPercent(-1)
		debug.SetGCPercent(p)
		return p
	}
	before := percent()
	defer debug.SetGCPercent(before)
	await := func(want int) {
		t.Helper()
		for range 500 {
			if percent() == want {
				return
			}
			runtime.GC()
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("GC percent is %d, want %d", percent(), want)
	}
	followHeap()
	await(smallHeapGarbage)
	inventory := make([]byte, 2*largeHeap)
	await(largeHeapGarbage)
	runtime.KeepAlive(inventory)
	await(smallHeapGarbage)
}
