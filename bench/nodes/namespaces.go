package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
)

// insideMode as the first argument tells the program that it has namespaces of its own.
const insideMode = "inside-namespaces"

// enter runs this program again, with the arguments, as the first process of new network, mount and PID namespaces. The
// kernel ends them, and everything in them, with that process, and that process with this one.
func enter(ctx context.Context, args []string) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	command := exec.CommandContext(ctx, self, append([]string{insideMode}, args...)...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 30 * time.Second
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	return command.Run()
}

const (
	// memoryDir is a file system in memory that ends with the namespaces.
	memoryDir = "/run"
	// netnsDir is where ip-netns(8) keeps named network namespaces.
	netnsDir = "/run/netns"
	// maxCaches is how many namespaces for caches there are.
	maxCaches = 5
	// port is that of the registry, of caches and of their Services; plainPort that of registries without TLS.
	port, plainPort, metricsPort = ":5000", ":5001", ":9102"
	// loopback and nodePort are where the container runtime of a node pulls, from its proxy or through its node port.
	loopback, nodePort = "127.0.0.1", "31999"
	// ClusterIPs of the Services, which only rules of iptables know.
	registryService, cacheService = "10.96.0.10", "10.96.0.11"
)

// isolate prepares the mounts of the new namespaces. /run also holds the lock of iptables, so nobody else waits for it.
func isolate() error {
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), // mounts stay inside
		unix.Mount("proc", "/proc", "proc", 0, ""),
		unix.Mount("tmpfs", memoryDir, "tmpfs", 0, "size=10g"),
		os.Mkdir(netnsDir, 0o755))
}

// member is a network namespace with a link to the bridge.
type member struct {
	name    string // also of the bridge's interface
	address string
}

// fabric is the network: the members, and a bridge between them in the namespace of this process.
type fabric struct {
	registry      member
	caches, nodes []member
}

func newFabric(ctx context.Context, nodes int) (*fabric, error) {
	all := make([]member, 1+maxCaches+nodes)
	script := "link set lo up\nlink add fabric type bridge\naddress add 10.77.0.1/16 dev fabric\nlink set fabric up\n"
	for n := range all {
		all[n] = member{fmt.Sprintf("member-%d", n), fmt.Sprintf("10.77.1.%d", n+1)}
		script += fmt.Sprintf("netns add %[1]s\nlink add %[1]s type veth peer name eth0 netns %[1]s\n"+
			"link set %[1]s master fabric up\n", all[n].name)
	}
	if err := execute(ctx, script, "ip", "-batch", "-"); err != nil {
		return nil, err
	}
	return &fabric{all[0], all[1 : 1+maxCaches], all[1+maxCaches:]}, each(all, func(m member) error {
		// Machines differ. Every namespace may use this one; cubic behaves like it where round trips take milliseconds.
		program, args := m.command("sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control; "+
			"echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet") // for node ports on loopback
		return errors.Join(execute(ctx, "", program, args...),
			execute(ctx, fmt.Sprintf("link set lo up\naddress add %s/16 dev eth0\nlink set eth0 up\n"+
				"route add default dev eth0\n", m.address), "ip", "-netns", m.name, "-batch", "-"))
	})
}

// connect limits what the registry and each cache may send, and what each node may receive, in bits per second. It also
// writes rules like kube-proxy's: each new connection to a Service gets one of its endpoints at random. With
// throughPort, nodePort reaches the registry's plain HTTP.
func (f *fabric) connect(ctx context.Context, nodes, caches []member, rate int64, throughPort bool) error {
	// The burst holds the largest packet before segmentation. Longer queues starve some connections: the kernel lets a
	// slow one have only a few packets in them.
	bucket := fmt.Sprintf("root tbf rate %dbit burst 256kb latency 30ms\n", rate)
	var rules strings.Builder
	fmt.Fprintf(&rules, "*nat\n:CACHES - [0:0]\n-A OUTPUT -d %s/32 -p tcp -j DNAT --to-destination %s%s\n"+
		"-A OUTPUT -d %s/32 -p tcp -j CACHES\n", registryService, f.registry.address, port, cacheService)
	for n, c := range caches {
		fmt.Fprintf(&rules, "-A CACHES -p tcp -m statistic --mode random --probability %.8f -j DNAT --to-destination "+
			"%s%s\n", 1/float64(len(caches)-n), c.address, port)
	}
	if throughPort {
		fmt.Fprintf(&rules, "-A OUTPUT -d %s/32 -p tcp -m tcp --dport %s -j DNAT --to-destination %s%s\n"+
			"-A POSTROUTING -s %[1]s/32 -o eth0 -j MASQUERADE\n", loopback, nodePort, f.registry.address, plainPort)
	}
	rules.WriteString("COMMIT\n")
	sources := append(caches[:len(caches):len(caches)], f.registry)
	return errors.Join(
		each(sources, func(m member) error {
			return execute(ctx, "qdisc replace dev eth0 "+bucket, "tc", "-netns", m.name, "-batch", "-")
		}),
		each(nodes, func(m member) error {
			return execute(ctx, "qdisc replace dev "+m.name+" "+bucket, "tc", "-batch", "-")
		}),
		each(append(sources, nodes...), func(m member) error {
			program, args := m.command("iptables-restore")
			return execute(ctx, rules.String(), program, args...)
		}))
}

// command returns the command line that runs a program in the namespace, without a process in between.
func (m member) command(program string, args ...string) (string, []string) {
	return "nsenter", append([]string{"--net=" + filepath.Join(netnsDir, m.name), program}, args...)
}

// dial connects from the namespace.
func (m member) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = program.InNetwork(filepath.Join(netnsDir, m.name), func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// each calls f for all members, a few at a time.
func each(members []member, f func(member) error) error {
	var group errgroup.Group
	group.SetLimit(4)
	for _, m := range members {
		group.Go(func() error { return f(m) })
	}
	return group.Wait()
}

// execute runs a program to its end with text as its input.
func execute(ctx context.Context, input, program string, args ...string) error {
	command := exec.CommandContext(ctx, program, args...)
	command.Stdin = strings.NewReader(input)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
