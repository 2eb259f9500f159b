package proxy

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// giveWay has the kernel send the connections to come to a successor that listens on
// the same address. Closing the listener alone would reset those that the kernel has
// accepted in this process's name and nobody has taken yet.
//
// Of the sockets that share a port the eldest is number 0, and when it is closed the
// youngest takes its number. So a process that has a successor is 0, and that one is 1.
// Where there is none, the kernel finds no number 1 and goes on as before.
func giveWay(l net.Listener) error {
	listener, is := l.(syscall.Conn)
	if !is {
		return errors.New("the listener is no socket")
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
