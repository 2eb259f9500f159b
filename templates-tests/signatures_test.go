package templates

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestTheRegistryVerifiesSignaturesOnlyIfAsked(t *testing.T) {
	t.Parallel()
	const keys = "registry.signatures.existingSecret=mine"
	for name, test := range map[string]struct {
		sets []string
		mode string // empty: nothing is verified
	}{
		"by default":           {nil, ""},
		"keys alone":           {[]string{keys}, ""},
		"off":                  {[]string{keys, `registry.signatures.mode="off"`}, ""},
		"off, which is false":  {[]string{keys, "registry.signatures.mode=false"}, ""},
		"audit":                {[]string{keys, "registry.signatures.mode=audit"}, "audit"},
		"enforce":              {[]string{keys, "registry.signatures.mode=enforce"}, "enforce"},
		"enforce at node port": {[]string{keys, "registry.signatures.mode=enforce", "registryProxy=false"}, "enforce"},
	} {
		out := rendering{values: proxyMode(t, test.sets...)}.render(t)
		spec := find[*appsv1.Deployment](t, out, "zarf-registry").Spec.Template.Spec
		args := slices.DeleteFunc(slices.Clone(spec.Containers[0].Args), func(arg string) bool {
			return !strings.HasPrefix(arg, "--signature") && !strings.HasPrefix(arg, "--own-images")
		})
		var want []string
		if test.mode != "" {
			want = []string{"--signatures=" + test.mode, "--signature-keys=/etc/zarf-registry/signature-keys",
				"--own-images=/etc/zarf-registry/credentials/own-images"}
		}
		if !slices.Equal(args, want) {
			t.Errorf("%s: arguments %q, want %q", name, args, want)
		}
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool {
			return v.Secret != nil && v.Secret.SecretName == "mine"
		})
		if (i >= 0) != (test.mode != "") {
			t.Errorf("%s: volume %d has the keys", name, i)
			continue
		}
		secret := ""
		if i >= 0 {
			secret = "mine"
			// Without keys, the registry must start to serve the project's own images.
			if v := spec.Volumes[i]; v.Secret.Optional == nil || !*v.Secret.Optional ||
				!slices.ContainsFunc(spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
					return m.Name == v.Name && m.MountPath == "/etc/zarf-registry/signature-keys" && m.ReadOnly
				}) {
				t.Errorf("%s: volume %+v", name, v)
			}
		}
		if got := decided(out).Signatures.KeysSecret; got != secret {
			t.Errorf("%s: the hook checks Secret %q, want %q", name, got, secret)
		}
	}
}
