package workloads_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func meta(name string, owner ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name)}
	controller := true
	for _, o := range owner {
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{UID: types.UID(o), Controller: &controller})
	}
	return m
}

func spec(images ...string) (s corev1.PodSpec) {
	for _, i := range images {
		s.Containers = append(s.Containers, corev1.Container{Image: i})
	}
	return s
}

func template(images ...string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: spec(images...)}
}

func image(repository string, tags ...string) *catalog.Image {
	m := &catalog.Manifest{Repository: repository, Digest: digest.FromString(repository), Tags: tags}
	child := &catalog.Manifest{Repository: repository, Digest: digest.FromString(repository + " child")}
	return &catalog.Image{Manifest: m, Members: []*catalog.Manifest{m, child}}
}

func TestUsing(t *testing.T) {
	running := corev1.Pod{ObjectMeta: meta("moved"), Spec: spec("127.0.0.1:31999/team/moved:1")}
	running.Status.ContainerStatuses = []corev1.ContainerStatus{
		{ImageID: "docker.io/team/moved@" + digest.FromString("team/moved").String()},
		{ImageID: digest.FromString("a configuration").String()},
	}
	volume := corev1.Pod{ObjectMeta: meta("volume"), Spec: spec("busybox")}
	volume.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: "quay.io/team/model:7"}}}}
	volume.Spec.InitContainers = []corev1.Container{{Image: "registry.example.com:5000/team/init:1"}}
	volume.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "team/debug"}}}
	client := fake.NewClientset(
		&running, &volume,
		&appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Template: template("127.0.0.1:31999/web:2")}},
		&appsv1.ReplicaSet{ObjectMeta: meta("web-2", "web"), Spec: appsv1.ReplicaSetSpec{Template: template("127.0.0.1:31999/web:2")}},
		&appsv1.ReplicaSet{ObjectMeta: meta("web-1", "web"), Spec: appsv1.ReplicaSetSpec{Template: template("127.0.0.1:31999/web:1")}},
		&corev1.Pod{ObjectMeta: meta("web-2-a", "web-2"), Spec: spec("127.0.0.1:31999/web:2")},
		&appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Template: template("postgres:16")}},
		&appsv1.DaemonSet{ObjectMeta: meta("agent"), Spec: appsv1.DaemonSetSpec{Template: template("ghcr.io/team/agent:1")}},
		&corev1.ReplicationController{ObjectMeta: meta("old"), Spec: corev1.ReplicationControllerSpec{
			Template: &corev1.PodTemplateSpec{Spec: spec("team/old:1")}}},
		&batchv1.Job{ObjectMeta: meta("once"), Spec: batchv1.JobSpec{Template: template("team/job:1")}},
		&batchv1.CronJob{ObjectMeta: meta("nightly"), Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{
			Spec: batchv1.JobSpec{Template: template("team/nightly@"+digest.FromString("team/nightly child").String(), "Bad Name")}}}},
	)
	set := require.Value(workloads.List(t.Context(), client))(t)
	require.NoError(t, set.AddList("release.txt", []string{"docker.io/team/listed:1"}))
	for _, c := range []struct {
		image *catalog.Image
		want  []string
	}{
		{image("web", "2"), []string{"Deployment shop/web"}},
		{image("web", "1"), []string{"ReplicaSet shop/web-1"}},
		{image("web", "3"), nil},
		{image("library/postgres", "16"), []string{"StatefulSet shop/db"}},
		{image("mirror/library/postgres", "latest", "16"), []string{"StatefulSet shop/db"}},
		{image("library/postgres", "16-zarf-3116109484"), nil},
		{image("postgres", "16"), nil}, // another image than Docker Hub's
		{image("team/agent", "1"), []string{"DaemonSet shop/agent"}},
		{image("team/old", "1"), []string{"ReplicationController shop/old"}},
		{image("team/job", "1"), []string{"Job shop/once"}},
		{image("team/nightly"), []string{"CronJob shop/nightly"}},
		{image("team/moved"), []string{"Pod shop/moved"}},
		{image("team/model", "7"), []string{"Pod shop/volume"}},
		{image("team/init", "1"), []string{"Pod shop/volume"}},
		{image("team/debug", "latest"), []string{"Pod shop/volume"}},
		{image("team/listed", "1"), []string{"release.txt"}},
		{image("steam/agent", "1"), nil},
	} {
		if got := set.Using(c.image); len(got)+len(c.want) > 0 && !cmp.Equal(got, c.want) {
			t.Errorf("%s %q is used by %q, want %q", c.image.Repository, c.image.Tags, got, c.want)
		}
	}
	// The checksum is that of the name: see name.ZarfTag.
	zarf := image("library/nginx", "latest-zarf-3793515731")
	if got := set.Using(zarf); len(got) > 0 {
		t.Errorf("%q use %q", got, zarf.Tags)
	}
	if err := set.AddList("list", []string{"nginx"}); err != nil || len(set.Using(zarf)) != 1 {
		t.Errorf("%q use %q, error %v", set.Using(zarf), zarf.Tags, err)
	}
	if err := set.AddList("list", []string{"Bad Name"}); err == nil {
		t.Error("an invalid reference in a list is accepted")
	}
}

func TestListFailsIfItWouldBeIncomplete(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "cronjobs", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	_, err := workloads.List(context.Background(), client)
	if err == nil || !strings.Contains(err.Error(), "CronJobs of all namespaces: forbidden") {
		t.Errorf("error is %v", err)
	}
}
