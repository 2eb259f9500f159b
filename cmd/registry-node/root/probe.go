package root

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/node/probe"
)

func probeCommand() *cobra.Command {
	var (
		config probe.Config
		caFile string
		output string
	)
	command := &cobra.Command{
		Use:   "probe --address HOST:PORT [--image REPOSITORY:TAG]",
		Short: "Check that images can be pulled from an address",
		Long: `Send the requests that a container runtime sends before a pull: for the API's root and, with --image, for the
manifest. If one fails, explain the cause and what to do. Exit code 0: pulls work, 1: they do not.`,
		Example: `  registry-node probe --address=127.0.0.1:31999
  registry-node probe --address=127.0.0.1:31999 --image=zarf-registry/probe:1.0.0 --output=json
  registry-node probe --address=[::1]:31999 --tls --ca-file=/etc/zarf-registry/tls/ca.crt`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return exitcode.Refuse("invalid --output %q: want text or json", output)
			}
			if caFile != "" {
				if !config.TLS {
					return exitcode.Refuse("--ca-file requires --tls")
				}
				var err error
				if config.RootCAs, err = readCAs(caFile); err != nil {
					return &exitcode.Refusal{Err: err}
				}
			}
			result, err := probe.Run(command.Context(), config)
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			if err := printResult(command.OutOrStdout(), output, result); err != nil {
				return err
			}
			if !result.OK {
				return fmt.Errorf("%s\n%s", result.Problem, result.Advice)
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.StringVar(&config.Address, "address", "", "`HOST:PORT` as in image references")
	flags.StringVar(&config.Image, "image", "", "`REPOSITORY:TAG` whose manifest is requested; none if empty")
	flags.BoolVar(&config.TLS, "tls", false, "use HTTPS")
	flags.StringVar(&caFile, "ca-file", "", "`FILE` with the CAs that verify the certificate; the system's if empty")
	flags.DurationVar(&config.Timeout, "timeout", 10*time.Second,
		"total timeout; a proxy whose registry is unavailable responds only after its --retry-timeout")
	flags.StringVar(&output, "output", "text", "`FORMAT` of the result: text or json")
	require(command, "address")
	return command
}

func readCAs(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the CAs: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s contains no certificate in PEM format", file)
	}
	return pool, nil
}

func printResult(w io.Writer, output string, result probe.Result) error {
	if output == "json" {
		return json.NewEncoder(w).Encode(result)
	}
	for _, step := range result.Steps {
		response := "no response"
		if step.Status != 0 {
			response = fmt.Sprint(step.Status)
		}
		if step.Digest != "" {
			response += " " + step.Digest
		}
		_, err := fmt.Fprintf(w, "%s %s: %s (%d ms)\n", step.Method, step.URL, response, step.Milliseconds)
		if err != nil {
			return err
		}
	}
	return nil
}
