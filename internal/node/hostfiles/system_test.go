package hostfiles

import (
	"syscall"
	"testing"
)

func setUmask(mask int) { syscall.Umask(mask) }

func makePipe(t *testing.T, name string) {
	t.Helper()
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
}
