// Package dockerdaemon saves images from a Docker engine, or another engine with its API, such as
// podman. It finds the engine as the docker command does, and requests a save stream. It does not
// parse the stream, pull images or change the engine.
package dockerdaemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/client"
	"github.com/opencontainers/go-digest"
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
// The certificate of DOCKER_HOST's engine is always verified. The API version is DOCKER_API_VERSION or
// negotiated, at least 1.40 (engine 19.03).
//
// An error names the engine, where its address comes from, and remedies.
func Open(ctx context.Context) (*Client, error) {
	at, err := findEndpoint()
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx, at)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("docker engine at %s: %w", at.host, context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("docker engine at %s (%s): %w: %s", at.host, at.origin, err, remedies)
	}
	return c, nil
}

const remedies = "start it, select another with DOCKER_HOST or a docker context, " +
	"or use a file written by docker save -o images.tar IMAGE…"

func connect(ctx context.Context, at endpoint) (*Client, error) {
	// The client's own options from the environment ignore contexts, and do not verify the certificate
	// unless DOCKER_TLS_VERIFY is set.
	scheme := "http"
	if at.tls != nil {
		scheme = "https"
	}
	api, err := client.New(
		client.WithHTTPClient(&http.Client{
			Transport:     &http.Transport{TLSClientConfig: at.tls},
			CheckRedirect: client.CheckRedirect,
		}),
		client.WithHost(at.host),
		client.WithScheme(scheme),
		client.WithAPIVersionFromEnv(),
	)
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
	return &Client{api: api, host: at.host}, nil
}

// Close closes idle connections.
func (c *Client) Close() error { return c.api.Close() }

// Host returns the engine's address as a URL, such as unix:///var/run/docker.sock.
func (c *Client) Host() string { return c.host }

// Save requests one save stream of all images and passes it to read, which need not read to its end.
// References are parsed as docker does: a name without a tag has the tag latest (never all tags, as
// with docker save), and IDs may be shortened. If the engine lacks images, the error lists all of
// them, and read is not called.
//
// Errors of read are wrapped. When ctx ends, the stream ends and the error is the context's.
func (c *Client) Save(ctx context.Context, refs []string, read func(io.Reader) error) error {
	if err := c.save(ctx, refs, read); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("docker engine at %s: %w", c.host, err)
	}
	return nil
}

func (c *Client) save(ctx context.Context, refs []string, read func(io.Reader) error) error {
	names, err := c.names(ctx, refs)
	if err != nil {
		return err
	}
	stream, err := c.api.ImageSave(ctx, names)
	if err != nil {
		return fmt.Errorf("save %s: %w", strings.Join(names, ", "), err)
	}
	defer stream.Close()
	if err := read(stream); err != nil {
		return fmt.Errorf("save %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// names returns the engine's names of the images, each once.
func (c *Client) names(ctx context.Context, refs []string) ([]string, error) {
	if len(refs) == 0 {
		return nil, errors.New("no image given")
	}
	var names, unknown []string
	for _, ref := range refs {
		name, err := c.name(ctx, ref)
		switch {
		case errdefs.IsNotFound(err):
			unknown = append(unknown, ref)
		case err != nil:
			return nil, fmt.Errorf("image %s: %w", ref, err)
		case !slices.Contains(names, name):
			names = append(names, name)
		}
	}
	switch len(unknown) {
	case 0:
		return names, nil
	case 1:
		return nil, fmt.Errorf(
			"image %s not found: run docker pull %[1]s, or pull it from its registry without the docker engine", unknown[0])
	}
	return nil, fmt.Errorf("images %s not found: run docker pull for each, or pull them from their registries without "+
		"the docker engine", strings.Join(unknown, ", "))
}

// name returns the engine's name of an image. The error is an errdefs not-found error if it does not
// exist.
func (c *Client) name(ctx context.Context, ref string) (string, error) {
	parsed, err := reference.ParseAnyReference(ref)
	if err != nil {
		return "", err
	}
	name := ref
	named, ok := parsed.(reference.Named)
	if ok {
		name = reference.FamiliarString(reference.TagNameOnly(named))
	}
	_, err = c.api.ImageInspect(ctx, name)
	if err == nil || !errdefs.IsNotFound(err) || name == ref {
		return name, err
	}
	// A shortened ID looks like a name.
	found, shortErr := c.api.ImageInspect(ctx, ref)
	if shortErr != nil {
		return "", err
	}
	if id, invalid := digest.Parse(found.ID); invalid != nil || !strings.HasPrefix(id.Encoded(), ref) {
		return "", err
	}
	return found.ID, nil
}
