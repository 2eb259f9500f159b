package registry

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"go.yaml.in/yaml/v2"
)

const (
	driverFilesystem = "filesystem"
	driverInMemory   = "inmemory"
	driverS3         = "s3"
	driverS3AWS      = "s3aws" // distribution's other name for the same driver

	// defaultRoot is the filesystem driver's own default.
	defaultRoot = "/var/lib/registry"
)

// An upload that was given up holds its bytes until it is purged. Distribution
// keeps it for a week; on the small volume of a cluster that is too long, and no
// push lasts a day.
const (
	defaultPurgeAge      = "24h"
	defaultPurgeInterval = "12h"
)

// ConfigError lists what is wrong with a configuration. Nothing was started and
// nothing was changed.
type ConfigError struct {
	// Path is the configuration file.
	Path string
	// Problems are one sentence each, beginning with the key; at least one.
	Problems []string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("configuration %s: %s", e.Path, strings.Join(e.Problems, "; "))
}

// LoadConfig reads a configuration in distribution's format. The environment
// overrides the file as in distribution: REGISTRY_STORAGE_S3_ACCESSKEY is
// storage.s3.accesskey.
//
// It sets what this registry must have, whatever the file says: relative URLs
// (one address outside, another inside the cluster), deletion enabled (the state
// of the cluster decides what is kept), and no redirects to the storage (nodes
// neither know its CA nor can reach it). It fills in upload purging, and lets layers
// that may not be redistributed, as those of Windows images, be elsewhere, wherever
// that is, unless the file says which of their URLs it allows.
//
// It refuses, in a ConfigError that lists all of them, unknown keys and the
// settings that distribution's own server would read and this one does not:
// an ignored setting would be taken for one that works.
//
// There is no blob descriptor cache unless the file asks for one. In memory it
// breaks pushes as soon as there are two replicas
// (distribution/distribution#2225), and it makes a running registry promise
// blobs that a garbage collection in another process has removed.
func LoadConfig(path string) (*configuration.Configuration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	config, err := parseConfig(data)
	if err != nil {
		return nil, &ConfigError{Path: path, Problems: []string{err.Error()}}
	}
	problems := unsupported(config)
	problems = append(problems, checkStorage(config.Storage)...)
	if len(problems) > 0 {
		return nil, &ConfigError{Path: path, Problems: problems}
	}
	config.HTTP.RelativeURLs = true
	config.Storage["delete"] = configuration.Parameters{"enabled": true}
	config.Storage["redirect"] = configuration.Parameters{"disable": true}
	// distribution allows none where the file names none, and refuses the image.
	if urls := &config.Validation.Manifests.URLs; len(urls.Allow) == 0 && len(urls.Deny) == 0 {
		urls.Allow = []string{"^https?://"}
	}
	return config, nil
}

func parseConfig(data []byte) (config *configuration.Configuration, err error) {
	// The parser panics when file and environment together name two drivers.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	// Distribution's parser ignores what it does not know, such as a misspelt key.
	if err := yaml.UnmarshalStrict(data, &configuration.Configuration{}); err != nil {
		return nil, err
	}
	return configuration.Parse(strings.NewReader(string(data)))
}

// unsupported names the settings that this registry would not act on.
func unsupported(config *configuration.Configuration) []string {
	http := config.HTTP
	var problems []string
	for _, setting := range []struct {
		key     string
		value   any
		instead string
	}{
		{"auth", config.Auth, "credentials are given with --htpasswd and --pull-htpasswd, certificates with --tls-dir"},
		{"log", logSettings(config.Log), "logging is set with --log-level and --log-format"},
		{"http.addr", http.Addr, "addresses are given with --listen and --plain-listen"},
		{"http.net", http.Net, "addresses are given with --listen and --plain-listen"},
		{"http.tls", http.TLS, "certificates are given with --tls-dir"},
		{"http.debug", http.Debug, "metrics are served at --metrics-listen"},
		{"http.host", http.Host, "all URLs that this registry gives are relative"},
		{"http.prefix", http.Prefix, "the registry is served at /v2/, where clients look for it"},
		{"http.draintimeout", http.DrainTimeout, "it is set with --drain-timeout"},
		{"http.http2", http.HTTP2, "this registry speaks HTTP/1.1 only"},
		{"http.h2c", http.H2C, "this registry speaks HTTP/1.1 only"},
		{"health.file", config.Health.FileCheckers, "only the storage is checked; use probes for the rest"},
		{"health.http", config.Health.HTTPCheckers, "only the storage is checked; use probes for the rest"},
		{"health.tcp", config.Health.TCPCheckers, "only the storage is checked; use probes for the rest"},
		{"middleware", config.Middleware, "this registry has no middleware"},
		{"proxy", config.Proxy, "this registry is pushed to and cannot be a pull-through cache"},
	} {
		if v := reflect.ValueOf(setting.value); !v.IsZero() && (v.Kind() != reflect.Map || v.Len() > 0) {
			problems = append(problems, fmt.Sprintf("%s is not supported: remove it; %s", setting.key, setting.instead))
		}
	}
	return problems
}

// logSettings is what a file says about logs: the parser sets the level itself.
func logSettings(log configuration.Log) configuration.Log {
	if log.Level == "info" {
		log.Level = ""
	}
	return log
}

func checkStorage(storage configuration.Storage) []string {
	var problems []string
	switch name := storage.Type(); name {
	case driverFilesystem, driverInMemory, driverS3, driverS3AWS:
	default:
		problems = append(problems, fmt.Sprintf("storage.%s is not a storage driver of this registry, which has %s, %s and %s",
			name, driverFilesystem, driverS3, driverInMemory))
	}
	return append(problems, fillPurging(storage)...)
}

// fillPurging completes storage.maintenance.uploadpurging. Distribution panics
// where a key is missing, and hours after its start where the interval is zero.
func fillPurging(storage configuration.Storage) []string {
	const section = "storage.maintenance.uploadpurging"
	purging := map[any]any{"enabled": true, "age": defaultPurgeAge, "interval": defaultPurgeInterval, "dryrun": false}
	switch set := storage["maintenance"]["uploadpurging"].(type) {
	case nil:
	case map[any]any: // from the file
		maps.Copy(purging, set)
	case map[string]any: // from the environment
		for key, value := range set {
			purging[key] = value
		}
	default:
		return []string{fmt.Sprintf("%s is %v, not a set of keys", section, set)}
	}
	var problems []string
	for key, value := range purging {
		switch key {
		case "enabled", "dryrun":
			if _, ok := value.(bool); !ok {
				problems = append(problems, fmt.Sprintf("%s.%s is %v, not true or false", section, key, value))
			}
		case "age", "interval":
			text, _ := value.(string)
			if d, err := time.ParseDuration(text); err != nil || d <= 0 {
				problems = append(problems, fmt.Sprintf("%s.%s is %v, not a positive duration such as 24h", section, key, value))
			}
		default:
			problems = append(problems, fmt.Sprintf("%s.%v is not a key of that section", section, key))
		}
	}
	slices.Sort(problems)
	if storage["maintenance"] == nil {
		storage["maintenance"] = configuration.Parameters{}
	}
	storage["maintenance"]["uploadpurging"] = purging
	return problems
}

// readOnly tells whether the configuration puts the registry in maintenance.
func readOnly(storage configuration.Storage) bool {
	switch set := storage["maintenance"]["readonly"].(type) {
	case map[any]any:
		return set["enabled"] == true
	case map[string]any:
		return set["enabled"] == true
	}
	return false
}

// filesystemRoot is where the filesystem driver keeps everything; ok is false
// for other drivers.
func filesystemRoot(storage configuration.Storage) (root string, ok bool) {
	if storage.Type() != driverFilesystem {
		return "", false
	}
	if root, ok := storage.Parameters()["rootdirectory"]; ok {
		return fmt.Sprint(root), true
	}
	return defaultRoot, true
}
