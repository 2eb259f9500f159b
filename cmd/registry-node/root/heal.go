package root

import (
	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/node/heal"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
)

func healCommand() *cobra.Command {
	var (
		log                logging.Options
		namespace, release string
		credentials        string
		pauseImages        string
		config             heal.Config
	)
	command := &cobra.Command{
		Use:   "heal --namespace NAMESPACE --release RELEASE --pause-images DIRECTORY",
		Short: "Give the release's pods an image that their node has",
		Long: `Watch the pods of a release in one namespace. If a pod that runs an injected program waits for an image which
its node does not have, replace it with one that the node reports and that --pause-images allows. An annotation of the
pod keeps the previous image, and an event says what was done. Other pods and containers are never changed.

With --proxy-rollouts, also continue updates of the proxies which Kubernetes does not continue: on ready nodes, delete
one outdated pod and, when its successor is ready, the next ones, at most as many at a time as the DaemonSet allows.

With --repositories-configmap, also keep the names of the registry's repositories in that ConfigMap, for the policy
that rewrites references.

The command runs in a pod, with the credentials of its ServiceAccount, until SIGTERM. Several may run at once.`,
		Example: `  registry-node heal --namespace=zarf --release=zarf-registry \
    --pause-images=/etc/zarf-registry/pause-images`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			logger, err := log.New(command.ErrOrStderr())
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			if err := config.Repositories.Validate(); err != nil {
				return &exitcode.Refusal{Err: err}
			}
			config.Logger = logger
			config.Rules = func() (nodeimages.Rules, error) { return nodeimages.Read(pauseImages) }
			config.Connect = func() (*heal.Client, error) {
				client, err := heal.InCluster(credentials)
				if err != nil {
					return nil, err
				}
				client.Namespace, client.Release = namespace, release
				return client, nil
			}
			releaseMemory() // it is idle nearly all of the time
			return heal.New(config).Run(command.Context())
		},
	}
	flags := command.Flags()
	flags.StringVar(&namespace, "namespace", "", "`NAMESPACE` of the pods")
	flags.StringVar(&release, "release", "", "`RELEASE` whose pods are watched")
	flags.StringVar(&pauseImages, "pause-images", "", "`DIRECTORY` with the rules about images: a mounted ConfigMap")
	flags.BoolVar(&config.Rollouts, "proxy-rollouts", false, "continue updates of the proxies")
	flags.StringVar(&config.Repositories.ConfigMap, heal.FlagRepositories, "",
		"`NAME` of the ConfigMap for the names of repositories; none if empty")
	flags.StringVar(&config.Repositories.Registry, heal.FlagRegistry, "", "`HOST:PORT` of the registry")
	flags.StringVar(&config.Repositories.TLSDir, heal.FlagTLSDir, "", "`DIRECTORY` with tls.crt, tls.key and ca.crt")
	flags.StringVar(&config.Listen, "metrics-listen", "", "`ADDRESS` of /healthz, /readyz and /metrics; disabled if empty")
	flags.StringVar(&credentials, "service-account-dir", heal.ServiceAccountDir,
		"`DIRECTORY` with the ServiceAccount's token and ca.crt")
	log.Register(flags)
	require(command, "namespace", "release", "pause-images")
	return command
}
