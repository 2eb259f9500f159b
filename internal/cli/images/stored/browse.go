package stored

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
	"github.com/zarf-dev/zarf-registry/internal/status/browse"
)

const (
	// browseTimeout bounds a request, which may read the whole catalog.
	browseTimeout = 5 * time.Minute
	// browseShutdown is how long requests may run on after an interrupt.
	browseShutdown = time.Second
	maxPort        = 65535
)

type browseFlags struct {
	cluster cmdflags.Cluster
	port    int
}

func NewBrowse(global *cmdflags.Global) *cobra.Command {
	f := &browseFlags{cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "browse",
		Short: "Show the content of the cluster's registry in a web browser",
		Long: `browse serves web pages on this machine's loopback address until it is interrupted: images
with their layers, signatures, SBOMs and users, nodes, certificates and storage. They are
read-only, and load nothing from the internet.

The connection to the cluster is that of zarf-registry images list. Only someone who has the
printed URL can open the pages.

Exit codes: 0 when it is interrupted, 1 on failure, 3 if the command line is invalid.`,
		Example: `  zarf-registry images browse
  zarf-registry images browse --port 8080`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.cluster.Register(cmd.Flags())
	cmdflags.AddNumber(cmd.Flags(), &f.port, "port", 0, maxPort, 0, "port on the loopback address; 0 chooses a free one")
	return cmd
}

func (f *browseFlags) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	source, err := f.open(cmd)
	if err != nil {
		return err
	}
	defer source.close()
	// Errors, such as missing permissions, appear here rather than on the page.
	if _, err := source.Load(ctx); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", f.port))
	if err != nil {
		return fmt.Errorf("opening the port: %w: choose another one with --port", err)
	}
	pages := browse.New(source, listener.Addr().String(), rand.Text())
	server := &http.Server{Handler: pages, ReadHeaderTimeout: browseTimeout, ReadTimeout: browseTimeout,
		WriteTimeout: browseTimeout}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), pages.URL()); err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "open this URL in a browser; Ctrl-C ends")
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), browseShutdown)
	defer cancel()
	if err := server.Shutdown(ending); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// browseSource reads what the pages show from the cluster.
type browseSource struct {
	flags    *cmdflags.Cluster
	access   *cmdflags.Access
	registry *remote.Registry
}

func (f *browseFlags) open(cmd *cobra.Command) (*browseSource, error) {
	c, _, err := f.cluster.Begin(cmd, nil)
	if err != nil {
		return nil, err
	}
	registry, err := f.cluster.OpenRegistry(c, remote.Options{})
	if err != nil {
		return nil, err
	}
	return &browseSource{&f.cluster, c, registry}, nil
}

func (s *browseSource) close() {
	s.registry.Close()
	s.access.Close()
}

func (s *browseSource) Load(ctx context.Context) (*browse.Snapshot, error) {
	content, err := cluster.Catalog(ctx, s.access.Transport, s.access.Access)
	if err != nil {
		return nil, err
	}
	snapshot := &browse.Snapshot{Address: s.access.Address, Content: content}
	if used, err := workloads.List(ctx, s.access.Client); err == nil {
		snapshot.Using = used.Using
	}
	snapshot.Status, err = s.flags.CollectStatus(ctx, s.access.Config, s.access.Client)
	return snapshot, err
}

func (s *browseSource) Manifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	r, err := s.registry.Repository(repository)
	if err != nil {
		return nil, err
	}
	_, raw, err := r.Manifest(ctx, d.String())
	return raw, err
}
