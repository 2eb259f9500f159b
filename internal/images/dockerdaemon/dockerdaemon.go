// Package dockerdaemon saves images from a Docker engine, or another engine with its API, such as
// podman, to an archive. It does not read the archive, pull images or change the engine.
package dockerdaemon

import (
	"context"
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
	"github.com/moby/moby/client"
)

// Client is a connection to an engine. It is safe for concurrent use until it is closed.
type Client struct {
	api  *client.Client
	host string // a URL
}

// answerTimeout limits how long [Open] waits for a ping. An engine answers at once, but another
// program on the socket may never do.
const answerTimeout = 15 * time.Second

// Open connects to the engine of DOCKER_HOST or, without it, to the one at docker's default socket. It uses TLS with
// the certificates in DOCKER_CERT_PATH, unless that is empty, and always verifies the engine's. The API version is
// DOCKER_API_VERSION or negotiated, at least 1.40 (engine 19.03).
func Open(ctx context.Context) (*Client, error) {
	var options []client.Opt
	if dir := os.Getenv(client.EnvOverrideCertPath); dir != "" {
		options = append(options, client.WithTLSClientConfig(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"),
			filepath.Join(dir, "key.pem")))
	}
	api, err := client.New(append(options, client.WithHostFromEnv(), client.WithAPIVersionFromEnv())...)
	if err != nil {
		return nil, fmt.Errorf("Docker engine: %w", err)
	}
	c := &Client{api: api, host: api.DaemonHost()}
	pinging, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %s", answerTimeout))
	defer cancel()
	_, err = api.Ping(pinging, client.PingOptions{NegotiateAPIVersion: true})
	if err == nil {
		return c, nil
	}
	_ = api.Close()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("Docker engine at %s: %w", c.host, context.Cause(ctx))
	}
	if pinging.Err() != nil {
		err = context.Cause(pinging)
	}
	return nil, fmt.Errorf("Docker engine at %s: %w: start it, select another with DOCKER_HOST (docker context "+
		"inspect shows the address), or use a file written by docker save -o images.tar IMAGE…", c.host, err)
}

// Close closes idle connections.
func (c *Client) Close() error { return c.api.Close() }

// Host returns the engine's address as a URL, such as unix:///var/run/docker.sock.
func (c *Client) Host() string { return c.host }

// Save writes one archive of all images to a file: a docker archive, since engine 25 with an OCI layout.
// References are parsed as docker does: a name without a tag has the tag latest (never all tags, as
// with docker save). If the engine lacks some of the images, the others are saved, and missing names them.
//
// When ctx ends, the error is the context's.
func (c *Client) Save(ctx context.Context, refs []string, file *os.File) (missing, err error) {
	wrap := func(err error) error {
		if err != nil {
			err = fmt.Errorf("Docker engine at %s: %w", c.host, err)
		}
		return err
	}
	names, missing, err := c.find(ctx, refs)
	if len(names) == 0 && err == nil {
		missing, err = nil, missing
	}
	if err == nil {
		err = c.save(ctx, names, file)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return wrap(missing), wrap(err)
}

func (c *Client) save(ctx context.Context, names []string, file *os.File) error {
	stream, err := c.api.ImageSave(ctx, names)
	if err == nil {
		defer stream.Close()
		_, err = io.Copy(file, stream)
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// missingError returns the error about images that the engine does not have.
func missingError(images []string) error {
	if len(images) == 0 {
		return nil
	}
	return fmt.Errorf("not found: %s: run docker pull for each, or pull them from their registries without the Docker "+
		"engine", strings.Join(images, ", "))
}

// find returns the engine's names of the images that it has, each once.
func (c *Client) find(ctx context.Context, refs []string) (names []string, missing, err error) {
	if len(refs) == 0 {
		return nil, nil, errors.New("no image given")
	}
	var unknown []string
	for _, ref := range refs {
		named, err := reference.ParseNormalizedNamed(ref)
		if err != nil {
			return nil, nil, fmt.Errorf("image %s: %w", ref, err)
		}
		name := reference.FamiliarString(reference.TagNameOnly(named))
		_, err = c.api.ImageInspect(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			unknown = append(unknown, ref)
		case err != nil:
			return nil, nil, fmt.Errorf("image %s: %w", ref, err)
		case !slices.Contains(names, name):
			names = append(names, name)
		}
	}
	return names, missingError(unknown), nil
}
