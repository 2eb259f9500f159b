package listen

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// HandOff makes the kernel send new connections to the successor that listens on the same address.
// Closing the listener instead would reset connections that the kernel has completed but this
// process has not accepted.
//
// Among sockets that share a port, the oldest has index 0; when it is closed, the youngest takes
// that index. So this process is 0 and its successor is 1. If there is no successor, the kernel
// finds no index 1 and falls back to its default selection.
func HandOff(l net.Listener) error {
	listener, is := l.(syscall.Conn)
	if !is {
		return errors.New("listener is not a socket")
	}
	c, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	program := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}
	option := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, option)
	}); e != nil {
		return e
	}
	return err
}
