package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// lookAtPriorityClasses finds PriorityClasses that do not exist. Where this identity may not read them, the dry run of
// a pod shows, which needs the namespace to exist.
func (i *Inspection) lookAtPriorityClasses(ctx context.Context) ([]Finding, error) {
	if i.Cluster.PriorityClasses == nil {
		return nil, nil
	}
	var findings []Finding
	for _, w := range i.Settings.Workloads {
		if w.PriorityClassName == "" {
			continue
		}
		_, err := i.Cluster.PriorityClasses.Get(ctx, w.PriorityClassName, metav1.GetOptions{})
		switch {
		case err == nil, release.MissingPermission(err):
		case apierrors.IsNotFound(err):
			findings = append(findings, i.missingPriorityClass(w.PriorityClassName))
		default:
			return nil, fmt.Errorf("reading PriorityClass %s: %w", w.PriorityClassName, err)
		}
	}
	return findings, nil
}

// missingPriorityClass names all values with a PriorityClass that does not exist. Other components than these have no
// value of their own.
func (i *Inspection) missingPriorityClass(name string) Finding {
	own := map[string]string{names.ComponentRegistry: "registry.", names.ComponentProxy: "proxy.",
		names.ComponentHealer: "registry."}
	var values, set []string
	for _, w := range i.Settings.Workloads {
		value := own[w.Component] + "priorityClassName"
		if w.PriorityClassName == name && !slices.Contains(values, value) {
			values = append(values, value)
			set = append(set, fmt.Sprintf("--set %s=NAME", value))
		}
	}
	return Finding{Check: checkPriority, Severity: Blocker, Object: "PriorityClass " + name,
		Cause: fmt.Sprintf("does not exist, and without it the API server rejects the pods of %s",
			strings.Join(values, ", ")),
		Remedy: fmt.Sprintf("name one that exists (kubectl get priorityclasses): %s; or create it",
			strings.Join(set, " "))}
}

// priorityClassMissing recognizes the API server's rejection of a pod whose PriorityClass does not exist.
func priorityClassMissing(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "no PriorityClass with name")
}
