package stored

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/inventory"
)

type inventoryFlags struct {
	cluster cmdflags.Cluster
	out     string
}

func NewInventory(global *cmdflags.Global) *cobra.Command {
	f := &inventoryFlags{cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "Write which blobs the cluster's registry has, so that pulls outside leave them out",
		Long: `inventory writes a list of all blobs in the cluster's registry, of six bytes each: a registry
with 1,000 images fits into 100 kB. It names no images. Carry it outside, where
zarf-registry images pull --have leaves out what it lists; zarf-registry images push then completes
the images from what the registry has.

Blobs that are no longer needed, and which garbage collection may remove, are not listed.

Exit codes: 0 on success, 1 on failure, 3 if the command line is invalid.`,
		Example: `  zarf-registry images inventory --out inventory.bin
  zarf-registry images pull -f images.txt --have inventory.bin --out thin.tar   # outside
  zarf-registry images push thin.tar                                         # inside`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.cluster.Register(cmd.Flags())
	cmd.Flags().StringVar(&f.out, "out", "", "`FILE` to write, or - for stdout")
	return cmd
}

func (f *inventoryFlags) run(cmd *cobra.Command) error {
	err := f.cluster.Validate()
	if f.out == "" {
		err = errors.Join(err, errors.New("--out is required: want a file, or - for stdout"))
	}
	if err != nil {
		return exitcode.Usage(err)
	}
	c, content, err := f.cluster.ConnectToCatalog(cmd.Context())
	if err != nil {
		return err
	}
	defer c.Close()
	cmdflags.WarnAbout(f.cluster.Progress(cmd.ErrOrStderr()), content)
	list := inventory.FromCatalog(content)
	encoded := list.Bytes()
	if f.out == "-" {
		_, err = cmd.OutOrStdout().Write(encoded)
	} else {
		err = os.WriteFile(f.out, encoded, 0o644) //nolint:gosec // it contains no secret
	}
	if err != nil {
		return fmt.Errorf("writing the inventory: %w", err)
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%d blobs, %d bytes\n", list.Len(), len(encoded))
	return err
}
