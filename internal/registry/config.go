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

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// ConfigError lists the problems of a configuration. Nothing was started or changed.
type ConfigError struct {
	// Path is the configuration file.
	Path string
	// Problems has at least one entry. Each begins with the key.
	Problems []string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("configuration %s: %s", e.Path, strings.Join(e.Problems, "; "))
}

// LoadConfig reads a configuration in distribution's format, which the environment overrides as in distribution.
//
// It overrides settings that this registry depends on. It returns a ConfigError that lists all unknown keys and all
// settings that distribution's server supports and this one ignores: users would assume that they work.
func LoadConfig(path string) (*configuration.Configuration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading configuration: %w", err)
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
	config.HTTP.RelativeURLs = true // clients inside and outside the cluster use different addresses
	config.Storage["delete"] = configuration.Parameters{"enabled": true}
	// Nodes cannot reach the storage, and do not trust its CA.
	config.Storage["redirect"] = configuration.Parameters{"disable": true}
	return config, nil
}

func parseConfig(data []byte) (config *configuration.Configuration, err error) {
	// The parser panics if the file and the environment specify different drivers.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	// Distribution's parser ignores unknown keys.
	if err := yaml.UnmarshalStrict(data, &configuration.Configuration{}); err != nil {
		return nil, err
	}
	return configuration.Parse(strings.NewReader(string(data)))
}

// unsupported returns the settings that this registry would ignore.
func unsupported(config *configuration.Configuration) []string {
	http, log := config.HTTP, config.Log
	if log.Level == "info" { // by default
		log.Level = ""
	}
	var problems []string
	for _, setting := range []struct {
		key     string
		value   any
		instead string
	}{
		{"auth", config.Auth, "use --htpasswd and --pull-htpasswd for users and --tls-dir for certificates"},
		{"log", log, "use --log-level and --log-format"},
		{"http.addr", http.Addr, "use --listen and --plain-listen"},
		{"http.net", http.Net, "use --listen and --plain-listen"},
		{"http.tls", http.TLS, "use --tls-dir"},
		{"http.debug", http.Debug, "use --metrics-listen"},
		{"http.host", http.Host, "this registry uses relative URLs only"},
		{"http.prefix", http.Prefix, "clients require the registry at /v2/"},
		{"http.draintimeout", http.DrainTimeout, "use --drain-timeout"},
		{"http.http2", http.HTTP2, "this registry speaks HTTP/1.1 only"},
		{"http.h2c", http.H2C, "this registry speaks HTTP/1.1 only"},
		{"health.file", config.Health.FileCheckers, "only the storage is checked; use probes for other checks"},
		{"health.http", config.Health.HTTPCheckers, "only the storage is checked; use probes for other checks"},
		{"health.tcp", config.Health.TCPCheckers, "only the storage is checked; use probes for other checks"},
		{"middleware", config.Middleware, "this registry does not support middleware"},
		{"storage.cache", config.Storage["cache"], "this registry asks the storage"},
		{"notifications", config.Notifications, "the log has an audit trail"},
		{"policy", config.Policy, "this registry accepts images of all classes"},
		{"proxy", config.Proxy, "this registry is not a pull-through cache"},
		{"validation.manifests.urls", config.Validation.Manifests.URLs, "OCI demands that layers may have URLs"},
		{"validation.manifests.indexes", config.Validation.Manifests.Indexes, "an index needs all of its manifests"},
	} {
		if v := reflect.ValueOf(setting.value); !v.IsZero() && (v.Kind() != reflect.Map || v.Len() > 0) {
			problems = append(problems, fmt.Sprintf("%s is not supported: remove it; %s", setting.key, setting.instead))
		}
	}
	return problems
}

func checkStorage(section configuration.Storage) []string {
	var problems []string
	switch name := section.Type(); name {
	case storage.DriverFilesystem, storage.DriverInMemory, storage.DriverS3, storage.DriverS3AWS:
	default:
		problems = append(problems, fmt.Sprintf("storage.%s is not a supported storage driver: use %s, %s or %s",
			name, storage.DriverFilesystem, storage.DriverS3, storage.DriverInMemory))
	}
	return append(problems, fillPurging(section)...)
}

// fillPurging validates storage.maintenance.uploadpurging and fills in defaults, without which distribution panics.
func fillPurging(storage configuration.Storage) []string {
	const section = "storage.maintenance.uploadpurging"
	// An abandoned upload occupies space until it is purged. A small volume cannot wait for distribution's week.
	purging := map[any]any{"enabled": true, "age": "24h", "interval": "12h", "dryrun": false}
	switch set := storage["maintenance"]["uploadpurging"].(type) {
	case nil:
	case map[any]any: // from the file
		maps.Copy(purging, set)
	case map[string]any: // from the environment
		for key, value := range set {
			purging[key] = value
		}
	default:
		return []string{fmt.Sprintf("%s is %v, not a mapping", section, set)}
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
				problems = append(problems,
					fmt.Sprintf("%s.%s is %v, not a positive duration such as 24h", section, key, value))
			}
		default:
			problems = append(problems, fmt.Sprintf("%s.%v is an unknown key", section, key))
		}
	}
	slices.Sort(problems)
	if storage["maintenance"] == nil {
		storage["maintenance"] = configuration.Parameters{}
	}
	storage["maintenance"]["uploadpurging"] = purging
	return problems
}
