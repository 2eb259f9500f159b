package registry

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/test/s3test"
)

func TestReadinessExplainsWhyS3Fails(t *testing.T) {
	t.Parallel()
	nothing := freeport.Loopback(t)
	endpoint := func(t *testing.T) string {
		if s3 == nil {
			t.Skipf("needs versitygw: set %s to the output of bin/testcluster tool versitygw", s3test.ProgramVariable)
		}
		return s3.Endpoint
	}
	for name, tt := range map[string]struct {
		endpoint func(t *testing.T) string
		bucket   string
		secret   string
		want     []string
	}{
		"a bucket that does not exist": {endpoint, "none", s3test.SecretKey,
			[]string{"bucket none at http://", "NoSuchBucket", "correct storage.s3.bucket"}},
		"a wrong key": {endpoint, "bucket", "wrong",
			[]string{"bucket bucket at", "SignatureDoesNotMatch", "correct the keys"}},
		"an endpoint where nothing listens": {func(*testing.T) string { return "http://" + nothing }, "bucket",
			s3test.SecretKey, []string{"at http://" + nothing, "connection refused", "check storage.s3.regionendpoint"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := fmt.Sprintf("version: 0.1\nstorage: {s3: {regionendpoint: %q, region: %s, bucket: %s, "+
				"forcepathstyle: true, accesskey: %s, secretkey: %q}}\n", tt.endpoint(t), s3test.Region, tt.bucket, s3test.AccessKey, tt.secret)
			i := open(t, newTestCA(t), t.TempDir(), configured(t, config))
			i.run()
			health := i.diagnostics("health")
			var body string
			eventually(t, "the check fails", func() bool {
				a, err := health.send(http.MethodGet, "/readyz", nil)
				body = a.body
				return err == nil && a.StatusCode == http.StatusServiceUnavailable && !strings.Contains(body, "not checked yet")
			})
			mentions(t, body, tt.want...)
		})
	}
}
