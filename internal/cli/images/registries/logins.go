package registries

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
)

// dockerHubKeys are the keys under which docker login (the first) and podman login (the others, which are its host
// names) store the credential of Docker Hub.
var dockerHubKeys = []string{"https://index.docker.io/v1/", "docker.io", "index.docker.io", "registry-1.docker.io"}

// maxPassword bounds a password read from stdin, in bytes. Tokens of cloud providers have
// a few thousand.
const maxPassword = 64 << 10

// maxHelperMessage bounds the quoted output of a credential helper, in bytes.
const maxHelperMessage = 300

// readPassword reads all of r without the trailing newline, as docker login does.
func readPassword(r io.Reader) (string, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxPassword+1))
	if err != nil {
		return "", fmt.Errorf("--password-stdin: reading the password: %w", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	switch {
	case password == "":
		return "", errors.New("--password-stdin: stdin is empty: pipe the password into it")
	case len(raw) > maxPassword:
		return "", fmt.Errorf("--password-stdin: stdin has more than %d bytes", maxPassword)
	case strings.ContainsAny(password, "\r\n\x00"):
		return "", errors.New("--password-stdin: stdin has several lines: want one")
	}
	return password, nil
}

// loginFiles returns the files in which docker login and podman login store credentials,
// in order of precedence. REGISTRY_AUTH_FILE comes first, as for podman and skopeo.
// https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md
func loginFiles() []string {
	home, _ := os.UserHomeDir() // without a home directory, its files are skipped
	in := func(dir string, path ...string) string {
		if dir == "" {
			return ""
		}
		return filepath.Join(append([]string{dir}, path...)...)
	}
	var files []string
	for _, file := range []string{
		os.Getenv("REGISTRY_AUTH_FILE"),
		in(cmp.Or(os.Getenv("DOCKER_CONFIG"), in(home, ".docker")), "config.json"),
		in(os.Getenv("XDG_RUNTIME_DIR"), "containers", "auth.json"),
		in(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), in(home, ".config")), "containers", "auth.json"),
	} {
		if file != "" {
			files = append(files, file)
		}
	}
	return files
}

// loginFile is one of these files. The fields here only locate a credential; oras-go reads
// it.
type loginFile struct {
	path        string
	Store       string                     `json:"credsStore"`
	Helpers     map[string]string          `json:"credHelpers"`
	Credentials map[string]json.RawMessage `json:"auths"`
	store       credentials.Store
}

// readLoginFile returns nil if the file does not exist or is empty.
func readLoginFile(path string) (*loginFile, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(strings.TrimSpace(string(raw))) == 0 {
		return nil, nil
	}
	f := &loginFile{path: path}
	if err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		return nil, fmt.Errorf("reading the registries' credentials in %s: %w", path, err)
	}
	if err := json.Unmarshal(raw, f); err != nil {
		// Errors of encoding/json may quote secrets in the file.
		where := "it is not in the format of docker login and podman login"
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			where = fmt.Sprintf("invalid JSON at byte %d", syntax.Offset)
		}
		return nil, fmt.Errorf("reading the registries' credentials in %s: %s: repair the file or log in again", path, where)
	}
	if f.store, err = credentials.NewStore(path, credentials.StoreOptions{}); err != nil {
		return nil, fmt.Errorf("reading the registries' credentials in %s: "+
			"it is not in the format of docker login and podman login: repair the file or log in again", path)
	}
	return f, nil
}

// get returns the credential for a key, or the empty credential.
func (f *loginFile) get(ctx context.Context, key string) (auth.Credential, error) {
	credential, err := f.store.Get(ctx, key)
	switch helper := cmp.Or(f.Helpers[key], f.Store); {
	case err == nil:
		return credential, nil
	case helper == "":
		// Without the original error, which quotes the content.
		return auth.EmptyCredential,
			fmt.Errorf("the credential for %s in %s is not in the format of docker login and podman login: log in again",
				key, f.path)
	default:
		return auth.EmptyCredential, fmt.Errorf("credential helper docker-credential-%s, configured for %s in %s: %w",
			helper, key, f.path, helperError(err))
	}
}

// helperError returns a helper's error without secrets, shortened to its first line.
func helperError(err error) error {
	var syntax *json.SyntaxError
	text := err.Error()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("not in PATH: install it or log in again")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &syntax), strings.Contains(text, "json:"):
		return errors.New("invalid JSON output")
	case strings.Contains(strings.ToLower(text), `"secret"`):
		return errors.New("failed")
	}
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > maxHelperMessage {
		text = text[:maxHelperMessage] + "…"
	}
	return fmt.Errorf("failed: %s", text)
}

// readLogins reads the files and returns a function that looks up the credential of a registry. It runs a helper, which
// may prompt the user, only when the registry requires a credential.
func readLogins() (auth.CredentialFunc, error) {
	var files []*loginFile
	for _, path := range loginFiles() {
		f, err := readLoginFile(path)
		if err != nil {
			return nil, err
		}
		if f != nil {
			files = append(files, f)
		}
	}
	return func(ctx context.Context, host string) (auth.Credential, error) {
		keys := []string{host}
		if slices.Contains(dockerHubKeys, host) {
			keys = dockerHubKeys
		}
		for _, f := range files {
			for _, key := range keys {
				if credential, err := f.get(ctx, key); err != nil || credential != auth.EmptyCredential {
					return credential, err
				}
			}
		}
		return auth.EmptyCredential, nil
	}, nil
}
