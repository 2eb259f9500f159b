package registry

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/gc"
)

// TestS3 uses a real S3-compatible store and writes to its bucket.
func TestS3(t *testing.T) {
	endpoint, bucket := os.Getenv("ZARF_REGISTRY_TEST_S3_ENDPOINT"), os.Getenv("ZARF_REGISTRY_TEST_S3_BUCKET")
	if endpoint == "" || bucket == "" {
		t.Skip("SKIPPED, S3 is not tested: set ZARF_REGISTRY_TEST_S3_ENDPOINT and ZARF_REGISTRY_TEST_S3_BUCKET (keys: " +
			"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)")
	}
	config := fmt.Sprintf("version: 0.1\nstorage: {s3: {regionendpoint: %q, region: us-east-1, bucket: %q, "+
		"forcepathstyle: true, rootdirectory: /test-%d}}\n",
		endpoint, bucket, time.Now().UnixNano())
	i := start(t, newTestCA(t), t.TempDir(), func(o *Options) { o.Config = loadConfig(t, config).Config })
	i.waitReady()
	c, node := i.pusher(), i.node()
	layer := random(21 << 20) // more than one part of a multipart upload
	d, _ := c.pushImage("a", "v1", layer)
	blob := "/v2/a/blobs/" + digest.FromString(layer).String()
	if got := node.must(http.StatusOK, "GET", blob, nil); got.body != layer {
		t.Errorf("downloaded %d bytes", len(got.body))
	}
	if got := node.must(http.StatusPartialContent, "GET", blob, nil, "Range",
		"bytes=20000000-20000009"); got.body != layer[20000000:20000010] {
		t.Errorf("downloaded another range: %q", got.body)
	}
	upload := c.must(http.StatusAccepted, "POST", "/v2/a/blobs/uploads/", nil).Header.Get("Location")
	upload = c.must(http.StatusAccepted, "PATCH", upload, strings.NewReader(layer[:11<<20])).Header.Get("Location")
	chunks := layer[:11<<20] + layer[:6<<20]
	c.must(http.StatusCreated, "PUT", upload+"&digest="+digest.FromString(chunks).String(),
		strings.NewReader(layer[:6<<20]))
	if got := node.must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString(chunks).String(), nil); got.body != chunks {
		t.Errorf("%d bytes of an upload in chunks came back", len(got.body))
	}
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+d.String(), nil)
	collected, err := GarbageCollect(context.Background(), loadConfig(t, config).Config, gc.Request{Timeout: time.Minute},
		func(gc.Event) {})
	if err != nil || collected.Blobs != 4 || collected.Bytes < int64(len(layer)+len(chunks)) {
		t.Errorf("collected %+v, %v", collected, err)
	}
	node.must(http.StatusNotFound, "GET", blob, nil)
}
