package heal

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// podWith returns a pending pod on node n1 with the image; status is the JSON of its status.
func podWith(t *testing.T, image, status string, annotations ...string) Pod {
	t.Helper()
	var p Pod
	text := fmt.Sprintf(`{"metadata":{"name":"p","uid":"u","resourceVersion":"7"},
		"spec":{"nodeName":"n1",
			"initContainers":[{"name":"configure","image":%[1]q,"command":["/payload/loader","/payload","/program/x"]}],
			"containers":[{"name":"other","image":%[1]q,"command":["/bin/sh"]},{"name":"plain","image":%[1]q},
				{"name":"proxy","image":%[1]q,"command":["/payload/loader","/payload","/program/x"]}]},
		"status":%[2]s}`, image, status)
	require.NoError(t, json.Unmarshal([]byte(text), &p))
	if len(annotations) > 0 {
		p.Metadata.Annotations = map[string]string{"zarf-registry/previous-images": annotations[0], "else": "x"}
	}
	return p
}

const (
	creating = `{"phase":"Pending"}`
	backOff  = `{"phase":"Pending","initContainerStatuses":[{"name":"configure",
		"state":{"waiting":{"reason":"ImagePullBackOff"}}}]}`
	// The init container has ended, and the kubelet cannot get the image of the next container.
	later = `{"phase":"Pending","initContainerStatuses":[{"name":"configure","state":{"terminated":{"exitCode":0}}}],
		"containerStatuses":[{"name":"proxy","state":{"waiting":{"reason":"ErrImagePull"}}}]}`
	// The kubelet has not seen the replacement of a/pause:1 yet.
	late = `{"phase":"Pending","initContainerStatuses":[{"name":"configure","state":{"waiting":{"reason":"ErrImageNeverPull",
		"message":"Container image \"a/pause:1\" is not present with pull policy of Never"}}}]}`
	// The node was installed again: the init container runs first, and the pod does not become Pending again.
	lost = `{"phase":"Running","initContainerStatuses":[{"name":"configure","state":{"waiting":{"reason":"ImagePullBackOff"}},
		"lastState":{"terminated":{"reason":"ContainerStatusUnknown","exitCode":137}}}],
		"containerStatuses":[{"name":"proxy","state":{"waiting":{"reason":"PodInitializing"}}}]}`
	// The image was replaced.
	replaced = `{"phase":"Running","containerStatuses":[{"name":"proxy","state":{"waiting":{"reason":"ErrImageNeverPull",
		"message":"Container image \"a/pause:1\" is not present with pull policy of Never"}}}]}`
	crashing = `{"phase":"Running","containerStatuses":[{"name":"proxy","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}`
	running  = `{"phase":"Running","containerStatuses":[{"name":"proxy","state":{"running":{}}}]}`
)

// rules trust the pause images of one repository, and one more image.
var rules = nodeimages.Rules{References: []string{"r/own:1"}, Digest: "^$", Name: "^b/pause:[0-9.]+$", Own: "^$"}

func TestDecide(t *testing.T) {
	pauses := []nodeimages.Image{{Names: []string{"evil/pause:999"}}, {Names: []string{"b/pause:3.9"}, SizeBytes: 1},
		{Names: []string{"b/pause:3.10"}, SizeBytes: 1}}
	truncated := make([]nodeimages.Image, nodeimages.MaxReported)
	truncated[9] = nodeimages.Image{Names: []string{"c/tool:1"}, SizeBytes: 5}
	both := []string{"spec/initContainers/0", "spec/containers/2"}
	for description, c := range map[string]struct {
		pod        Pod
		images     []nodeimages.Image
		action     Action
		containers []string
		image      string
		reason     string
	}{
		"every container with the loader gets a trusted image": {podWith(t, "a/pause:1", backOff), pauses, Replace,
			both, "b/pause:3.10", "node n1 does not have image a/pause:1: replaced with b/pause:3.10"},
		"one that has ended keeps its image": {podWith(t, "a/pause:1", later), pauses, Replace, both[1:], "b/pause:3.10", ""},
		"the kubelet has not tried yet, but the node lacks the image": {podWith(t, "a/pause:1", creating), pauses, Replace,
			both, "b/pause:3.10", ""},
		"the kubelet has not tried yet, and the node has the image": {podWith(t, "b/pause:3.9", creating), pauses, Nothing,
			nil, "", ""},
		"a truncated list does not say what the node lacks": {podWith(t, "a/pause:1", creating), truncated, Nothing, nil, "",
			""},
		"a truncated list: what the release uses": {podWith(t, "a/pause:1", backOff), truncated, Replace, both, "r/own:1",
			"replaced with r/own:1, which it may have"},
		"then what its other pods use": {podWith(t, "a/pause:1", backOff, "r/own:1"), truncated, Replace, both,
			"b/pause:3.8", ""},
		"then nothing": {podWith(t, "a/pause:1", backOff, "r/own:1,b/pause:3.8"), truncated, Report, both, "",
			"no other trusted pause image is left to try"},
		"no image that is only called pause": {podWith(t, "a/pause:1", backOff), pauses[:1], Report, both, "",
			"it reports evil/pause:999; load a pause image on the node, or set injector.image"},
		"a node that has not reported its images": {podWith(t, "a/pause:1", backOff), nil, Wait, both, "",
			"node n1 does not report any image yet"},
		"a new node, before the kubelet has tried": {podWith(t, "a/pause:1", creating), nil, Wait, both, "",
			"node n1 does not report any image yet"},
		"a kubelet that pulls what the node has": {podWith(t, "b/pause:3.9", backOff, "a/pause:1"), pauses, Replace, both,
			"b/pause:3.10", "node n1 has image b/pause:3.9, but its kubelet pulls it: replaced with b/pause:3.10"},
		"a kubelet that still reports the image that was replaced": {podWith(t, "b/pause:3.9", late, "a/pause:1"), pauses,
			Nothing, nil, "", ""},
		"a kubelet that pulls all that the node has": {podWith(t, "b/pause:3.9", backOff, "b/pause:3.10"), pauses, Wait, both,
			"", "imagePullCredentialsVerificationPolicy"},
		"what failed is not tried again": {podWith(t, "c/pause:1", backOff, "b/pause:3.10"), pauses, Replace, both,
			"b/pause:3.9", ""},
		"all images were tried": {podWith(t, "c/pause:1", backOff, "b/pause:3.10,b/pause:3.9"), pauses, Report, both, "",
			"it reports evil/pause:999, b/pause:3.9, b/pause:3.10; replaced before: b/pause:3.10, b/pause:3.9"},
		"ten images were replaced": {podWith(t, "c/pause:1", backOff, "x:1,x:2,x:3,x:4,x:5,x:6,x:7,x:8,x:9,x:10"), pauses,
			Report, both, "", "x:10"},
		"a pod that runs": {podWith(t, "a/pause:1", running), pauses, Nothing, nil, "", ""},
		"a pod that ran before its node lost the image": {podWith(t, "a/pause:1", lost), pauses, Replace, both[:1],
			"b/pause:3.10", ""},
		"a pod that ran, and whose image was just replaced": {podWith(t, "c/pause:1", replaced, "a/pause:1"), pauses, Nothing,
			nil, "", ""},
		"a program that crashes": {podWith(t, "a/pause:1", crashing), pauses, Nothing, nil, "", ""},
	} {
		t.Run(description, func(t *testing.T) {
			d := Decide(c.pod, c.images, rules, []string{"evil/pause:1", "b/pause:3.8"})
			if d.Action != c.action || d.Image != c.image || !strings.Contains(d.Reason, c.reason) ||
				strings.Join(d.Containers, " ") != strings.Join(c.containers, " ") {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestPodsThatNobodyMayHealDoNotWait(t *testing.T) {
	for description, change := range map[string]func(*Pod){
		"not scheduled":    func(p *Pod) { p.Spec.NodeName = "" },
		"being deleted":    func(p *Pod) { p.Metadata.DeletionTimestamp = "2026-01-01T00:00:00Z" },
		"not of the chart": func(p *Pod) { p.Spec.InitContainers, p.Spec.Containers = nil, p.Spec.Containers[:2] },
	} {
		p := podWith(t, "a/pause:1", backOff)
		if waits, failing := p.Waits(); !waits || !failing {
			t.Errorf("it waits: %t, %t", waits, failing)
		}
		change(&p)
		if waits, failing := p.Waits(); waits || failing {
			t.Errorf("%s: it waits: %t, %t", description, waits, failing)
		}
	}
}

func TestPatch(t *testing.T) {
	images := []nodeimages.Image{{Names: []string{"b/pause:3"}}}
	for description, c := range map[string]struct {
		annotations []string
		want        string
	}{
		"without annotations": {nil, `{"op":"add","path":"/metadata/annotations","value":{}},` +
			`{"op":"add","path":"/metadata/annotations/zarf-registry~1previous-images","value":"a/pause:1"}]`},
		"after another replacement": {[]string{"x:1"},
			`{"op":"add","path":"/metadata/annotations/zarf-registry~1previous-images","value":"x:1,a/pause:1"}]`},
	} {
		p := podWith(t, "a/pause:1", later, c.annotations...)
		got := require.Value(json.Marshal(Decide(p, images, rules, nil).patch(p)))(t)
		want := `[{"op":"test","path":"/metadata/resourceVersion","value":"7"},` +
			`{"op":"test","path":"/spec/containers/2/image","value":"a/pause:1"},` +
			`{"op":"replace","path":"/spec/containers/2/image","value":"b/pause:3"},` + c.want
		if string(got) != want {
			t.Errorf("%s: %s, want %s", description, got, want)
		}
	}
}
