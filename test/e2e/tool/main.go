// Command tool runs inside pods and inside nodes' network namespaces during e2e tests: it dials,
// pulls as container runtimes do, captures packets and scans ports. It is static, so that it can be
// the only file of an image.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0 || args[0] == "hello":
		fmt.Println("hello from an image of the registry")
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		<-ctx.Done()
		return nil
	case args[0] == "dial" && len(args) == 2:
		conn, err := net.DialTimeout("tcp", args[1], 10*time.Second)
		if err != nil {
			return err
		}
		fmt.Println("connected to", conn.RemoteAddr())
		return conn.Close()
	case args[0] == "get" && len(args) == 2:
		body, _, err := get(http.DefaultClient, args[1])
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(body)
		return err
	case args[0] == "pull" && len(args) == 6:
		pause, err := time.ParseDuration(args[5])
		if err != nil {
			return err
		}
		return pullUntil(args[1], args[2], args[3], args[4], pause)
	case args[0] == "slowly" && len(args) == 4:
		return pullSlowly(args[1], args[2], args[3])
	case args[0] == "stall" && len(args) == 4:
		n, err := strconv.Atoi(args[3])
		if err != nil || n < 1 {
			return fmt.Errorf("invalid number of downloads %q", args[3])
		}
		return stall(args[1], args[2], n)
	case args[0] == "watch" && len(args) == 3:
		pause, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		return watch(args[1], pause)
	case args[0] == "each" && len(args) == 2:
		return each(args[1])
	case args[0] == "sniff" && len(args) == 1:
		return sniff()
	case args[0] == "say" && len(args) == 3:
		return say(args[1], args[2])
	case args[0] == "scan" && len(args) > 2:
		return scan(args[1], args[2:])
	case args[0] == "sum" && len(args) == 3:
		return sumAndListen(args[1], args[2])
	case args[0] == "crictl" && len(args) == 6:
		n, err := strconv.Atoi(args[2])
		if err != nil || n < 1 {
			return fmt.Errorf("invalid number of tags %q", args[2])
		}
		pause, err := time.ParseDuration(args[5])
		if err != nil {
			return err
		}
		return crictlUntil(args[1], n, args[3], args[4], pause)
	}
	return errors.New("usage: tool [hello | dial HOST:PORT | get URL | " +
		"pull BASE-URL REPOSITORY:TAG SLOW-IMAGE STOP-FILE PAUSE | slowly BASE-URL REPOSITORY:TAG BEGUN-FILE | " +
		"stall BASE-URL REPOSITORY:TAG NUMBER | " +
		"crictl IMAGE NUMBER SLOW-IMAGE STOP-FILE PAUSE | watch BASE-URL PAUSE | each BASE-URL | " +
		"sniff | say HOST:PORT TEXT | scan PORTS HOST... | sum FILE ADDRESS]")
}

// sumAndListen prints the digest of a file, and accepts connections until it is asked to end.
func sumAndListen(file, address string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(sum(content))
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
}

// pullUntil keeps pulling a manifest and its blobs and verifies every digest.
func pullUntil(base, image, slow, stopFile string, pause time.Duration) error {
	repository, tag := split(image)
	// A new connection for each pull, as container runtimes do.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	return loop(base, slow, stopFile, pause, func(int) (int64, error) { return pull(client, base, repository, tag) })
}

// split splits REPOSITORY:TAG, of which the tag may be missing.
func split(image string) (repository, tag string) {
	for i := len(image) - 1; i >= 0 && image[i] != '/'; i-- {
		if image[i] == ':' {
			return image[:i], image[i+1:]
		}
	}
	return image, "latest"
}

// pullSlowly pulls an image once as a container runtime does that unpacks more slowly than the
// network delivers, 1 MB a second. Most of a blob then waits in socket buffers. It creates the file begun after 1 MB.
func pullSlowly(base, image, begun string) error {
	repository, tag := split(image)
	var read atomic.Int64
	go func() {
		for read.Load() < 1<<20 {
			time.Sleep(10 * time.Millisecond)
		}
		_ = os.WriteFile(begun, nil, 0o600) // the test waits for it
	}()
	n, err := pull(slowClient(&read), base, repository, tag)
	if err == nil {
		fmt.Printf("pulled %d bytes\n", n)
	}
	return err
}

// slowClient returns a client that counts the bytes that it reads.
func slowClient(read *atomic.Int64) *http.Client {
	slowly := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return slowConn{conn, read}, err
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: slowly}}
}

// dial connects with the timeouts of container runtimes.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dialFromNextPort(ctx, network, address, connectTimeout)
	return idleConn{conn}, err
}

type slowConn struct {
	net.Conn
	read *atomic.Int64
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 32<<10)])
	c.read.Add(int64(n))
	time.Sleep(time.Duration(n) * time.Microsecond)
	return n, err
}

// crictlUntil makes the node's container runtime pull image-0 to image-(n-1) repeatedly. It first
// removes an image that the node has, so that every pull transfers something. CRICTL_CREDS may hold
// user:password.
func crictlUntil(image string, n int, slow, stopFile string, pause time.Duration) error {
	crictl := func(args ...string) error {
		// A pull that hangs counts as failed. The proxy may hold one for a minute.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, "crictl", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("crictl %v: %w: %s", args, err, out)
		}
		return nil
	}
	// Left by an earlier loop; crictl fails if one of them is missing.
	all := []string{"rmi"}
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", image, i))
	}
	_ = crictl(all...)
	address, _, _ := strings.Cut(image, "/")
	return loop("http://"+address, slow, stopFile, pause, func(i int) (int64, error) {
		tag := fmt.Sprintf("%s-%d", image, i%n)
		if i >= n {
			if err := crictl("rmi", tag); err != nil {
				return 0, err
			}
		}
		return 0, crictl("pull", tag)
	})
}

func pull(client *http.Client, base, repository, tag string) (int64, error) {
	body, digest, err := get(client, base+"/v2/"+repository+"/manifests/"+tag)
	if err != nil {
		return 0, fmt.Errorf("manifest: %w", err)
	}
	if got := sum(body); digest != got {
		return 0, fmt.Errorf("manifest: digest is %s, the registry claims %s", got, digest)
	}
	total := int64(len(body))
	var manifest struct {
		Manifests []struct{ Digest string }
		Config    struct{ Digest string }
		Layers    []struct{ Digest string }
	}
	if err := json.Unmarshal(body, &manifest); err != nil {
		return total, fmt.Errorf("manifest: %w", err)
	}
	for _, m := range manifest.Manifests {
		n, err := pull(client, base, repository, m.Digest)
		total += n
		if err != nil {
			return total, err
		}
	}
	var blobs []string
	if manifest.Config.Digest != "" {
		blobs = append(blobs, manifest.Config.Digest)
	}
	for _, l := range manifest.Layers {
		blobs = append(blobs, l.Digest)
	}
	for _, want := range blobs {
		body, _, err := get(client, base+"/v2/"+repository+"/blobs/"+want)
		total += int64(len(body))
		if err != nil {
			return total, fmt.Errorf("blob %s: %w", want, err)
		}
		if got := sum(body); got != want {
			return total, fmt.Errorf("blob %s: digest is %s", want, got)
		}
	}
	return total, nil
}

// errBroken is the error of a response that has begun and does not end.
var errBroken = errors.New("broken response")

func get(client *http.Client, url string) ([]byte, string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, "", err
	}
	if user, password, ok := strings.Cut(os.Getenv("CRICTL_CREDS"), ":"); ok {
		request.SetBasicAuth(user, password)
	}
	for _, t := range []string{"application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"} {
		request.Header.Add("Accept", t)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", errBroken, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, "", errors.New("status " + strconv.Itoa(response.StatusCode) + ": " + string(body))
	}
	return body, response.Header.Get("Docker-Content-Digest"), nil
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}
