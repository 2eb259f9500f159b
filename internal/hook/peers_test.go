package hook_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	certmanagerfake "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/typed/certmanager/v1/fake"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var internalPKI = state.PKI{
	Mode: state.PKIInternal, LeafLifetime: state.Duration(pki.DefaultLeafLifetime),
	CALifetime:    state.Duration(pki.DefaultCALifetime),
	ClusterDomain: "cluster.local",
}

// files is one generation of a certificate Secret's content.
type files struct{ certificate, key, trust []byte }

func filesOf(o runtime.Object) files {
	if o == nil {
		return files{}
	}
	d := o.(*corev1.Secret).Data
	return files{d["tls.crt"], d["tls.key"], d["ca.crt"]}
}

func (f files) same(other files) bool {
	return bytes.Equal(f.certificate, other.certificate) && bytes.Equal(f.key, other.key) &&
		bytes.Equal(f.trust, other.trust)
}

// usable returns why a program would refuse to load the files, or nil.
func (f files) usable() error {
	if _, err := tls.X509KeyPair(f.certificate, f.key); err != nil {
		return err
	}
	_, err := pki.ParseBundle(f.trust)
	return err
}

// verifies returns why a peer with the trust bundle of f rejects the certificate of other, or nil.
func (f files) verifies(other files, usage x509.ExtKeyUsage, name string, now time.Time) error {
	chain, err := pki.ParseChain(other.certificate)
	if err != nil {
		return err
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{usage}, DNSName: name}
	options.Roots.AppendCertsFromPEM(f.trust)
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	_, err = chain[0].Verify(options)
	return err
}

// kubelets update Secrets in pods, whose programs load all files or none. This happens when a pod
// is annotated, or by itself after a while.
type kubelets struct {
	mu   sync.Mutex
	pods map[string]*loading
	// slow maps a pod to the delay between an annotation and its reload. deaf pods never reload.
	slow map[string]time.Duration
	deaf map[string]bool
	// mute maps a pod to the error of querying it.
	mute map[string]error
	// asked counts how often each pod was queried.
	asked map[string]int
	// unwatched disables the check of what pods trust.
	unwatched bool
	// verified caches verified pairs, because verification is slow.
	verified map[string]bool
}

type loading struct {
	files       files
	credentials string
	program     string
	due         time.Time // time of the next load; zero: none is scheduled
	problem     string
	generation  uint64
}

const byThemselves = 80 * time.Second

var mounted = map[string]string{"registry": "zarf-registry-server-tls", "proxy": "zarf-registry-node-tls",
	"cache": "zarf-registry-cache-tls"}

func (b *bench) started(pod *corev1.Pod) {
	if mounted[pod.Labels["app.kubernetes.io/component"]] == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pods == nil {
		b.pods, b.asked = map[string]*loading{}, map[string]int{}
	}
	b.pods[pod.Name] = &loading{}
	b.load(pod)
}

// The caller of load holds the lock.
func (b *bench) load(pod *corev1.Pod) {
	p := b.pods[pod.Name]
	if p == nil || b.deaf[pod.Name] {
		return
	}
	p.due = time.Time{}
	if s := b.get("secrets", "zarf-registry-auth"); s != nil && pod.Labels["app.kubernetes.io/component"] == "registry" {
		p.credentials = credentialsOf(s)
	}
	if c := b.get("configmaps", "zarf-registry-payload-registry-node-amd64-00"); c != nil &&
		pod.Labels["app.kubernetes.io/component"] == "proxy" {
		if m, err := injector.ParseManifest(c.(*corev1.ConfigMap).BinaryData["manifest"]); err == nil {
			p.program = hex.EncodeToString(m.ProgramSHA256[:])
		}
	}
	next := filesOf(b.get("secrets", mounted[pod.Labels["app.kubernetes.io/component"]]))
	if err := next.usable(); err != nil {
		p.problem = err.Error()
		return
	}
	p.problem = ""
	if !bytes.Equal(next.certificate, p.files.certificate) || !bytes.Equal(next.trust, p.files.trust) {
		p.files = next
		p.generation++
	}
}

func (b *bench) refused() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.get("secrets", "zarf-registry-auth")
	if p := b.pods[registryPod]; p != nil && s != nil && p.credentials != credentialsOf(s) {
		return errors.New("401 Unauthorized")
	}
	return nil
}

func credentialsOf(auth runtime.Object) string {
	return fmt.Sprintf("%x", sha256.Sum256(auth.(*corev1.Secret).Data["htpasswd"]))
}

func (b *bench) annotated(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pods[name]
	if p == nil {
		return
	}
	if due := time.Now().Add(b.slow[name]); p.due.IsZero() || due.Before(p.due) {
		p.due = due
	}
	if b.slow[name] == 0 {
		b.reload(name)
	}
}

func (b *bench) reload(name string) {
	if o := b.get("pods", name); o != nil {
		b.load(o.(*corev1.Pod))
	}
}

// loadAll makes all pods load their current files.
func (b *bench) loadAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.pods {
		b.reload(name)
	}
}

// report returns what a pod has loaded.
func (b *bench) report(pod *corev1.Pod) (*loaded.State, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[pod.Name]++
	p := b.pods[pod.Name]
	switch {
	case b.dead:
		return nil, errKilled
	case b.mute[pod.Name] != nil:
		return nil, b.mute[pod.Name]
	case p == nil:
		return nil, errors.New("connection refused")
	}
	switch {
	case p.due.IsZero():
		p.due = time.Now().Add(byThemselves)
	case !time.Now().Before(p.due):
		b.load(pod)
	}
	if p.files.certificate == nil {
		return nil, errors.New("no files are loaded")
	}
	chain, err := pki.ParseChain(p.files.certificate)
	if err != nil {
		return nil, err
	}
	trust, err := pki.ParseBundle(p.files.trust)
	if err != nil {
		return nil, err
	}
	r := &loaded.State{Program: p.program, Certificates: loaded.Certificates{Generation: p.generation,
		Leaf: loaded.Certificate{SHA256: pki.Fingerprint(chain[0])}, Problem: p.problem}}
	for _, f := range trust.Fingerprints() {
		r.Certificates.TrustedCAs = append(r.Certificates.TrustedCAs, loaded.Certificate{SHA256: f})
	}
	if pod.Labels["app.kubernetes.io/component"] == "registry" {
		r.Credentials = &loaded.Credentials{Push: p.credentials}
		if s := b.get("secrets", "zarf-registry-auth"); s != nil {
			if h := s.(*corev1.Secret).Data["pull-htpasswd"]; h != nil {
				r.Credentials.Pull = fmt.Sprintf("%x", sha256.Sum256(h))
			}
		}
	}
	return r, nil
}

// checkTrust checks that proxies, caches, registries and clients that push trust each other, with whatever
// they have loaded or may load from their Secret at this moment.
func (b *bench) checkTrust(when string) {
	b.Helper()
	if b.unwatched {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	candidates := map[string][]files{}
	for name, p := range b.pods {
		o := b.get("pods", name)
		if o == nil {
			continue
		}
		component := o.(*corev1.Pod).Labels["app.kubernetes.io/component"]
		for _, f := range []files{p.files, filesOf(b.get("secrets", mounted[component]))} {
			if f.certificate != nil && !slices.ContainsFunc(candidates[component], f.same) {
				candidates[component] = append(candidates[component], f)
			}
		}
	}
	clients := slices.Concat(candidates["proxy"], candidates["cache"],
		[]files{filesOf(b.get("secrets", "zarf-registry-push-tls"))})
	b.checkConnections(when, "zarf-registry.zarf.svc", candidates["registry"], clients)
	b.checkConnections(when, "zarf-registry-cache.zarf.svc", candidates["cache"], candidates["proxy"])
	b.checkNodesTrust(when, candidates["proxy"])
}

// checkConnections checks that servers with this DNS name and clients trust each other.
func (b *bench) checkConnections(when, server string, servers, clients []files) {
	b.Helper()
	if b.verified == nil {
		b.verified = map[string]bool{}
	}
	for _, r := range servers {
		for _, c := range clients {
			pair := fmt.Sprintf("%s%s%s%s%s%s", server, r.certificate, r.trust, c.certificate, c.trust, b.now)
			if b.verified[pair] || r.usable() != nil || c.usable() != nil {
				continue
			}
			if err := errors.Join(c.verifies(r, x509.ExtKeyUsageServerAuth, server, b.now),
				r.verifies(c, x509.ExtKeyUsageClientAuth, "", b.now)); err != nil {
				b.Errorf("%s: a client and %s do not trust each other: %v", when, server, err)
				return
			}
			b.verified[pair] = true
		}
	}
}

// certManager simulates cert-manager: it issues certificates at once.
type certManager struct {
	installed bool
	// issuer is the CA of the user's issuer; nil: the next certificate gets a new one.
	issuer *pki.CA
	// unready is the condition message of Certificates that are not issued.
	unready string
}

func (b *bench) installCertManager() {
	client := &certmanagerfake.FakeCertmanagerV1{Fake: &kubetesting.Fake{}}
	client.AddReactor("*", "*", b.react)
	c := &b.hook.Cluster.CertManager
	c.Certificates = client.Certificates("zarf")
	c.CertificateRequests = client.CertificateRequests("zarf")
	c.Issuers = client.Issuers("zarf")
}

// certManagerAnswers handles requests for cert-manager's API if it is not installed, and
// list requests.
func (b *bench) certManagerAnswers(a kubetesting.Action) (bool, runtime.Object, error) {
	r := a.GetResource()
	switch {
	case r.Group != certmanagerv1.SchemeGroupVersion.Group:
		return false, nil, nil
	case !b.installed:
		return true, nil, apierrors.NewNotFound(r.GroupResource(), "")
	case a.GetVerb() == "list":
		return true, &certmanagerv1.CertificateRequestList{}, nil
	}
	return false, nil, nil
}

// applied returns the action that server-side apply of a Certificate comes down to.
func (b *bench) applied(a kubetesting.PatchActionImpl) kubetesting.Action {
	b.Helper()
	c := &certmanagerv1.Certificate{}
	before, err := b.tracker.Get(a.GetResource(), a.GetNamespace(), a.GetName())
	if err == nil {
		c = before.DeepCopyObject().(*certmanagerv1.Certificate)
	}
	require.NoError(b, json.Unmarshal(a.GetPatch(), c))
	switch {
	case err != nil:
		return kubetesting.NewCreateAction(a.GetResource(), a.GetNamespace(), c)
	case equality.Semantic.DeepEqual(before, c):
		return kubetesting.NewGetAction(a.GetResource(), a.GetNamespace(), a.GetName())
	}
	return kubetesting.NewUpdateAction(a.GetResource(), a.GetNamespace(), c)
}

// certManagerWorks simulates its controllers when a Certificate is written.
func (b *bench) certManagerWorks(a kubetesting.Action) {
	write, ok := a.(interface{ GetObject() runtime.Object })
	if !ok || a.GetResource().Resource != "certificates" || a.GetVerb() == "delete" {
		return
	}
	c := write.GetObject().DeepCopyObject().(*certmanagerv1.Certificate)
	ready := certmanagerv1.CertificateCondition{Type: certmanagerv1.CertificateConditionReady,
		Status: cmmeta.ConditionTrue, ObservedGeneration: c.Generation}
	if b.unready != "" {
		ready.Status, ready.Reason, ready.Message = cmmeta.ConditionFalse, "Pending", b.unready
	} else {
		again := slices.ContainsFunc(c.Status.Conditions, func(c certmanagerv1.CertificateCondition) bool {
			return c.Type == certmanagerv1.CertificateConditionIssuing && c.Status == cmmeta.ConditionTrue
		})
		if again || b.get("secrets", c.Spec.SecretName) == nil {
			b.certManagerIssues(c)
		}
	}
	c.Status.Conditions = []certmanagerv1.CertificateCondition{ready}
	if err := b.tracker.Update(a.GetResource(), c, "zarf"); err != nil {
		b.Error(err)
	}
}

func (b *bench) certManagerIssues(c *certmanagerv1.Certificate) {
	if b.issuer == nil {
		b.issuer = require.Value(pki.NewCA("corp", b.now, 10*365*24*time.Hour))(b)
	}
	leaf := pki.Leaf{CommonName: c.Spec.CommonName, Organization: c.Spec.Subject.Organizations[0],
		DNSNames: c.Spec.DNSNames, Lifetime: c.Spec.Duration.Duration}
	for _, u := range c.Spec.Usages {
		switch u {
		case certmanagerv1.UsageClientAuth:
			leaf.Usages = append(leaf.Usages, x509.ExtKeyUsageClientAuth)
		case certmanagerv1.UsageServerAuth:
			leaf.Usages = append(leaf.Usages, x509.ExtKeyUsageServerAuth)
		}
	}
	pair := require.Value(b.issuer.Issue(leaf, b.now))(b)
	b.putSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: c.Spec.SecretName,
		Labels: c.Spec.SecretTemplate.Labels}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": b.issuer.KeyPair().Certificate}})
}

// putSecret creates or replaces a Secret in the tracker.
func (b *bench) putSecret(s *corev1.Secret) {
	b.Helper()
	s.Namespace = "zarf"
	b.versioned(s)
	b.remove("secrets", s.Name)
	b.add(s)
}

// changeSecret changes a Secret in the tracker.
func (b *bench) changeSecret(name string, change func(*corev1.Secret)) {
	b.Helper()
	s := b.secret(name).DeepCopy()
	change(s)
	b.putSecret(s)
}

// userCA is a CA of the user.
type userCA struct {
	*pki.CA
	b *bench
}

func (b *bench) userCA(name string) userCA {
	b.Helper()
	return userCA{require.Value(pki.NewCA(name, b.now, 10*365*24*time.Hour))(b), b}
}

// good holds valid certificates.
var good = map[string]pki.Leaf{
	"corp-server": {CommonName: "the registry", DNSNames: []string{"zarf-registry.zarf.svc"},
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
	"corp-node": {CommonName: "the nodes", Organization: pki.OrganizationNode,
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	"corp-push": {CommonName: "pushing", Organization: pki.OrganizationPush,
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
}

// give creates or replaces a Secret of the user.
func (s userCA) give(name string, change ...func(*pki.Leaf)) {
	s.b.Helper()
	leaf := good[name]
	for _, c := range change {
		c(&leaf)
	}
	pair := require.Value(s.Issue(leaf, s.b.now))(s.b)
	s.b.putSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": s.KeyPair().Certificate}})
}

// pki sets what the chart would render for a PKI mode.
func (b *bench) pki(mode state.PKIMode) {
	p := internalPKI
	p.Mode = mode
	if mode == state.PKICertManager {
		p.Issuer = &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	}
	if mode == state.PKIExistingSecret {
		p.Existing = &state.ExistingSecrets{Server: "corp-server", Node: "corp-node", Push: "corp-push"}
	}
	b.hook.Settings.PKI.PKI = p
}

// checkConverged checks that all Secrets have the desired content, all pods have loaded it, and no
// rotation is in progress.
func (b *bench) checkConverged() {
	b.Helper()
	if r := b.state().Rotation; r != nil {
		b.Errorf("a rotation is in progress: %+v", r)
	}
	b.loadAll()
	b.checkTrust("after convergence")
	p := b.state().PKI
	if p == nil {
		b.Fatal("the state has no PKI settings")
	}
	want := map[string]string{}
	switch p.Mode {
	case state.PKIExistingSecret:
		want = map[string]string{"server": p.Existing.Server, "node": p.Existing.Node, "push": p.Existing.Push}
	case state.PKICertManager:
		want = map[string]string{"server": "zarf-registry-server-issued", "node": "zarf-registry-node-issued",
			"push": "zarf-registry-push-issued", "cache": "zarf-registry-cache-issued"}
	}
	roles := []string{"server", "node", "push"}
	if p.Cache {
		roles = append(roles, "cache")
	}
	var trust []byte
	for _, role := range roles {
		held := filesOf(b.secret("zarf-registry-" + role + "-tls"))
		if trust != nil && !bytes.Equal(trust, held.trust) {
			b.Errorf("ca.crt for %s differs from the others", role)
		}
		trust = held.trust
		if source := want[role]; source != "" {
			if f := filesOf(b.secret(source)); !bytes.Equal(f.certificate, held.certificate) || !bytes.Equal(f.key, held.key) {
				b.Errorf("the certificate for %s is not a copy of %s", role, source)
			}
		} else if err := (files{trust: b.secret("zarf-registry-ca").Data["tls.crt"]}).verifies(held, x509.ExtKeyUsageAny, "",
			b.now); err != nil {
			b.Errorf("the certificate for %s is not from our CA: %v", role, err)
		}
	}
	if p.Zarf {
		b.checkZarf()
	}
	if n := strings.Count(string(trust), "BEGIN CERTIFICATE"); n != 1 && p.Mode != state.PKIExistingSecret {
		b.Errorf("%d CAs are trusted", n)
	}
}

// checkOnlyNeeded checks that nothing of other PKI modes is left.
func (b *bench) checkOnlyNeeded() {
	b.Helper()
	p := *b.state().PKI
	own := p.Mode == state.PKIInternal || p.Mode == state.PKIExistingSecret && (p.Existing.Push == "" || p.Cache)
	if there := b.get("secrets", "zarf-registry-ca") != nil; there != own {
		b.Errorf("our own CA exists: %t", there)
	}
	if there := b.get("secrets", "zarf-registry-server-issued") != nil; there != (p.Mode == state.PKICertManager) {
		b.Errorf("certificates of cert-manager exist: %t", there)
	}
	if there := b.get("secrets", cacheSecret) != nil; there != p.Cache {
		b.Errorf("a certificate of the caches exists: %t", there)
	}
	// The issued one is deleted with the release.
	there := b.get("secrets", "zarf-registry-cache-issued") != nil
	if cm := p.Mode == state.PKICertManager; there && !cm || !there && cm && p.Cache {
		b.Errorf("a certificate of cert-manager for the caches exists: %t", there)
	}
}

var metav1Now = metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))

// foreignMeta is the metadata of an object that was created by others.
func foreignMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "zarf"}
}

// elsewhere runs with another client of the same cluster while the first one writes.
func (b *bench) elsewhere(run func(hook.Cluster)) {
	client := fake.NewClientset()
	client.PrependReactor("*", "*", b.react)
	c := b.hook.Cluster
	b.hook.Cluster = clusterOf(client)
	b.installCertManager()
	run(b.hook.Cluster)
	b.hook.Cluster = c
}
