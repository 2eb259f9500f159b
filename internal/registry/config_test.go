package registry

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/distribution/distribution/v3/configuration"
)

const minimal = "version: 0.1\nstorage: {filesystem: {rootdirectory: /data}}\n"

func TestLoadConfigOverridesSettings(t *testing.T) {
	purging := func(changes ...any) map[any]any {
		all := map[any]any{"enabled": true, "age": "24h", "interval": "12h", "dryrun": false}
		for n := 0; n < len(changes); n += 2 {
			all[changes[n]] = changes[n+1]
		}
		return all
	}
	for name, tt := range map[string]struct {
		config, variable, value string
		want                    configuration.Storage
	}{
		"required settings are added": {
			config: minimal,
			want: configuration.Storage{
				"filesystem": {"rootdirectory": "/data"},
			},
		},
		"required settings override the file": {
			config: "version: 0.1\nstorage: {inmemory: {}, delete: {enabled: false}, redirect: {disable: false}}\n",
			want: configuration.Storage{
				"inmemory": {},
			},
		},
		"purging is completed, not replaced": {
			config: minimal[:len(minimal)-2] + ", maintenance: {uploadpurging: {age: 1h}, readonly: {enabled: true}}}\n",
			want: configuration.Storage{
				"filesystem":  {"rootdirectory": "/data"},
				"maintenance": {"uploadpurging": purging("age", "1h"), "readonly": map[any]any{"enabled": true}},
			},
		},
		"the environment sets a credential": {
			config:   "version: 0.1\nstorage: {s3: {bucket: b}}\n",
			variable: "REGISTRY_STORAGE_S3_ACCESSKEY", value: "key",
			want: configuration.Storage{
				"s3": {"bucket": "b", "accesskey": "key"},
			},
		},
		"the environment sets what the file leaves out": {
			config:   minimal,
			variable: "REGISTRY_STORAGE_MAINTENANCE_UPLOADPURGING_AGE", value: "2h",
			want: configuration.Storage{
				"filesystem":  {"rootdirectory": "/data"},
				"maintenance": {"uploadpurging": purging("age", "2h")},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.variable != "" {
				t.Setenv(tt.variable, tt.value)
			}
			config := loadConfig(t, tt.config).Config
			for section, parameters := range map[string]configuration.Parameters{
				"delete": {"enabled": true}, "redirect": {"disable": true}, "maintenance": {"uploadpurging": purging()},
			} {
				if _, ok := tt.want[section]; !ok {
					tt.want[section] = parameters
				}
			}
			if diff := cmp.Diff(tt.want, config.Storage); diff != "" {
				t.Error(diff)
			}
			if !config.HTTP.RelativeURLs {
				t.Error("URLs are not relative")
			}
		})
	}
}

func TestLoadConfigRejects(t *testing.T) {
	for name, tt := range map[string]struct {
		config, variable, value string
		want                    []string
	}{
		"an empty file":  {config: "", want: []string{"unsupported version"}},
		"no storage":     {config: "version: 0.1\n", want: []string{"no storage configuration"}},
		"invalid YAML":   {config: "version: [", want: []string{"yaml"}},
		"a misspelt key": {config: minimal + "htpp: {secret: x}\n", want: []string{"htpp"}},
		"an unknown driver": {config: "version: 0.1\nstorage: {gcs: {bucket: b}}\n",
			want: []string{"storage.gcs", "use filesystem, s3 or inmemory"}},
		"two drivers": {config: "version: 0.1\nstorage: {filesystem: {}, s3: {}}\n",
			want: []string{"exactly one storage type"}},
		"two drivers, one of them from the environment": {
			config: minimal, variable: "REGISTRY_STORAGE_S3_BUCKET", value: "b", want: []string{"multiple storage drivers"},
		},
		"distribution's authentication": {
			config: minimal + "auth: {htpasswd: {realm: x, path: /x}}\n",
			want:   []string{"auth is not supported", "--htpasswd", "--tls-dir"},
		},
		"authentication from the environment": {
			config: minimal, variable: "REGISTRY_AUTH", value: "htpasswd", want: []string{"auth is not supported"},
		},
		"no authentication": {config: minimal + "auth: {none: {}}\n", want: []string{"auth is not supported"}},
		"an address":        {config: minimal + "http: {addr: ':5000'}\n", want: []string{"http.addr", "--listen"}},
		"certificates": {config: minimal + "http: {tls: {certificate: /x, key: /y}}\n",
			want: []string{"http.tls", "--tls-dir"}},
		"a debug server": {config: minimal + "http: {debug: {addr: ':5001'}}\n",
			want: []string{"http.debug", "--metrics-listen"}},
		"a host":   {config: minimal + "http: {host: https://x}\n", want: []string{"http.host", "relative"}},
		"a prefix": {config: minimal + "http: {prefix: /x}\n", want: []string{"http.prefix", "/v2/"}},
		"a log level": {config: minimal + "log: {level: debug}\n",
			want: []string{"log is not supported", "--log-level"}},
		"log fields": {config: minimal + "log: {fields: {service: registry}}\n",
			want: []string{"log is not supported"}},
		"a health check of a URL": {config: minimal + "health: {http: [{uri: http://x, headers: {}}]}\n",
			want: []string{"health.http", "probes"}},
		"middleware": {config: minimal + "middleware: {storage: [{name: cloudfront, options: {}}]}\n",
			want: []string{"middleware"}},
		"a cache": {config: minimal[:len(minimal)-2] + ", cache: {blobdescriptor: inmemory}}\n",
			want: []string{"storage.cache", "asks the storage"}},
		"notifications": {config: minimal + "notifications: {endpoints: [{name: a, url: http://a}]}\n",
			want: []string{"notifications", "audit trail"}},
		"classes of images": {config: minimal + "policy: {repository: {classes: [image]}}\n", want: []string{"policy"}},
		"a pull-through cache": {config: minimal + "proxy: {remoteurl: https://x}\n",
			want: []string{"proxy", "pull-through"}},
		"sparse indexes": {config: minimal + "validation: {manifests: {indexes: {platforms: none}}}\n",
			want: []string{"validation.manifests.indexes", "all of its manifests"}},
		"all problems at once": {
			config: minimal + "http: {addr: ':5000', prefix: /x}\nauth: {none: {}}\n",
			want:   []string{"http.addr", "http.prefix", "auth"},
		},
		"purging that never ends": {
			config: "version: 0.1\nstorage: {inmemory: {}, maintenance: {uploadpurging: {interval: 0s, age: 12, enabled: yes " +
				"please, often: true}}}\n",
			want: []string{"uploadpurging.interval is 0s", "uploadpurging.age is 12", "uploadpurging.enabled is yes please",
				"uploadpurging.often"},
		},
		"purging that is not a section": {
			config: "version: 0.1\nstorage: {inmemory: {}, maintenance: {uploadpurging: false}}\n",
			want:   []string{"uploadpurging is false"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.variable != "" {
				t.Setenv(tt.variable, tt.value)
			}
			path := writeFile(t, filepath.Join(t.TempDir(), "config.yml"), []byte(tt.config))
			config, err := LoadConfig(path)
			var refusal *ConfigError
			if !errors.As(err, &refusal) || refusal.Path != path {
				t.Fatalf("LoadConfig() = %v, %v", config, err)
			}
			mentions(t, err.Error(), tt.want...)
		})
	}
	t.Run("a missing file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "none.yml")
		if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("LoadConfig() = %v", err)
		}
	})
	t.Run("distribution's default log level is accepted", func(t *testing.T) {
		loadConfig(t, minimal+"log: {level: info}\n")
	})
}

// Nodes request the URLs of foreign layers, which are not stored here. OCI 1.1 demands that a registry accepts them.
func TestForeignLayers(t *testing.T) {
	t.Parallel()
	type mediaTypes struct{ manifest, config, layer string }
	oci := mediaTypes{ociManifest, "application/vnd.oci.image.config.v1+json",
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"}
	docker := mediaTypes{"application/vnd.docker.distribution.manifest.v2+json",
		"application/vnd.docker.container.image.v1+json", "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}
	for name, tt := range map[string]mediaTypes{"OCI's": oci, "docker's": docker} {
		t.Run(name, func(t *testing.T) {
			i := start(t, newTestCA(t), "", configured(t, inMemory))
			c := i.pusher()
			layer := describe(tt.layer, digest.FromString("is away"), 7)
			layer["urls"] = []string{"https://example.com/layer"}
			body := encode(t, tt.manifest, map[string]any{
				"config": describe(tt.config, c.pushBlob("a", "{}"), 2), "layers": []any{layer},
			})
			c.must(http.StatusCreated, "PUT", "/v2/a/manifests/windows", strings.NewReader(body), "Content-Type", tt.manifest)
		})
	}
}
