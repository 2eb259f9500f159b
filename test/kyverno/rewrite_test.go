// Package kyverno evaluates docs/policies/kyverno/rewrite.yaml with Kyverno's own engine. It is a module of its own,
// since Kyverno has hundreds of dependencies.
package kyverno

import (
	"os"
	"reflect"
	"testing"

	policies "github.com/kyverno/api/api/policies.kyverno.io/v1beta1"
	"github.com/kyverno/kyverno/pkg/cel/policies/mpol/autogen"
	"github.com/kyverno/kyverno/pkg/cel/policies/mpol/compiler"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"
)

// noTypes is for policies without ApplyConfiguration.
type noTypes struct{}

func (noTypes) GetTypeConverter(schema.GroupVersionKind) managedfields.TypeConverter { return nil }

func rewritePolicy(t *testing.T) *policies.MutatingPolicy {
	t.Helper()
	text, err := os.ReadFile("../../docs/policies/kyverno/rewrite.yaml")
	if err != nil {
		t.Fatal(err)
	}
	policy := &policies.MutatingPolicy{}
	if err := yaml.UnmarshalStrict(text, policy); err != nil {
		t.Fatal(err)
	}
	return policy
}

// admit returns the pod as the policy changes it. An empty old pod means that the pod is created, otherwise its
// ephemeral containers are updated.
func admit(t *testing.T, policy *compiler.Policy, pod, old string) *unstructured.Unstructured {
	t.Helper()
	request := admissionv1.AdmissionRequest{
		Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Operation: admissionv1.Create,
		Namespace: "default", Name: "shop",
	}
	var before *unstructured.Unstructured
	if old != "" {
		request.Operation, request.SubResource, before = admissionv1.Update, "ephemeralcontainers", object(t, old)
	}
	attributes := admission.NewAttributesRecord(object(t, pod), before, schema.GroupVersionKind(request.Kind),
		request.Namespace, request.Name, schema.GroupVersionResource(request.Resource), request.SubResource,
		admission.Operation(request.Operation), nil, false, nil)
	switch result := policy.Evaluate(t.Context(), attributes, nil, request, noTypes{}, nil); {
	case result == nil: // it does not match
		return object(t, pod)
	case result.Error != nil:
		t.Fatal(result.Error)
		return nil
	default:
		return result.PatchedResource
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetAPIVersion("v1")
	o.SetKind("Pod")
	return o
}

// TestKyvernoEngineRewrites checks that Kyverno's engine compiles and evaluates what the policy uses. templates-tests
// compares its expressions with those of the chart, which have more tests.
func TestKyvernoEngineRewrites(t *testing.T) {
	policy, errs := compiler.NewCompiler().Compile(rewritePolicy(t), nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	const address = "127.0.0.1:31999/"
	for name, c := range map[string]struct{ pod, old, want string }{
		"a new pod": {
			pod: `{metadata: {annotations: {a: b}}, spec: {initContainers: [{name: i, image: "quay.io/a/b:1"}], containers: [
				{name: c, image: nginx}, {name: d, image: "localhost:5000/d:1"}, {name: e, image: "e:1", imagePullPolicy: Never}],
				volumes: [{name: v, image: {reference: "registry:5000/v:1"}}, {name: w, emptyDir: {}}]}}`,
			want: `{metadata: {annotations: {a: b, original-image.zarf-registry/i: "quay.io/a/b:1",
				original-image.zarf-registry/c: nginx, original-volume.zarf-registry/v: "registry:5000/v:1"}}, spec: {
				initContainers: [{name: i, image: "` + address + `a/b:1"}], containers: [
				{name: c, image: "` + address + `library/nginx"}, {name: d, image: "localhost:5000/d:1"},
				{name: e, image: "e:1", imagePullPolicy: Never}],
				volumes: [{name: v, image: {reference: "` + address + `v:1"}}, {name: w, emptyDir: {}}]}}`,
		},
		"a pod without annotations": {
			pod: `{metadata: {name: a}, spec: {containers: [{name: c, image: "docker.io/nginx:1"}]}}`,
			want: `{metadata: {name: a, annotations: {original-image.zarf-registry/c: "docker.io/nginx:1"}}, spec: {
				containers: [{name: c, image: "` + address + `library/nginx:1"}]}}`,
		},
		"a pod of the registry's images": {
			pod:  `{metadata: {name: a}, spec: {containers: [{name: c, image: "` + address + `a:1"}]}}`,
			want: `{metadata: {name: a}, spec: {containers: [{name: c, image: "` + address + `a:1"}]}}`,
		},
		"a new ephemeral container": {
			pod: `{metadata: {name: a}, spec: {containers: [{name: c, image: nginx}],
				ephemeralContainers: [{name: d, image: busybox}, {name: e, image: busybox}]}}`,
			old: `{metadata: {name: a}, spec: {containers: [{name: c, image: nginx}],
				ephemeralContainers: [{name: d, image: busybox}]}}`,
			want: `{metadata: {name: a}, spec: {containers: [{name: c, image: nginx}],
				ephemeralContainers: [{name: d, image: busybox}, {name: e, image: "` + address + `library/busybox"}]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := admit(t, policy, c.pod, c.old), object(t, c.want)
			if !reflect.DeepEqual(got.Object, want.Object) {
				t.Errorf("the pod becomes\n%v, want\n%v", got.Object, want.Object)
			}
		})
	}
}

// TestKyvernoLeavesWorkloads checks that Kyverno derives no rules for workloads, whose templates must stay.
func TestKyvernoLeavesWorkloads(t *testing.T) {
	policy := rewritePolicy(t)
	if rules, err := autogen.Autogen(policy); err != nil || len(rules) > 0 {
		t.Errorf("%d rules, %v", len(rules), err)
	}
	// It would for a policy about pods only.
	policy.Spec.MatchConstraints.ResourceRules = policy.Spec.MatchConstraints.ResourceRules[:1]
	policy.Spec.MatchConstraints.ObjectSelector = nil
	if rules, err := autogen.Autogen(policy); err != nil || len(rules) == 0 {
		t.Errorf("for pods only: %d rules, %v", len(rules), err)
	}
}
