package hook

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// lookAtNodeConfig has what nodes are to have checked, as each node will, before
// anything is changed.
func (i *inspection) lookAtNodeConfig(ctx context.Context) ([]Finding, error) {
	findings := i.forgottenDirectories()
	if !i.Settings.ConfiguresNodes() {
		return findings, nil
	}
	object := i.object("Secret", i.Settings.Name+names.SuffixNodeConfig)
	block := func(object, cause, remedy string) {
		findings = append(findings, Finding{Check: checkNodeConfig, Severity: Blocker, Object: object, Cause: cause, Remedy: remedy})
	}
	data := i.NodeConfigData
	if data == nil {
		proposal := i.Settings.Name + names.SuffixNodeProposal
		object = i.object("Secret", proposal)
		secret, err := i.Cluster.Secrets.Get(ctx, proposal, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			block(object, "it does not exist, so that what nodes are to have cannot be checked", "run helm upgrade or init-hook install, which make it for the time of prepare")
			return findings, nil
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", object, refuseForbidden(err))
		}
		data = secret.Data
	}
	config, err := noderuntime.ParseConfig(data[noderuntime.KeyConfig])
	if err != nil {
		block(object, fmt.Sprintf("its key %s cannot be used: %s", noderuntime.KeyConfig, err), "use the chart of this init-hook's own release")
		return findings, nil
	}
	i.nodeConfig = config

	inputs := noderuntime.Inputs{Config: config, Registries: data[noderuntime.KeyRegistries]}
	if i.Settings.NodeConfig.RegistriesSecret != "" {
		registries, missing, err := i.registriesSecret(ctx)
		if err != nil {
			return nil, err
		}
		if missing != nil {
			block(missing.object, missing.cause, missing.remedy)
			registries = []byte("{}\n") // what else is wrong is said besides
		}
		inputs.Registries = registries
	}
	if i.Settings.NodeConfig.CA {
		if inputs.CA, err = i.standInCA(); err != nil {
			return nil, err
		}
	}
	wanted, err := noderuntime.Build(inputs)
	if err != nil {
		for problem := range strings.Lines(err.Error()) {
			block("", strings.TrimSpace(problem), "then run this again; nothing was written on any node")
		}
		return findings, nil
	}
	for _, warning := range wanted.Warnings {
		findings = append(findings, Finding{Check: checkNodeConfig, Severity: Warning, Cause: warning, Remedy: "none is needed where that is as it should be"})
	}
	return findings, nil
}

// forgottenDirectories finds directories that may hold files of the release and that no
// pod would look after: the chart remembers them where it sees the cluster.
func (i *inspection) forgottenDirectories() []Finding {
	if i.saved == nil || i.saved.NodeConfig == nil {
		return nil
	}
	forgotten := slices.DeleteFunc(slices.Clone(i.saved.NodeConfig.Directories), func(d string) bool {
		return slices.Contains(i.Settings.NodeConfig.Directories, d)
	})
	if len(forgotten) == 0 {
		return nil
	}
	return []Finding{{
		Check: checkNodeConfig, Severity: Warning,
		Cause:  fmt.Sprintf("files of this release may be in %s on nodes, and nothing that is rendered looks after them (helm template, Argo CD and helm rollback go by what they know), so that they stay there as they are", strings.Join(forgotten, ", ")),
		Remedy: fmt.Sprintf("name them: --set nodeConfig.directories={%s}", strings.Join(forgotten, ",")),
	}}
}

// registriesSecret reads registries.yaml from the user's Secret, or says what is
// missing of it.
func (i *inspection) registriesSecret(ctx context.Context) ([]byte, *problem, error) {
	name, key := i.Settings.NodeConfig.RegistriesSecret, i.Settings.NodeConfig.RegistriesKey
	object := i.object("Secret", name)
	remedy := fmt.Sprintf("make it, with K3s' registries.yaml under the key %s, or name another in nodeConfig.k3s.existingSecret and existingSecretKey", key)
	secret, err := i.Cluster.Secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &problem{object, "it does not exist, and nodeConfig.k3s.existingSecret names it", remedy}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading %s: %w", object, refuseForbidden(err))
	}
	registries, has := secret.Data[key]
	if !has {
		return nil, &problem{object, "it has no key " + key + ", which nodeConfig.k3s.existingSecretKey names", remedy}, nil
	}
	return registries, nil, nil
}

// standInCA stands for the authorities that nodes will get: their own may not exist
// yet, and nothing of what is checked depends on which they are.
func (i *inspection) standInCA() ([]byte, error) {
	authority, err := pki.NewCA("stand-in", i.Now(), time.Hour)
	if err != nil {
		return nil, fmt.Errorf("making an authority to check the node configuration with: %w", err)
	}
	return authority.KeyPair().Certificate, nil
}

// mountsSecret says whether a pod has a Secret mounted.
func mountsSecret(spec corev1.PodSpec, name string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		if v.Secret != nil && v.Secret.SecretName == name {
			return true
		}
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.Secret != nil && s.Secret.Name == name
		})
	})
}
