package registry

import (
	"bytes"
	"context"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// A real client pushes an image with several layers, and pulls it as a node.
func TestPushAndPullWithORAS(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	i := start(t, newTestCA(t), t.TempDir())
	repository := func(c client, credential auth.Credential) *remote.Repository {
		t.Helper()
		r, err := remote.NewRepository(i.addresses["tls"] + "/zarf-dev/test")
		if err != nil {
			t.Fatal(err)
		}
		r.Client = &auth.Client{Client: c.Client, Cache: auth.NewCache(),
			Credential: auth.StaticCredential(i.addresses["tls"], credential)}
		return r
	}
	source := memory.New()
	push := func(mediaType string, data []byte) v1.Descriptor {
		t.Helper()
		d := content.NewDescriptorFromBytes(mediaType, data)
		if err := source.Push(ctx, d, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		return d
	}
	layers := []v1.Descriptor{
		push(v1.MediaTypeImageLayer, []byte("small")),
		push(v1.MediaTypeImageLayer, []byte(random(5<<20))),
	}
	config := push(v1.MediaTypeImageConfig, []byte("{}"))
	manifest, err := oras.PackManifest(ctx, source, oras.PackManifestVersion1_1, "",
		oras.PackManifestOptions{ConfigDescriptor: &config, Layers: layers})
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Tag(ctx, manifest, "v1"); err != nil {
		t.Fatal(err)
	}
	copyTo := func(r *remote.Repository) error {
		_, err := oras.Copy(ctx, source, "v1", r, "v1", oras.DefaultCopyOptions)
		return err
	}

	node := repository(i.node(), auth.Credential{})
	if err := copyTo(node); err == nil {
		t.Fatal("a node could push")
	}
	pusher := i.pusher()
	if err := copyTo(repository(pusher, auth.Credential{Username: pushUser, Password: "wrong"})); err == nil {
		t.Fatal("a wrong password could push")
	}
	if err := copyTo(repository(pusher, auth.Credential{Username: pushUser, Password: pushPassword})); err != nil {
		t.Fatal(err)
	}
	target := memory.New()
	if _, err := oras.Copy(ctx, node, "v1", target, "v1", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	for _, d := range append(layers, config, manifest) {
		reader, err := target.Fetch(ctx, d)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := content.ReadAll(reader, d); err != nil || int64(len(data)) != d.Size {
			t.Errorf("%s: %d bytes, %v", d.Digest, len(data), err)
		}
		reader.Close()
	}
	// A referrer of the image, pushed without the referrers API.
	signature := []byte("signed")
	blob := content.NewDescriptorFromBytes("application/x-signature", signature)
	writer := repository(pusher, auth.Credential{Username: pushUser, Password: pushPassword})
	if err := writer.Push(ctx, blob, bytes.NewReader(signature)); err != nil {
		t.Fatal(err)
	}
	if _, err := oras.PackManifest(ctx, writer, oras.PackManifestVersion1_1, "application/x-signature",
		oras.PackManifestOptions{Subject: &manifest, Layers: []v1.Descriptor{blob}}); err != nil {
		t.Fatal(err)
	}
	var referrers int
	err = node.Referrers(ctx, manifest, "", func(found []v1.Descriptor) error {
		referrers += len(found)
		return nil
	})
	if err != nil || referrers != 1 {
		t.Errorf("%d referrers, %v", referrers, err)
	}
}
