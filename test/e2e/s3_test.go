package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
	"github.com/zarf-dev/zarf-registry/test/s3test"
)

// controlPlane is its IPv4 address in test clusters.
const controlPlane = "172.30.0.1"

// The Secrets of startS3.
const s3Keys, s3CA = "s3-keys", "s3-ca"

// startS3 runs an S3 server next to the control plane until the test ends, with a certificate of a private CA. Pods
// reach it, and nothing outside of the cluster does. It creates Secrets with the keys and the CA, and returns the
// values that make the registry store in its bucket, whose directory it returns, too.
func (w *world) startS3(t *testing.T) (values, bucket string) {
	t.Helper()
	w.testClusterOnly(t)
	program := strings.TrimSpace(run(t, w.testcluster, "tool", "versitygw"))
	dir := t.TempDir()
	bucket = filepath.Join(dir, "buckets", "images")
	require.NoError(t, os.MkdirAll(bucket, 0o700))
	ca := require.Value(pki.NewCA("S3", time.Now(), 0))(t)
	for name, data := range serverCertificate(t, ca, controlPlane) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	address := net.JoinHostPort(controlPlane, "9000")
	w.daemon(t, "cp", s3test.Command(program, address, filepath.Dir(bucket), "--cert", filepath.Join(dir, "tls.crt"),
		"--key", filepath.Join(dir, "tls.key"))...)
	eventually(t, "versitygw to listen", func() error {
		out, err := w.onNode(t, w.nodes[0], w.tool, "dial", address)
		if err != nil {
			t.Log(out)
		}
		return err
	})
	w.putSecret(t, s3Keys, map[string][]byte{"AWS_ACCESS_KEY_ID": []byte(s3test.AccessKey),
		"AWS_SECRET_ACCESS_KEY": []byte(s3test.SecretKey)})
	w.putSecret(t, s3CA, map[string][]byte{"ca.crt": ca.KeyPair().Certificate})
	return "--set=registry.storage.type=s3,registry.storage.s3.bucket=images,registry.storage.s3.region=" + s3test.Region +
		",registry.storage.s3.regionEndpoint=https://" + address + ",registry.storage.s3.forcePathStyle=true" +
		",registry.storage.s3.existingSecret=" + s3Keys + ",registry.storage.s3.caSecret=" + s3CA, bucket
}

// installOnS3 is startS3 before the first installation. An uninstall leaves the Secrets.
func (w *world) installOnS3(t *testing.T) (values string) {
	t.Helper()
	output(t, w.command(t, w.kubectl, "create", "namespace", namespace))
	values, _ = w.startS3(t)
	w.kept = []string{"secret/" + s3CA, "secret/" + s3Keys}
	return values
}

// testS3 moves the images of a volume to S3, and runs replicas there.
func testS3(t *testing.T, w *world, image string) {
	values, bucket := w.startS3(t)
	t.Cleanup(func() { output(t, w.command(t, w.kubectl, "-n", namespace, "delete", "secret", s3Keys, s3CA)) })
	must(t, "the images move to S3", func(t *testing.T) {
		backup := filepath.Join(t.TempDir(), "backup.tar")
		output(t, w.command(t, w.hook, "images", "export", "--out", backup))
		w.apply(t, proxyMode, values)
		output(t, w.command(t, w.hook, "images", "push", backup))
		w.isHealthy(t)
		w.pullEverywhere(t, image)
		w.pushFresh(t)
	})
	must(t, "two registries share the bucket", func(t *testing.T) {
		w.apply(t, proxyMode, values, "--set=registry.replicas=2")
		w.replicas(t, 2)
		testUploadMoves(t, w)
	})
	w.underLoop(t, "a rollout of three", func(t *testing.T) {
		w.apply(t, proxyMode, values, "--set=registry.replicas=3")
		w.replicas(t, 3)
		w.rollOut(t)
	})
	must(t, "garbage is collected in the bucket", func(t *testing.T) {
		w.push(t, w.makeArchive(t, "example.com/e2e/big:1", 8<<20))
		before := storedIn(t, bucket)
		w.push(t, w.makeArchive(t, "example.com/e2e/big:1", 8<<20))
		var collected collectedJSON
		time.Sleep(time.Second) // S3 tells some times in whole seconds
		decode(t, output(t, w.command(t, w.hook, "images", "garbage-collect", "--delete-untagged", "--grace-period=0s",
			"--output=json")), &collected)
		if collected.Bytes < 8<<20 || storedIn(t, bucket) > before+1<<20 {
			t.Errorf("collected %+v; %d bytes were stored, %d are now", collected, before, storedIn(t, bucket))
		}
		w.pullEverywhere(t, image)
		w.isHealthy(t)
	})
	if !long() {
		t.Log("SHORTENED: status does not name a bucket that is gone; TestFailingStorageIsNamed covers the report")
		return
	}
	must(t, "status names a bucket that is gone", func(t *testing.T) {
		require.NoError(t, os.Rename(bucket, bucket+".away"))
		w.advises(t, "The registry is not ready", "NoSuchBucket", "correct storage.s3.bucket")
		require.NoError(t, os.Rename(bucket+".away", bucket))
		w.replicas(t, 3)
		w.isHealthy(t)
	})
}

// storedIn returns the size of the blobs in a bucket.
func storedIn(t *testing.T, bucket string) (size int64) {
	t.Helper()
	files, err := filepath.Glob(bucket + "/docker/registry/v2/blobs/*/*/*/data")
	if err != nil || len(files) == 0 {
		t.Fatalf("the bucket has no blobs: %v", err)
	}
	for _, file := range files {
		info := require.Value(os.Stat(file))(t)
		size += info.Size()
	}
	return size
}
