package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// rewriteDelay is how long API servers may take to follow a policy or its parameters. They look at policies once a
// second.
const rewriteDelay = 5 * time.Second

// trialName is the name of the trial pod's container and image, and part of its own.
const trialName = "trial"

// Rewriting describes the policy that rewrites image references in new pods.
type Rewriting struct {
	Policy string `json:"policy"`
	// Effective reports whether the API server rewrote a trial pod, which it did not create. It is nil if that could
	// not be tried. Message says why not.
	Effective *bool  `json:"effective"`
	Message   string `json:"message,omitempty"`
}

// rewritePolicy is what a trial has to know of the policy, of any version.
type rewritePolicy struct {
	metav1.ObjectMeta
	namespaces   *metav1.LabelSelector
	byRepository bool // it rewrites only what the registry has
}

// rewriting tries whether the policy takes effect: an API server may accept one without evaluating it. That requires
// permissions that the rest of the report does not, so a policy that cannot be read or tried is not a problem.
func (c *collector) rewriting(ctx context.Context) error {
	policy, err := c.rewritePolicy(ctx)
	if policy == nil || err != nil {
		return err
	}
	r := &Rewriting{Policy: policy.Name}
	c.report.Rewriting = r
	trial, err := c.rewriteTrial(ctx, policy)
	if err != nil {
		r.Message = err.Error()
		return nil
	}
	image := trial.Spec.Containers[0].Image
	for end := time.Now().Add(rewriteDelay); ; {
		admitted, err := c.Client.CoreV1().Pods(trial.Namespace).Create(ctx, trial,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			r.Message = fmt.Sprintf("the trial was refused: %v", err)
			return nil
		}
		effective := admitted.Annotations["original-image.zarf-registry/"+trialName] == image
		r.Effective = &effective
		if effective {
			return nil
		}
		if time.Now().After(end) {
			break
		}
		if err := release.Sleep(ctx, rewriteDelay/10); err != nil {
			return err
		}
	}
	r.Message = fmt.Sprintf("of a new pod in namespace %s, the image %s stays", trial.Namespace, image)
	c.next("MutatingAdmissionPolicy %s does not take effect (%s): start the API server with "+
		"--feature-gates=MutatingAdmissionPolicy=true and without --disable-admission-plugins=MutatingAdmissionPolicy; if "+
		"it runs so, run %s, which renders the policy and its binding again.", policy.Name, r.Message, c.installCommand())
	return nil
}

// rewritePolicy reads the release's policy. It returns nil if the policy does not exist or may not be read.
func (c *collector) rewritePolicy(ctx context.Context) (*rewritePolicy, error) {
	name := fmt.Sprintf("%s.%s-rewrite", c.Namespace, c.Name)
	stable, err := c.Client.AdmissionregistrationV1().MutatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return &rewritePolicy{stable.ObjectMeta, stable.Spec.MatchConstraints.NamespaceSelector,
			stable.Spec.ParamKind != nil}, nil
	}
	if apierrors.IsNotFound(err) { // as all objects of a version that is not served
		var beta *v1beta1.MutatingAdmissionPolicy
		beta, err = c.Client.AdmissionregistrationV1beta1().MutatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return &rewritePolicy{beta.ObjectMeta, beta.Spec.MatchConstraints.NamespaceSelector,
				beta.Spec.ParamKind != nil}, nil
		}
	}
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return nil, fmt.Errorf("reading MutatingAdmissionPolicy %s: %w", name, err)
	}
	return nil, nil
}

// rewriteTrial returns a pod whose image the policy rewrites.
func (c *collector) rewriteTrial(ctx context.Context, policy *rewritePolicy) (*corev1.Pod, error) {
	host, path := policy.Annotations[names.AnnotationRewrittenHost], "zarf-registry/"+trialName
	if host == "" {
		return nil, errors.New("rewrite.registries selects no registry")
	}
	if policy.byRepository {
		list, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, c.Name+names.SuffixRepositories, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the names of the registry's repositories: %w", err)
		}
		if path = known(list.Data); path == "" {
			return nil, errors.New("no repository of the registry is known yet")
		}
	}
	namespace, err := c.rewrittenNamespace(ctx, policy)
	if err != nil {
		return nil, err
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name + "-" + trialName, Namespace: namespace},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: trialName, Image: host + "/" + path + ":1", SecurityContext: release.RestrictedContainer(),
			}},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		},
	}, nil
}

// known returns one of the encoded repositories, or "". One with a single part would not be found as an image of Docker
// Hub, where that is library/NAME.
func known(repositories map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(repositories)) {
		for name := range strings.FieldsSeq(repositories[key]) {
			if strings.Contains(name, "/") {
				return name
			}
		}
	}
	return ""
}

// rewrittenNamespace returns a namespace whose pods are rewritten, "default" rather than others.
func (c *collector) rewrittenNamespace(ctx context.Context, policy *rewritePolicy) (string, error) {
	selected, err := metav1.LabelSelectorAsSelector(policy.namespaces)
	if err != nil {
		return "", fmt.Errorf("MutatingAdmissionPolicy %s: %w", policy.Name, err)
	}
	list, err := c.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: selected.String()})
	if err != nil {
		return "", fmt.Errorf("listing the namespaces that are rewritten: %w", err)
	}
	found := ""
	for _, n := range list.Items {
		if n.DeletionTimestamp == nil && (found == "" || n.Name == metav1.NamespaceDefault) {
			found = n.Name
		}
	}
	if found == "" {
		return "", errors.New("pods of no namespace are rewritten")
	}
	return found, nil
}
