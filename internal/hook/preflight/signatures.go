package preflight

import (
	"context"
	"fmt"

	"github.com/zarf-dev/zarf-registry/internal/registry/signature"
)

// lookAtSignatures checks the public keys. Without them, the registry would deny all images but the project's own.
func (i *Inspection) lookAtSignatures(ctx context.Context) ([]Finding, error) {
	name := i.Settings.Signatures.KeysSecret
	if name == "" {
		return nil, nil
	}
	blocker := Finding{Check: checkSignatures, Severity: Blocker, Object: i.Object("Secret", name),
		Cause: "does not exist, and without public keys no image counts as signed",
		Remedy: fmt.Sprintf("kubectl -n %s create secret generic %s --from-file=cosign.pub, or name another: "+
			"--set registry.signatures.existingSecret=…", i.Settings.Namespace, name)}
	secret, err := i.ReadSecret(ctx, name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		return []Finding{blocker}, nil
	}
	if _, err := signature.ParseKeys(secret.Data); err != nil {
		blocker.Cause = fmt.Sprintf("has keys that the registry would reject: %v", err)
		blocker.Remedy = "let each entry contain PEM-encoded public keys only, such as cosign.pub"
		return []Finding{blocker}, nil
	}
	return nil, nil
}
