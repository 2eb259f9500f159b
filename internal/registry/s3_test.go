package registry

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/credentials"
	"github.com/aws/aws-sdk-go/aws/session"
	awss3 "github.com/aws/aws-sdk-go/service/s3"
	distributionstorage "github.com/distribution/distribution/v3/registry/storage"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
	"github.com/zarf-dev/zarf-registry/test/s3test"
)

// With the path of versitygw in [s3test.ProgramVariable], all tests of this package store in S3: directories for
// tests are in its bucket, so tests can still look at files, and change them.
var s3 *s3test.Server

// s3Requests is locked for reading during a request to S3. It guards s3Registries, which counts the running registries by
// their path in S3. Those that have stopped count 0.
var (
	s3Requests   sync.RWMutex
	s3Registries = map[string]int{}
)

// S3 copies slowly in the repository slowCopies.
const (
	slowCopies = "/repositories/slow-copies/"
	copyDelay  = 3 * time.Second
)

// D2: the client gives up while S3 copies its blob to where blobs are, and repeats the request.
func TestUploadsOutliveTheirRequest(t *testing.T) {
	t.Parallel()
	s3Only(t)
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	content := strings.Repeat("large", 1<<20)
	finish := c.begin("slow-copies") + "&digest=" + digest.FromString(content).String()
	ctx, cancel := context.WithTimeout(t.Context(), copyDelay/3)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, c.base+finish, strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth(c.user, c.password)
	if response, err := c.Do(request); err == nil {
		response.Body.Close()
		t.Fatalf("the client did not give up: %s", response.Status)
	}
	c.must(http.StatusCreated, "PUT", finish, nil)
	if got := c.must(http.StatusOK, "GET", "/v2/slow-copies/blobs/"+digest.FromString(content).String(), nil).body; got != content {
		t.Errorf("%d bytes", len(got))
	}
}

// D7: distribution's purge removes the files of an abandoned upload. S3 keeps its parts, which are in no file, until the
// upload is aborted.
func TestThePurgeAbortsAbandonedUploads(t *testing.T) {
	t.Parallel()
	s3Only(t)
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	c := i.pusher()
	c.must(http.StatusAccepted, "PATCH", c.begin("a"), strings.NewReader(strings.Repeat("large", 4<<20)))
	bucket := awss3.New(session.Must(session.NewSession(&aws.Config{Endpoint: &s3.Endpoint, Region: aws.String(s3test.Region),
		Credentials: credentials.NewStaticCredentials(s3test.AccessKey, s3test.SecretKey, ""), S3ForcePathStyle: aws.Bool(true)})))
	uploads := func() (n int) {
		t.Helper()
		list, err := bucket.ListMultipartUploads(&awss3.ListMultipartUploadsInput{Bucket: aws.String(filepath.Base(os.TempDir()))})
		if err != nil {
			t.Fatal(err)
		}
		for _, upload := range list.Uploads {
			if strings.Contains("/"+*upload.Key, strings.TrimPrefix(root, os.TempDir())+"/") {
				n++
			}
		}
		return n
	}
	if n := uploads(); n != 1 {
		t.Fatalf("%d uploads in S3", n)
	}
	purged, errs := distributionstorage.PurgeUploads(t.Context(), i.server.source.Driver, time.Now().Add(time.Hour), true)
	if len(purged) != 1 || len(errs) > 0 {
		t.Fatalf("purged %q, %v", purged, errs)
	}
	if n := uploads(); n != 0 {
		t.Errorf("%d uploads in S3 after the purge", n)
	}
}

// A process has completed the upload in S3 and ended before the content was a blob.
func TestACompleteUploadOfAProcessThatHasEndedIsUnknown(t *testing.T) {
	t.Parallel()
	s3Only(t)
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	upload := c.begin("a")
	upload = c.must(http.StatusAccepted, "PATCH", upload, strings.NewReader("content")).Header.Get("Location")
	id := path.Base(strings.Split(upload, "?")[0])
	file := require.Value(i.server.source.Driver.Writer(t.Context(), storage.UploadDir("a", id)+"/data", true))(t)
	require.NoError(t, file.Commit(t.Context()))
	for range 2 {
		c.must(http.StatusNotFound, "GET", upload, nil)
		c.must(http.StatusNotFound, "PUT", upload+"&digest="+digest.FromString("content").String(), nil)
	}
	c.pushBlob("a", "content")
}

// runTests runs the tests, with S3 if it is available.
func runTests(m *testing.M) (code int, err error) {
	if root := os.Getenv(recordedRoot); root != "" {
		return 0, serveRecorded(root)
	}
	program := os.Getenv(s3test.ProgramVariable)
	if program == "" {
		return m.Run(), nil
	}
	root, err := os.MkdirTemp("", "zarf-registry-s3-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(root)
	bucket := filepath.Join(root, "bucket")
	if err := os.Mkdir(bucket, 0o700); err != nil {
		return 0, err
	}
	if err := os.Setenv("TMPDIR", bucket); err != nil {
		return 0, err
	}
	address, err := freeport.Find()
	if err != nil {
		return 0, err
	}
	if s3, err = s3test.Start(program, address, bucket); err != nil {
		return 0, err
	}
	defer s3.Stop()
	target, err := url.Parse(s3.Endpoint)
	if err != nil {
		return 0, err
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s3Requests.RLock()
		defer s3Requests.RUnlock()
		for path, running := range s3Registries {
			if running == 0 && strings.HasPrefix(r.URL.Path, path) {
				http.Error(w, "the registry has stopped", http.StatusGone)
				return
			}
		}
		if strings.Contains(r.Header.Get("X-Amz-Copy-Source"), slowCopies) {
			time.Sleep(copyDelay)
		}
		// A context that nobody can cancel would make the proxy watch the connection instead.
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		defer cancel()
		proxy.ServeHTTP(w, r.WithContext(ctx))
	}))
	defer front.Close()
	s3.Endpoint = front.URL
	return m.Run(), nil
}

// storageAt returns the section storage of a configuration that stores in a directory for tests.
func storageAt(root string, more ...string) string {
	driver := fmt.Sprintf("filesystem: {rootdirectory: %q}", root) // names of subtests may contain a comma
	if s3 != nil {
		driver = s3.Driver(root)
	}
	return "storage: {" + strings.Join(append([]string{driver}, more...), ", ") + "}\n"
}

// useS3 lets a registry use its root directory in S3, and returns what must be called when it has stopped. That waits until
// S3 has carried out all requests. If no other registry uses the directory, it also makes S3 refuse later requests: they
// would make the removal of the directory fail. The root is empty if a test configures the storage itself.
func useS3(root string) (stopped func()) {
	if s3 == nil || root == "" {
		return func() {}
	}
	bucket := os.TempDir()
	path := "/" + filepath.Base(bucket) + strings.TrimPrefix(root, bucket) + "/"
	count := func(change int) {
		s3Requests.Lock()
		defer s3Requests.Unlock()
		s3Registries[path] += change
	}
	count(1)
	return func() { count(-1) }
}

// older waits until what is stored is older than what will be stored: S3 tells some times in whole seconds only, and
// the kernel stamps files with the time of its last timer interrupt, 10 ms ago (CONFIG_HZ=100) or, on a busy virtual
// machine, longer.
func older() {
	if s3 != nil {
		time.Sleep(2 * time.Second)
		return
	}
	time.Sleep(300 * time.Millisecond)
}

// s3Only skips a test of S3 if the tests use the filesystem driver.
func s3Only(t *testing.T) {
	t.Helper()
	if s3 == nil {
		t.Skipf("needs S3: set %s", s3test.ProgramVariable)
	}
}

// filesystemOnly skips a test of the filesystem driver if the tests use S3.
func filesystemOnly(t *testing.T) {
	t.Helper()
	if s3 != nil {
		t.Skip("it tests storage in a directory")
	}
}

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
