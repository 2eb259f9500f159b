package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/e2e/soak"
)

// sniff captures all packets that arrive at any interface of this network namespace except loopback,
// until stdin ends. In the control plane's namespace, whose bridge connects the nodes, these are all
// packets that leave a node. It prints each marker that it finds, at most once a second, and at the
// end the numbers of captured and dropped packets. Lines of stdin are "marker NAME HEX".
func sniff() error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(networkOrder(unix.ETH_P_ALL)))
	if err != nil {
		return fmt.Errorf("opening a packet socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }() // no data was written to the socket
	// Forwarded packets would be captured twice.
	if err := unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return fmt.Errorf("ignoring outgoing packets: %w", err)
	}
	const buffer = 64 << 20 // half a second of traffic between two nodes
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer); err != nil {
		return fmt.Errorf("enlarging the socket's buffer: %w", err)
	}
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
		return err
	}
	var mu sync.Mutex
	markers, ended := soak.Markers{}, make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fields := strings.Split(lines.Text(), "\t")
			if len(fields) != 3 || fields[0] != "marker" {
				continue
			}
			if value, err := hex.DecodeString(fields[2]); err == nil {
				mu.Lock()
				markers[fields[1]] = value
				mu.Unlock()
			}
		}
	}()
	out := json.NewEncoder(os.Stdout)
	reported := map[string]time.Time{}
	total := soak.Seen{End: true}
	packet := make([]byte, 256<<10)
	for {
		select {
		case <-ended:
			statistics, err := unix.GetsockoptTpacketStats(socket, unix.SOL_PACKET, unix.PACKET_STATISTICS)
			if err != nil {
				return err
			}
			total.Dropped = int(statistics.Drops)
			total.At = time.Now()
			return out.Encode(total)
		default:
		}
		n, from, err := unix.Recvfrom(socket, packet, 0)
		if err == unix.EAGAIN || err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading packets: %w", err)
		}
		// Loopback traffic does not leave a node.
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Hatype == unix.ARPHRD_LOOPBACK {
			continue
		}
		total.Packets++
		mu.Lock()
		found := markers.Find(packet[:n])
		mu.Unlock()
		for _, name := range found {
			if time.Since(reported[name]) < time.Second {
				continue
			}
			reported[name] = time.Now()
			if err := out.Encode(soak.Seen{At: reported[name], Marker: name, Packet: describe(packet[:n])}); err != nil {
				return err
			}
		}
	}
}

func networkOrder(n uint16) uint16 { return n<<8 | n>>8 }

// describe returns source, destination and size of an IPv4 packet in an Ethernet frame.
func describe(packet []byte) string {
	const ethernet = 14
	if len(packet) < ethernet+20 || packet[12] != 0x08 || packet[13] != 0 {
		return fmt.Sprintf("%d bytes that are not IPv4", len(packet))
	}
	ip := packet[ethernet:]
	from, to := net.IP(ip[12:16]).String(), net.IP(ip[16:20]).String()
	if header := int(ip[0]&15) * 4; len(ip) >= header+4 {
		from += ":" + strconv.Itoa(int(ip[header])<<8|int(ip[header+1]))
		to += ":" + strconv.Itoa(int(ip[header+2])<<8|int(ip[header+3]))
	}
	return fmt.Sprintf("%s -> %s, %d bytes", from, to, len(packet))
}

// say sends a text to a UDP port.
func say(address, text string) error {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(text))
	return err
}

// scan prints the open TCP ports of hosts: {"HOST": [PORT…]}. ports are numbers and ranges, as in
// 22,30000-32767.
func scan(ports string, hosts []string) error {
	var all []int
	for part := range strings.SplitSeq(ports, ",") {
		first, last, found := strings.Cut(part, "-")
		if !found {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return err
		}
		to, err := strconv.Atoi(last)
		if err != nil {
			return err
		}
		for port := from; port <= to; port++ {
			all = append(all, port)
		}
	}
	type target struct {
		host string
		port int
	}
	open := map[string][]int{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	work := make(chan target)
	for range 128 {
		wait.Go(func() {
			for at := range work {
				conn, err := net.DialTimeout("tcp", net.JoinHostPort(at.host, strconv.Itoa(at.port)), 10*time.Second)
				if err != nil {
					continue
				}
				conn.Close()
				mu.Lock()
				open[at.host] = append(open[at.host], at.port)
				mu.Unlock()
			}
		})
	}
	for _, port := range all {
		for _, host := range hosts {
			work <- target{host, port}
		}
	}
	close(work)
	wait.Wait()
	for _, found := range open {
		slices.Sort(found)
	}
	return json.NewEncoder(os.Stdout).Encode(open)
}
