//go:build linux

package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// A proxy's port on the loopback address is a rule of the CNI plugin portmap, which the kernel applies before it decides
// where a packet goes. docs/reference/security.md states who else reaches a proxy by it, and that only processes of the
// node do with proxy.hostNetwork.
//
// Claim: Neighbors of a node and pods with `CAP_NET_RAW` reach the host port, but not with
// `proxy.hostNetwork`.
func TestWhoReachesAHostPort(t *testing.T) {
	if helper := os.Getenv("HOSTPORT_HELPER"); helper != "" {
		if err := hostPortHelper(helper, strings.Fields(os.Getenv("HOSTPORT_ARGS"))); err != nil {
			fmt.Println(err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, program := range []string{"ip", "iptables", "sysctl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	t.Parallel()
	for _, hostNetwork := range []bool{false, true} {
		for _, strict := range []string{"0", "1"} { // as a node may have them: rp_filter, and kube-proxy's route_localnet
			t.Run(fmt.Sprintf("host network %t, strict %s", hostNetwork, strict), func(t *testing.T) {
				t.Parallel()
				n := newHostPortNetwork(t, strict)
				want := map[string]string{"process": "10.8.0.1", "neighbor": "10.9.0.2", "pod": "10.8.0.1"}
				if hostNetwork {
					n.serve("node", "127.0.0.1:31999")
					want = map[string]string{"process": "127.0.0.1", "neighbor": "", "pod": ""}
				} else {
					n.portmap()
					n.serve("proxy", "10.8.0.2:5000")
				}
				for who, peer := range map[string]string{
					"process":  n.helper("node", "dial"),
					"neighbor": n.helper("neighbor", "raw", n.address("eth0"), "10.9.0.2"),
					"pod":      n.helper("pod", "raw", n.address("cni0"), "10.8.0.3"),
				} {
					if peer != want[who] {
						t.Errorf("a %s reaches the proxy as %q, want %q", who, peer, want[who])
					}
				}
			})
		}
	}
}

// hostPortNetwork is a node with a bridge, on which are a proxy and another pod, and a neighbor of the node.
type hostPortNetwork struct {
	t      *testing.T
	prefix string
}

func newHostPortNetwork(t *testing.T, strict string) *hostPortNetwork {
	n := &hostPortNetwork{t, fmt.Sprintf("hp%d-", time.Now().UnixNano()%1e9)}
	for _, name := range []string{"node", "proxy", "pod", "neighbor"} {
		n.run("ip", "netns", "add", n.prefix+name)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", n.prefix+name).Run() })
		n.run("ip", "-n", n.prefix+name, "link", "set", "lo", "up")
	}
	n.run("ip", "-n", n.prefix+"node", "link", "add", "cni0", "type", "bridge")
	connect := func(name, device, address string) {
		n.run("ip", "-n", n.prefix+"node", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", n.prefix+name)
		n.run("ip", "-n", n.prefix+"node", "link", "set", device, "up")
		n.run("ip", "-n", n.prefix+name, "addr", "add", address, "dev", "eth0")
		n.run("ip", "-n", n.prefix+name, "link", "set", "eth0", "up")
	}
	connect("neighbor", "eth0", "10.9.0.2/24")
	for name, address := range map[string]string{"proxy": "10.8.0.2/24", "pod": "10.8.0.3/24"} {
		connect(name, "v"+name, address)
		n.run("ip", "-n", n.prefix+"node", "link", "set", "v"+name, "master", "cni0")
	}
	for device, address := range map[string]string{"eth0": "10.9.0.1/24", "cni0": "10.8.0.1/24"} {
		n.run("ip", "-n", n.prefix+"node", "addr", "add", address, "dev", device)
		n.run("ip", "-n", n.prefix+"node", "link", "set", device, "up")
	}
	for _, name := range []string{"proxy", "pod"} {
		n.run("ip", "-n", n.prefix+name, "route", "add", "default", "via", "10.8.0.1")
	}
	n.inNode("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.cni0.route_localnet=1",
		"net.ipv4.conf.all.route_localnet="+strict, "net.ipv4.conf.all.rp_filter="+strict, "net.ipv4.conf.eth0.rp_filter="+strict)
	// As kubelets do.
	for _, rule := range []string{
		"-N KUBE-FIREWALL",
		"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
		"-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL",
	} {
		n.inNode("iptables", append([]string{"-w"}, strings.Fields(rule)...)...)
	}
	return n
}

// portmap adds the rules of version 1.9.1 for hostPort 31999 with hostIP 127.0.0.1.
func (n *hostPortNetwork) portmap() {
	for _, rule := range []string{
		"-N CNI-HOSTPORT-DNAT", "-N CNI-HOSTPORT-SETMARK", "-N CNI-HOSTPORT-MASQ", "-N CNI-DN-1",
		"-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000",
		"-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
		"-A POSTROUTING -j CNI-HOSTPORT-MASQ",
		"-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
		"-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
		"-A CNI-HOSTPORT-DNAT -p tcp -m multiport --destination-ports 31999 -j CNI-DN-1",
		"-A CNI-DN-1 -s 10.8.0.2/24 -d 127.0.0.1 -p tcp --dport 31999 -j CNI-HOSTPORT-SETMARK",
		"-A CNI-DN-1 -s 127.0.0.1 -d 127.0.0.1 -p tcp --dport 31999 -j CNI-HOSTPORT-SETMARK",
		"-A CNI-DN-1 -d 127.0.0.1 -p tcp --dport 31999 -j DNAT --to-destination 10.8.0.2:5000",
	} {
		n.inNode("iptables", append([]string{"-w", "-t", "nat"}, strings.Fields(rule)...)...)
	}
}

func (n *hostPortNetwork) run(program string, args ...string) string {
	n.t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		n.t.Skipf("%s %q: %v: %s", program, args, err, out)
	}
	return string(out)
}

func (n *hostPortNetwork) inNode(program string, args ...string) {
	n.t.Helper()
	n.run("ip", append([]string{"netns", "exec", n.prefix + "node", program}, args...)...)
}

// address returns the MAC address of one of the node's interfaces, without colons.
func (n *hostPortNetwork) address(device string) string {
	n.t.Helper()
	fields := strings.Fields(n.run("ip", "-n", n.prefix+"node", "-o", "link", "show", device))
	for i, field := range fields {
		if field == "link/ether" {
			return strings.ReplaceAll(fields[i+1], ":", "")
		}
	}
	n.t.Fatalf("no address: %s", fields)
	return ""
}

func (n *hostPortNetwork) command(namespace, helper string, args ...string) *exec.Cmd {
	command := exec.Command("ip", "netns", "exec", n.prefix+namespace, os.Args[0], "-test.run=^TestWhoReachesAHostPort$")
	command.Env = append(os.Environ(), "HOSTPORT_HELPER="+helper, "HOSTPORT_ARGS="+strings.Join(args, " "))
	return command
}

// helper runs a helper, and returns the address that the proxy saw, or "".
func (n *hostPortNetwork) helper(namespace, helper string, args ...string) string {
	n.t.Helper()
	out, err := n.command(namespace, helper, args...).CombinedOutput()
	if err != nil {
		n.t.Errorf("%s in %s: %v: %s", helper, namespace, err, out)
	}
	_, peer, _ := strings.Cut(string(out), "peer=")
	peer, _, _ = strings.Cut(peer, "\n")
	return peer
}

func (n *hostPortNetwork) serve(namespace, address string) {
	n.t.Helper()
	command := n.command(namespace, "serve", address)
	out := require.Value(command.StdoutPipe())(n.t)
	require.NoError(n.t, command.Start())
	n.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	ready := make([]byte, len("ready\n"))
	require.Value(io.ReadFull(out, ready))(n.t)
}

func hostPortHelper(helper string, args []string) error {
	switch helper {
	case "serve":
		l, err := net.Listen("tcp", args[0])
		if err != nil {
			return err
		}
		fmt.Println("ready")
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			fmt.Fprintf(c, "peer=%s\n", c.RemoteAddr().(*net.TCPAddr).IP)
			_ = c.Close()
		}
	case "dial":
		c, err := net.DialTimeout("tcp", "127.0.0.1:31999", 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.Copy(os.Stdout, c)
		return err
	}
	return sendRaw(args[0], net.ParseIP(args[1]).To4())
}

// sendRaw connects to 127.0.0.1:31999 of the host with a MAC address, past the own kernel's routing.
func sendRaw(mac string, source net.IP) error {
	// The node's kernel sends no ARP request that works for an answer from 127.0.0.1.
	if c, err := net.DialTimeout("tcp", net.IPv4(source[0], source[1], source[2], 1).String()+":9", time.Second); err == nil {
		_ = c.Close()
	}
	to, err := hex.DecodeString(mac)
	if err != nil {
		return err
	}
	device, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	const ipv4 = 0x0008 // ETH_P_IP in network byte order
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, ipv4)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	if err := unix.Bind(s, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: device.Index}); err != nil {
		return err
	}
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return err
	}
	frame := func(sequence, acknowledged uint32, flags byte) []byte {
		segment := make([]byte, 20)
		binary.BigEndian.PutUint16(segment, 40001)
		binary.BigEndian.PutUint16(segment[2:], 31999)
		binary.BigEndian.PutUint32(segment[4:], sequence)
		binary.BigEndian.PutUint32(segment[8:], acknowledged)
		segment[12], segment[13] = 5<<4, flags
		binary.BigEndian.PutUint16(segment[14:], 64240)
		packet := append([]byte{0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0}, source...)
		packet = append(packet, 127, 0, 0, 1)
		pseudo := append(append([]byte{}, packet[12:20]...), 0, 6, 0, 20)
		binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
		binary.BigEndian.PutUint16(packet[10:], checksum(packet))
		header := append(append(append([]byte{}, to...), device.HardwareAddr...), 8, 0)
		return append(append(header, packet...), segment...)
	}
	if _, err := unix.Write(s, frame(1000, 0, 0x02)); err != nil { // SYN
		return err
	}
	for buffer := make([]byte, 2048); ; {
		n, err := unix.Read(s, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n < 54 || buffer[14+9] != 6 {
			continue
		}
		segment := buffer[14+int(buffer[14]&15)*4 : min(n, 14+int(binary.BigEndian.Uint16(buffer[16:])))]
		if binary.BigEndian.Uint16(segment) != 31999 || binary.BigEndian.Uint16(segment[2:]) != 40001 {
			continue
		}
		if segment[13]&0x12 == 0x12 { // SYN, ACK
			if _, err := unix.Write(s, frame(1001, binary.BigEndian.Uint32(segment[4:])+1, 0x10)); err != nil {
				return err
			}
		} else if data := segment[int(segment[12]>>4)*4:]; len(data) > 0 {
			fmt.Print(string(data))
			return nil
		}
	}
}

func checksum(data []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
