// Package dockerdaemon saves images from a Docker engine, or another engine with its API, such as
// podman. It finds the engine as the docker command does, and saves images to an archive. It does not
// read the archive, pull images or change the engine.
package dockerdaemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/cli/cli/context/docker"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
)

// Client is a connection to an engine. It is safe for concurrent use until it is closed.
type Client struct {
	api  *client.Client
	host string // a URL
}

// answerTimeout limits how long [Open] waits for a ping. An engine answers at once, but another
// program on the socket may never do.
const answerTimeout = 15 * time.Second

// Open connects to the engine that the docker command would use: that of DOCKER_HOST, of the docker
// context in DOCKER_CONTEXT or in currentContext of docker's config.json, or the one at docker's
// default socket. TLS settings come from DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, or from the context.
// The certificate of DOCKER_HOST's engine is always verified. For ssh:// it runs ssh. The API version is
// DOCKER_API_VERSION or negotiated, at least 1.40 (engine 19.03).
//
// An error names the engine, where its address comes from, and remedies.
func Open(ctx context.Context) (*Client, error) {
	at, origin, err := findEndpoint()
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx, at)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("Docker engine at %s: %w", at.Host, context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("Docker engine at %s (%s): %w: %s", at.Host, origin, err, remedies)
	}
	return c, nil
}

const remedies = "start it, select another with DOCKER_HOST or a docker context, " +
	"or use a file written by docker save -o images.tar IMAGE…"

func connect(ctx context.Context, at docker.Endpoint) (*Client, error) {
	options, err := at.ClientOpts()
	if err != nil {
		return nil, err
	}
	api, err := client.New(options...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %s", answerTimeout))
	defer cancel()
	if _, err := api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		_ = api.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	return &Client{api: api, host: at.Host}, nil
}

// Close closes idle connections.
func (c *Client) Close() error { return c.api.Close() }

// Host returns the engine's address as a URL, such as unix:///var/run/docker.sock.
func (c *Client) Host() string { return c.host }

// Save writes one archive of all images to a file: a docker archive, since engine 25 with an OCI layout.
// References are parsed as docker does: a name without a tag has the tag latest (never all tags, as
// with docker save), and IDs may be shortened. If the engine lacks images, the others are saved, and the
// error is a [*MissingError]. If the file system does not have the space that they need at most, nothing is written.
//
// When ctx ends, the error is the context's.
func (c *Client) Save(ctx context.Context, refs []string, file *os.File) error {
	if err := c.save(ctx, refs, file); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("Docker engine at %s: %w", c.host, err)
	}
	return nil
}

func (c *Client) save(ctx context.Context, refs []string, file *os.File) error {
	names, size, missing := c.find(ctx, refs)
	if _, some := errors.AsType[*MissingError](missing); missing != nil && (!some || len(names) == 0) {
		return missing
	}
	if err := checkSpace(file, size); err != nil {
		return err
	}
	stream, err := c.api.ImageSave(ctx, names)
	if err == nil {
		defer stream.Close()
		if size, err = io.Copy(file, stream); err == nil {
			err = engineError(file, size)
		}
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", strings.Join(names, ", "), err)
	}
	return missing
}

// MissingError lists images that the engine does not have.
type MissingError struct{ Images []string }

// Error implements error.
func (e *MissingError) Error() string {
	if len(e.Images) == 1 {
		return fmt.Sprintf("image %s not found: run docker pull %[1]s, or pull it from its registry without the Docker "+
			"engine", e.Images[0])
	}
	return fmt.Sprintf("images %s not found: run docker pull for each, or pull them from their registries without the "+
		"Docker engine", strings.Join(e.Images, ", "))
}

// checkSpace returns an error if the file system of a file has less free space than size, in bytes.
func checkSpace(file *os.File, size int64) error {
	var stat unix.Statfs_t
	if unix.Fstatfs(int(file.Fd()), &stat) != nil {
		return nil // writing reports what is wrong
	}
	if free := int64(stat.Bavail) * int64(stat.Bsize); free < size { //nolint:unconvert // macOS has another type
		return fmt.Errorf("the images need up to %s, and %s has %s of free space: make room there, or set TMPDIR",
			space.FormatBytes(size), filepath.Dir(file.Name()), space.FormatBytes(free))
	}
	return nil
}

// tailSize is enough for an engine's error message, in bytes.
const tailSize = 4 << 10

// engineError returns the error of an engine that failed while it wrote size bytes to a file: it writes a line of
// JSON and stops. This is not documented; see getImagesGet in moby.
func engineError(file *os.File, size int64) error {
	tail := make([]byte, min(size, tailSize))
	if _, err := file.ReadAt(tail, size-int64(len(tail))); err != nil {
		return err
	}
	var message jsonstream.Message
	at := bytes.LastIndex(tail, []byte(`{"errorDetail":`))
	// If something follows, it is content of an image.
	if at < 0 || json.Unmarshal(tail[at:], &message) != nil || message.Error == nil {
		return nil
	}
	return fmt.Errorf("the engine failed: %w", message.Error)
}

// find returns the engine's names of the images, each once, and the sum of their sizes in bytes. Layers that several of
// them share are counted several times. With a [*MissingError], they are those of the other images.
func (c *Client) find(ctx context.Context, refs []string) (names []string, size int64, err error) {
	if len(refs) == 0 {
		return nil, 0, errors.New("no image given")
	}
	var unknown []string
	for _, ref := range refs {
		name, bytes, err := c.inspect(ctx, ref)
		switch {
		case errdefs.IsNotFound(err):
			unknown = append(unknown, ref)
		case err != nil:
			return nil, 0, fmt.Errorf("image %s: %w", ref, err)
		case !slices.Contains(names, name):
			names, size = append(names, name), size+bytes
		}
	}
	if len(unknown) > 0 {
		return names, size, &MissingError{unknown}
	}
	return names, size, nil
}

// inspect returns the engine's name of an image, and its size. The error is an errdefs not-found error if it does not
// exist.
func (c *Client) inspect(ctx context.Context, ref string) (name string, size int64, err error) {
	parsed, err := reference.ParseAnyReference(ref)
	if err != nil {
		return "", 0, err
	}
	name = ref
	named, ok := parsed.(reference.Named)
	if ok {
		name = reference.FamiliarString(reference.TagNameOnly(named))
	}
	image, err := c.api.ImageInspect(ctx, name)
	if err == nil || !errdefs.IsNotFound(err) || name == ref {
		return name, image.Size, err
	}
	// A shortened ID looks like a name.
	found, shortErr := c.api.ImageInspect(ctx, ref)
	if shortErr != nil {
		return "", 0, err
	}
	if id, invalid := digest.Parse(found.ID); invalid != nil || !strings.HasPrefix(id.Encoded(), ref) {
		return "", 0, err
	}
	return found.ID, found.Size, nil
}
