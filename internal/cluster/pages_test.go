package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// manyNodes is an API server with a number of nodes, and as many pods, events and
// Services, that answers lists as the real one does: pages, their end, and protobuf where
// it is accepted.
type manyNodes struct {
	t       *testing.T
	count   int
	fails   func(page int) *apierrors.StatusError // of the list under way; nil: nothing does
	asked   []string                              // the queries, in their order
	formats map[string]bool
}

func (m *manyNodes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	m.asked = append(m.asked, r.URL.RawQuery)
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	to := m.count
	about := metav1.ListMeta{ResourceVersion: "7"}
	if limit > 0 && from+limit < m.count {
		to = from + limit
		about.Continue = strconv.Itoa(to)
	}
	var answer runtime.Object
	code := http.StatusOK
	if failure := m.failure(from, limit); failure != nil {
		answer, code = &failure.ErrStatus, int(failure.ErrStatus.Code)
	} else {
		answer = page(m.t, r.URL.Path, from, to, about)
	}
	format := runtime.ContentTypeJSON
	if strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		format = runtime.ContentTypeProtobuf
	}
	m.formats[format] = true
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), format)
	w.Header().Set("Content-Type", format)
	w.WriteHeader(code)
	if err := scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(answer, w); err != nil {
		m.t.Error(err)
	}
}

func (m *manyNodes) failure(from, limit int) *apierrors.StatusError {
	if m.fails == nil || limit == 0 {
		return nil
	}
	return m.fails(from / limit)
}

func page(t *testing.T, path string, from, to int, about metav1.ListMeta) runtime.Object {
	nodes, pods, events, services := &corev1.NodeList{ListMeta: about}, &corev1.PodList{ListMeta: about},
		&corev1.EventList{ListMeta: about}, &corev1.ServiceList{ListMeta: about}
	for n := from; n < to; n++ {
		named := metav1.ObjectMeta{Name: fmt.Sprintf("n%d", n)}
		nodes.Items = append(nodes.Items, corev1.Node{ObjectMeta: named})
		pods.Items = append(pods.Items, corev1.Pod{ObjectMeta: named})
		events.Items = append(events.Items, corev1.Event{ObjectMeta: named})
		services.Items = append(services.Items, corev1.Service{ObjectMeta: named})
	}
	switch path {
	case "/api/v1/nodes":
		return nodes
	case "/api/v1/namespaces/zarf/pods":
		return pods
	case "/api/v1/namespaces/zarf/events":
		return events
	case "/api/v1/services":
		return services
	}
	t.Errorf("%s was asked for", path)
	return nodes
}

func (m *manyNodes) connect() kubernetes.Interface {
	m.t.Helper()
	m.formats = map[string]bool{}
	server := httptest.NewServer(m)
	m.t.Cleanup(server.Close)
	file := filepath.Join(m.t.TempDir(), "kubeconfig")
	text := strings.Replace(kubeconfig, "https://a.example", server.URL, 1)
	require.NoError(m.t, os.WriteFile(file, []byte(text), 0o600))
	_, client, err := cluster.Connect(cluster.Access{Kubeconfig: file})
	require.NoError(m.t, err)
	return client
}

func TestWhatAClusterHasManyOfIsListedInPages(t *testing.T) {
	type list = func(context.Context, kubernetes.Interface, metav1.ListOptions) (runtime.Object, error)
	lists := map[string]list{
		"nodes": func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
			return c.CoreV1().Nodes().List(ctx, o)
		},
		"pods": func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
			return c.CoreV1().Pods("zarf").List(ctx, o)
		},
		"events": func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
			return c.CoreV1().Events("zarf").List(ctx, o)
		},
		"Services of all namespaces": func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object,
			error) {
			return c.CoreV1().Services(metav1.NamespaceAll).List(ctx, o)
		},
	}
	expired := func(page int) *apierrors.StatusError {
		if page == 1 {
			return apierrors.NewResourceExpired("too old")
		}
		return nil
	}
	forbidden := func(page int) *apierrors.StatusError {
		if page == 1 {
			return apierrors.NewForbidden(corev1.Resource("nodes"), "", nil)
		}
		return nil
	}
	const selector = "labelSelector=a%3Db&"
	for description, tt := range map[string]struct {
		count int
		limit int64
		fails func(int) *apierrors.StatusError
		want  int // names; -1: an error
		asked []string
	}{
		"none":                     {0, 0, nil, 0, []string{selector + "limit=500"}},
		"a page that is not full":  {3, 0, nil, 3, []string{selector + "limit=500"}},
		"a page that is just full": {500, 0, nil, 500, []string{selector + "limit=500"}},
		"more than a page": {1201, 0, nil, 1201, []string{selector + "limit=500",
			"continue=500&" + selector + "limit=500", "continue=1000&" + selector + "limit=500"}},
		"a caller with a limit gets it": {1201, 1, nil, 1, []string{selector + "limit=1"}},
		"a page has expired": {1201, 0, expired, 1201,
			[]string{selector + "limit=500", "continue=500&" + selector + "limit=500", strings.TrimSuffix(selector, "&")}},
		"another error is the caller's": {1201, 0, forbidden, -1,
			[]string{selector + "limit=500", "continue=500&" + selector + "limit=500"}},
		"an error before the second one": {3, 0, func(int) *apierrors.StatusError {
			return apierrors.NewResourceExpired("old")
		}, -1, []string{selector + "limit=500"}},
	} {
		for what, list := range lists {
			t.Run(description+", of "+what, func(t *testing.T) {
				m := &manyNodes{t: t, count: tt.count, fails: tt.fails}
				client := m.connect()
				found, err := list(t.Context(), client, metav1.ListOptions{LabelSelector: "a=b", Limit: tt.limit})
				var names []string
				if err == nil {
					names = namesIn(t, found)
				}
				if (err != nil) != (tt.want < 0) || err == nil && len(names) != tt.want {
					t.Errorf("%d names and error %v, want %d", len(names), err, tt.want)
				}
				for n, name := range names {
					if want := fmt.Sprintf("n%d", n); name != want {
						t.Fatalf("name %d is %s, want %s: another order, or one twice", n, name, want)
					}
				}
				if strings.Join(m.asked, "\n") != strings.Join(tt.asked, "\n") {
					t.Errorf("asked for\n%s\nwant\n%s", strings.Join(m.asked, "\n"), strings.Join(tt.asked, "\n"))
				}
				if !m.formats[runtime.ContentTypeProtobuf] || len(m.formats) != 1 {
					t.Errorf("the formats are %v, want protobuf alone", m.formats)
				}
			})
		}
	}
}

func namesIn(t *testing.T, list runtime.Object) (names []string) {
	t.Helper()
	err := meta.EachListItem(list, func(object runtime.Object) error {
		named, err := meta.Accessor(object)
		if err == nil {
			names = append(names, named.GetName())
		}
		return err
	})
	require.NoError(t, err)
	return names
}

func TestOthersUseTheConfigurationForKindsThatKnowNoProtobuf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	config, _, err := cluster.Connect(cluster.Access{Kubeconfig: file})
	require.NoError(t, err)
	if config.ContentType != "" {
		t.Errorf("the configuration that others use says %s, which not every kind is known in", config.ContentType)
	}
}
