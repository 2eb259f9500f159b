// Package cli implements the command line of testcertmanager: it prepares the cluster, runs the
// controllers, and stops them.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/zarf-dev/zarf-registry/test/certmanager/internal/controllers"
	"github.com/zarf-dev/zarf-registry/test/certmanager/internal/crd"
)

// verbosity is the default of cert-manager's chart.
const verbosity = "2"

// secretNamespace has the Secrets that ClusterIssuers name.
const secretNamespace = "cert-manager"

// prepareTimeout allows for an API server that takes a few seconds to answer on a busy machine.
const prepareTimeout = time.Minute

// Main runs testcertmanager and returns its exit code.
func Main(args []string) int {
	logs := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(logs)
	if err := logs.Set("v", verbosity); err != nil {
		panic(err) // the flag exists in klog, and the value is a number
	}
	defer klog.Flush()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "testcertmanager: %v\n", err)
		return 1
	}
	return 0
}

// options are the flags.
type options struct {
	kubeconfig     string
	crds           string
	stopOnStdinEOF bool
}

func newRoot() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "testcertmanager --kubeconfig FILE",
		Short: "cert-manager's controllers, as a process outside the cluster",
		Long: `testcertmanager applies cert-manager's CustomResourceDefinitions to a cluster and runs
those of its controllers that issuers of the types selfSigned and CA need. It prints
"ready" when they work, logs to stderr, and runs until SIGTERM or SIGINT.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	flags := root.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster, with administrator permissions (required)")
	flags.StringVar(&o.crds, "crds", "",
		"folder of cert-manager's CustomResourceDefinitions (default: the one in Go's module cache)")
	flags.BoolVar(&o.stopOnStdinEOF, "stop-on-stdin-eof", false,
		"stop when stdin is closed too; with a pipe, when the parent process ends")
	if err := root.MarkFlagRequired("kubeconfig"); err != nil {
		panic(err) // the flag is declared above
	}
	return root
}

// run returns nil when it is stopped by ctx or by the end of stdin.
func run(ctx context.Context, o options, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.stopOnStdinEOF {
		go func() {
			_, _ = io.Copy(io.Discard, stdin) // an error ends it as well
			cancel()
		}()
	}
	err := prepare(ctx, o)
	if err == nil {
		err = controllers.Run(ctx, controllers.Options{Kubeconfig: o.kubeconfig, Namespace: secretNamespace}, func() {
			fmt.Fprintln(stdout, "ready")
		})
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare creates the objects of cert-manager's chart that the controllers need.
func prepare(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", o.kubeconfig, err)
	}

	dir := o.crds
	if dir == "" {
		info, ok := debug.ReadBuildInfo()
		if !ok {
			return errors.New("this program has no build information; name the folder of the CRDs with --crds")
		}
		if dir, err = crd.ModuleDir(ctx, info); err != nil {
			return fmt.Errorf("%w; build this program again, or name the folder with --crds", err)
		}
	}
	crds, err := crd.Read(dir)
	if err != nil {
		return err
	}
	if err := crd.Apply(ctx, client, crds); err != nil {
		return err
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	namespace.SetName(secretNamespace)
	_, err = client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Create(ctx, namespace,
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s: %w", secretNamespace, err)
	}
	return nil
}
