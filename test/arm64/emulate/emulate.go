// Package emulate runs programs for arm64 on other architectures, with qemu. It neither needs nor changes the
// machine's registration of binary formats: a user namespace has its own since Linux 6.7. The network is the
// machine's.
package emulate

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// setUp registers programs for arm64 and executes its arguments. The format is an ELF header of a 64-bit
// little-endian program, e_type 2 or 3, for the machine 183, with any ABI. F opens the emulator now, so
// that programs in another root find it, and P passes the original argv[0].
const setUp = `
emulator=$(command -v qemu-aarch64-static) || { echo "install qemu-user-static" >&2; exit 1; }
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || { echo "want Linux 6.7 or later" >&2; exit 1; }
header='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf %s ":arm64:M::$header:$mask:$emulator:PF" >/proc/sys/fs/binfmt_misc/register
exec "$@"
`

// Command returns a command that runs a program, and all that it starts, where Linux executes programs for
// arm64 as well as its own. Its SysProcAttr is set. On arm64, it is the command itself.
func Command(program string, args ...string) *exec.Cmd {
	if runtime.GOARCH == "arm64" {
		cmd := exec.Command(program, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		return cmd
	}
	cmd := exec.Command("sh", append([]string{"-ec", setUp, "sh", program}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings:                ids(os.Geteuid()),
		GidMappings:                ids(os.Getegid()),
		GidMappingsEnableSetgroups: os.Geteuid() == 0,
	}
	return cmd
}

// ids keeps all IDs if the caller may, and else makes the caller root in the namespace.
func ids(own int) []syscall.SysProcIDMap {
	if os.Geteuid() == 0 {
		return []syscall.SysProcIDMap{{Size: math.MaxUint32 - 1}}
	}
	return []syscall.SysProcIDMap{{HostID: own, Size: 1}}
}

// Check returns why [Command] does not work here, or nil.
func Check() error {
	output, err := Command("true").CombinedOutput()
	if text := strings.TrimSpace(string(output)); err != nil && text != "" {
		return errors.New(text)
	}
	return err
}
