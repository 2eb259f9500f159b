package status_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/admissionregistration/v1"
	v1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
)

func TestRewriting(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "zarf.zarf-registry-rewrite", Annotations: map[string]string{"zarf-registry/rewritten-host": "quay.io"}}
	selector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"zarf", "kube-system"}}}}
	policy := func() *v1.MutatingAdmissionPolicy {
		return &v1.MutatingAdmissionPolicy{ObjectMeta: *meta.DeepCopy(), Spec: v1.MutatingAdmissionPolicySpec{
			MatchConstraints: &v1.MatchResources{NamespaceSelector: selector}}}
	}
	byRepository := policy()
	byRepository.Spec.ParamKind = &v1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	none := policy()
	none.Annotations["zarf-registry/rewritten-host"] = ""
	repositories := func(data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry-repositories"}, Data: data}
	}
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
	}
	golden := golden.Open(t, "rewriting")
	for description, tt := range map[string]struct {
		objects []runtime.Object
		deny    string
		after   int   // trials until the pod is rewritten; negative: never
		refused error // of the trial
	}{
		"off":               {},
		"takes effect":      {objects: []runtime.Object{policy(), namespace("app"), namespace("default")}},
		"takes effect soon": {objects: []runtime.Object{policy(), namespace("app"), namespace("kube-system")}, after: 3},
		"the beta version": {objects: []runtime.Object{&v1beta1.MutatingAdmissionPolicy{ObjectMeta: meta,
			Spec: v1beta1.MutatingAdmissionPolicySpec{MatchConstraints: &v1beta1.MatchResources{NamespaceSelector: selector}}},
			namespace("default")}},
		"no effect": {objects: []runtime.Object{policy(), namespace("default")}, after: -1},
		"by repository": {objects: []runtime.Object{byRepository, namespace("default"),
			repositories(map[string]string{"10": "\nalone\n", "9": "\nanother\nteam/app\n"})}},
		"no repository is known": {objects: []runtime.Object{byRepository, namespace("default"), repositories(nil)}},
		"no registry":            {objects: []runtime.Object{none, namespace("default")}},
		"no namespace":           {objects: []runtime.Object{policy(), namespace("kube-system")}},
		"the policy is forbidden": {objects: []runtime.Object{policy(), namespace("default")},
			deny: "get mutatingadmissionpolicies"},
		"namespaces are forbidden": {objects: []runtime.Object{policy(), namespace("default")}, deny: "list namespaces"},
		"pods are refused": {objects: []runtime.Object{policy(), namespace("default")},
			refused: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "zarf-registry-trial", errors.New("no"))},
	} {
		t.Run(description, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := healthy(t, state.ModeProxy)
				for _, o := range tt.objects {
					c.add(o)
				}
				options, trials, tried := c.options(t, tt.deny), 0, ""
				options.Client.(*fake.Clientset).PrependReactor("create", "pods",
					func(a kubetesting.Action) (bool, runtime.Object, error) {
						create := a.(kubetesting.CreateActionImpl)
						if !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) {
							t.Errorf("it creates a pod: %+v", create.CreateOptions)
						}
						p := create.Object.(*corev1.Pod).DeepCopy()
						tried = fmt.Sprintf("tried: %s in namespace %s\n", p.Spec.Containers[0].Image, a.GetNamespace())
						if trials++; tt.after >= 0 && trials > tt.after {
							p.Annotations = map[string]string{"original-image.zarf-registry/trial": p.Spec.Containers[0].Image}
						}
						return true, p, tt.refused
					})
				report := told(t, state.ModeProxy, collect(t, options))
				golden.Check(t, description, tried+report)
			})
		})
	}
}
