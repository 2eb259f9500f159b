package preflight

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/hook/userobject"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

// lookAtNodeConfig validates the node configuration the way each node will, before anything
// changes.
func (i *Inspection) lookAtNodeConfig(ctx context.Context) ([]Finding, error) {
	var findings []Finding
	if !i.Settings.ConfiguresNodes() {
		return findings, nil
	}
	object := i.Object("Secret", i.Settings.Name+names.SuffixNodeConfig)
	block := func(object, cause, remedy string) {
		findings = append(findings, Finding{Check: checkNodeConfig, Severity: Blocker, Object: object, Cause: cause,
			Remedy: remedy})
	}
	data := i.NodeConfigData
	if data == nil {
		proposal := i.Settings.Name + names.SuffixNodeProposal
		object = i.Object("Secret", proposal)
		secret, err := i.ReadSecret(ctx, proposal)
		switch {
		case err != nil:
			return nil, err
		case secret == nil:
			block(object, "it does not exist, so the node configuration cannot be checked",
				"run helm upgrade or zarf-registry install, which create it while prepare runs")
			return findings, nil
		}
		data = secret.Data
	}
	config, err := noderuntime.ParseConfig(data[noderuntime.KeyConfig])
	if err != nil {
		block(object, fmt.Sprintf("its key %s cannot be used: %s", noderuntime.KeyConfig, err),
			"use the chart of this program's own release")
		return findings, nil
	}
	i.nodeConfig = config

	findings = append(findings, i.leftOut()...)

	inputs := noderuntime.Inputs{Config: config, Registries: data[noderuntime.KeyRegistries]}
	if i.Settings.NodeConfig.RegistriesSecret != "" {
		registries, missing, err := i.registriesSecret(ctx)
		if err != nil {
			return nil, err
		}
		if missing != nil {
			block(missing.Object, missing.Cause, missing.Remedy)
			registries = []byte("{}\n") // so that other problems are reported too
		}
		inputs.Registries = registries
	}
	if i.Settings.NodeConfig.CA {
		if inputs.CA, err = i.standInCA(); err != nil {
			return nil, err
		}
	}
	if _, err := noderuntime.Build(inputs); err != nil {
		for problem := range strings.Lines(err.Error()) {
			block("", strings.TrimSpace(problem), "then run this again; nothing was written on any node")
		}
	}
	return findings, nil
}

// leftOut finds clusters with control-plane nodes only, which the node configuration leaves out.
func (i *Inspection) leftOut() []Finding {
	if !i.Settings.NodeConfig.AgentsOnly {
		return nil
	}
	var servers []string
	for _, n := range i.nodes {
		if plan.ControlPlane(n) {
			servers = append(servers, n.Name)
		}
	}
	if len(servers) < len(i.nodes) || i.Saved != nil && i.Saved.NodeConfig != nil {
		return nil
	}
	return []Finding{{Check: checkNodeConfig, Severity: Blocker, Object: release.ListNodes(servers),
		Cause: "a directory to mount contains an administrator's kubeconfig on control-plane nodes, so they are not " +
			"configured; no other node can run it",
		Remedy: "set nodeConfig.k3s.path to a directory of its own (and K3s' --private-registry to match), or " +
			"nodeConfig.k3s.controlPlane=true"}}
}

// registriesSecret reads registries.yaml from the user's Secret, or returns the problem with it.
func (i *Inspection) registriesSecret(ctx context.Context) ([]byte, *userobject.Problem, error) {
	name, key := i.Settings.NodeConfig.RegistriesSecret, i.Settings.NodeConfig.RegistriesKey
	object := i.Object("Secret", name)
	remedy := fmt.Sprintf("create it, with K3s' registries.yaml under the key %s, or name another in "+
		"nodeConfig.k3s.existingSecret and existingSecretKey", key)
	secret, err := i.ReadSecret(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if secret == nil {
		return nil, &userobject.Problem{Object: object, Remedy: remedy,
			Cause: "it does not exist, but nodeConfig.k3s.existingSecret names it"}, nil
	}
	registries, has := secret.Data[key]
	if !has {
		return nil, &userobject.Problem{Object: object, Cause: "it has no key " + key + " (nodeConfig.k3s.existingSecretKey)",
			Remedy: remedy}, nil
	}
	return registries, nil, nil
}

// standInCA returns a CA certificate in place of those that nodes will get. They may not exist yet,
// and no check depends on their content.
func (i *Inspection) standInCA() ([]byte, error) {
	ca, err := pki.NewCA("stand-in", i.Now(), time.Hour)
	if err != nil {
		return nil, fmt.Errorf("creating a CA to check the node configuration with: %w", err)
	}
	return ca.KeyPair().Certificate, nil
}
