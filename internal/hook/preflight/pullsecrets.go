package preflight

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// lookAtPullSecrets finds pull secrets without which nodes pull anonymously: kubelets report that only as an event.
func (i *Inspection) lookAtPullSecrets(ctx context.Context) ([]Finding, error) {
	var findings []Finding
	for _, name := range i.Settings.PullSecrets {
		secret, err := i.ReadSecret(ctx, name)
		if err != nil {
			return nil, err
		}
		f := Finding{Check: checkPullSecrets, Severity: Warning, Object: i.Object("Secret", name),
			Cause: "does not exist, but imagePullSecrets names it: nodes would pull without a credential",
			Remedy: fmt.Sprintf("kubectl -n %s create secret docker-registry %s --docker-server=… --docker-username=… "+
				"--docker-password=…", i.Settings.Namespace, name)}
		switch {
		case secret == nil:
		case len(secret.Data[corev1.DockerConfigJsonKey]) == 0 && len(secret.Data[corev1.DockerConfigKey]) == 0:
			f.Cause = "has no key .dockerconfigjson, so nodes would pull without a credential"
		default:
			continue
		}
		findings = append(findings, f)
	}
	return findings, nil
}
