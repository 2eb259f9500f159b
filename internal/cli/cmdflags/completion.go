package cmdflags

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
)

// completionTimeout is how long a shell waits for names.
const completionTimeout = 3 * time.Second

// completeFlags adds completion for the flags of the cluster.
func (f *Global) completeFlags(cmd *cobra.Command) {
	for flag, names := range map[string]func(clientcmdapi.Config) []string{
		"context": func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Contexts)) },
		"cluster": func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) },
		"user":    func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.AuthInfos)) },
	} {
		completeWith(cmd, flag, func(context.Context, string) ([]string, error) {
			config, err := f.Access.RawConfig()
			return names(config), err
		})
	}
	completeWith(cmd, "namespace", func(ctx context.Context, _ string) ([]string, error) {
		_, client, err := cluster.Connect(f.Access)
		if err != nil {
			return nil, err
		}
		list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		var found []string
		for _, n := range list.Items {
			found = append(found, n.Name)
		}
		return found, nil
	})
}

// completeWith adds [completion] for a flag's values.
func completeWith(cmd *cobra.Command, flag string, list func(ctx context.Context, word string) ([]string, error)) {
	_ = cmd.RegisterFlagCompletionFunc(flag, completion(list)) // fails only for an unknown flag
}

// completion completes a word with what list returns for it within [completionTimeout], apart from arguments that are
// given already. An error gives nothing.
func completion(list func(ctx context.Context, word string) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		found, err := list(ctx, word)
		if err != nil {
			found = nil
		}
		return slices.DeleteFunc(found, func(name string) bool {
			return !strings.HasPrefix(name, word) || slices.Contains(args, name)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteStored completes with what of returns of the content of the cluster's registry.
func (f *Cluster) CompleteStored(
	of func(content *catalog.Catalog, address, word string) []string,
) cobra.CompletionFunc {
	return completion(func(ctx context.Context, word string) ([]string, error) {
		c, content, err := f.ConnectToCatalog(ctx)
		if err != nil {
			return nil, err
		}
		c.Close()
		return of(content, c.Address, word), nil
	})
}
