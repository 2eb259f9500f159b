// Package dockerdaemon gets images out of a Docker engine, or of what speaks its
// API, such as podman: it finds the engine as the docker command does, and asks
// it for a save stream. It does not read the stream, does not pull into the
// engine and changes nothing in it.
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

// Client talks to one engine. It is safe for concurrent use until it is closed.
type Client struct {
	api  *client.Client
	host string // as a URL
}

// answerTimeout bounds how long [Open] waits for an engine's answer: one that is
// there answers a ping at once, and a socket that somebody else listens on may
// never do.
const answerTimeout = 15 * time.Second

// Open connects to the engine that the docker command would use: that of
// DOCKER_HOST, or of the docker context in DOCKER_CONTEXT or currentContext of
// docker's config.json, or the one at docker's default socket. TLS is as in
// DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, or in the context; a certificate that
// DOCKER_HOST's engine shows is always verified. DOCKER_API_VERSION, if set, is the
// version of the API; else both sides agree on one, 1.40 (engine 19.03) or later.
//
// An error names the engine, what named it, and the ways out.
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
		return nil, fmt.Errorf("docker engine at %s (%s): %w: %s", at.host, at.origin, err, waysOut)
	}
	return c, nil
}

const waysOut = "start it, name another with DOCKER_HOST or a docker context, " +
	"or save the images where they are with docker save -o images.tar IMAGE… and use that file"

func connect(ctx context.Context, at endpoint) (*Client, error) {
	// The options from the environment are not used as they come: they know no
	// contexts, and they would not verify the certificate where DOCKER_TLS_VERIFY
	// is not set.
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

// Close closes connections that nobody uses.
func (c *Client) Close() error { return c.api.Close() }

// Host is the engine's address as a URL, such as unix:///var/run/docker.sock.
func (c *Client) Host() string { return c.host }

// Save asks the engine for one save stream of all the images and gives it to read,
// which need not read to its end. References are read as docker reads them: a name
// without a tag is that of the tag latest (and never all tags, as for docker save),
// and IDs may be shortened. All that the engine does not have are in one error,
// before read is called.
//
// An error of read is wrapped. When ctx ends, the stream does, too, and the error
// is the context's.
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

// names are what the engine calls the images, each once.
func (c *Client) names(ctx context.Context, refs []string) ([]string, error) {
	if len(refs) == 0 {
		return nil, errors.New("no image is named")
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
		return nil, fmt.Errorf("image %s is not there: get it with docker pull %[1]s, or leave the docker engine out and pull it from its registry", unknown[0])
	}
	return nil, fmt.Errorf("images %s are not there: get each with docker pull, or leave the docker engine out and pull them from their registries", strings.Join(unknown, ", "))
}

// name is what the engine calls an image. Where it has none, the error is a
// not-found one of errdefs.
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
	// A shortened ID has the form of a name.
	found, shortErr := c.api.ImageInspect(ctx, ref)
	if shortErr != nil {
		return "", err
	}
	if id, invalid := digest.Parse(found.ID); invalid != nil || !strings.HasPrefix(id.Encoded(), ref) {
		return "", err
	}
	return found.ID, nil
}
