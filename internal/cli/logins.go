package cli

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
	"strings"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
)

// dockerHubKey is what docker login keeps Docker Hub's credential under; the hosts
// are what the Hub is called otherwise.
const dockerHubKey = "https://index.docker.io/v1/"

var dockerHubHosts = map[string]bool{"docker.io": true, "index.docker.io": true, "registry-1.docker.io": true}

// maxPassword bounds a password that is read from stdin, in bytes: tokens of
// cloud providers have some thousand.
const maxPassword = 64 << 10

// maxHelperMessage bounds what is quoted of a credential helper, in bytes.
const maxHelperMessage = 300

// readPassword reads all of r, without the end of the line, as docker login does.
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
		return "", fmt.Errorf("--password-stdin: stdin holds more than %d bytes, which is no password", maxPassword)
	case strings.ContainsAny(password, "\r\n\x00"):
		return "", errors.New("--password-stdin: stdin holds several lines: a password is one")
	}
	return password, nil
}

// loginFiles are the files that docker login and podman login keep credentials in,
// the first that has one for a host wins. What REGISTRY_AUTH_FILE names comes
// first, as it does for podman and skopeo.
// https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md
func loginFiles() []string {
	home, _ := os.UserHomeDir() // without one there are no files in it
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

// loginFile is such a file. Only what says where a credential is, is looked at
// here; oras-go reads it.
type loginFile struct {
	path        string
	Store       string                     `json:"credsStore"`
	Helpers     map[string]string          `json:"credHelpers"`
	Credentials map[string]json.RawMessage `json:"auths"`
	store       credentials.Store
}

// readLoginFile returns nil where there is no such file, or an empty one.
func readLoginFile(path string) (*loginFile, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(strings.TrimSpace(string(raw))) == 0 {
		return nil, nil
	}
	f := &loginFile{path: path}
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, fmt.Errorf("reading the registries' credentials in %s: %w", path, err)
	}
	if err := json.Unmarshal(raw, f); err != nil {
		// The JSON package's own words may quote what is in the file.
		where := "it is not the JSON that docker login and podman login write"
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			where = fmt.Sprintf("it is not JSON from byte %d on", syntax.Offset)
		}
		return nil, fmt.Errorf("reading the registries' credentials in %s: %s: mend it, or log in anew", path, where)
	}
	if f.store, err = credentials.NewStore(path, credentials.StoreOptions{}); err != nil {
		return nil, fmt.Errorf("reading the registries' credentials in %s: it is not what docker login and podman login write: mend it, or log in anew", path)
	}
	return f, nil
}

// helper is the credential helper that the file names for a key, "" for none.
func (f *loginFile) helper(key string) string { return cmp.Or(f.Helpers[key], f.Store) }

// get returns the empty credential where the file has none for the key.
func (f *loginFile) get(ctx context.Context, key string) (auth.Credential, error) {
	credential, err := f.store.Get(ctx, key)
	switch helper := f.helper(key); {
	case err == nil:
		return credential, nil
	case helper == "":
		// Not the error itself: it quotes what it could not read.
		return auth.EmptyCredential, fmt.Errorf("the credential for %s in %s is not what docker login and podman login write: log in anew", key, f.path)
	default:
		return auth.EmptyCredential, fmt.Errorf("credential helper docker-credential-%s, which %s names for %s: %w", helper, f.path, key, helperError(err))
	}
}

// helperError is what a helper said, unless that holds a secret or a whole page.
func helperError(err error) error {
	var syntax *json.SyntaxError
	text := err.Error()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("is not in PATH: install it, or log in anew")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &syntax), strings.Contains(text, "json:"):
		return errors.New("answered something that is not JSON")
	case strings.Contains(strings.ToLower(text), `"secret"`):
		return errors.New("failed")
	}
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > maxHelperMessage {
		text = text[:maxHelperMessage] + "…"
	}
	return fmt.Errorf("failed: %s", text)
}

// logins finds the credentials that the user has logged in with. The files are
// read once, when the first registry needs them.
type logins struct {
	read  bool
	files []*loginFile
	err   error
}

// credential returns the way to a registry's credential: asked for when the
// registry asks for one, so that a helper that wants a hand on a key is not run in
// vain. Files that cannot be read are an error at once.
func (l *logins) credential() (auth.CredentialFunc, error) {
	if !l.read {
		l.read = true
		for _, path := range loginFiles() {
			f, err := readLoginFile(path)
			if err != nil {
				l.err = err
				break
			}
			if f != nil {
				l.files = append(l.files, f)
			}
		}
	}
	if l.err != nil {
		return nil, l.err
	}
	return func(ctx context.Context, host string) (auth.Credential, error) {
		key := host
		if dockerHubHosts[host] {
			key = dockerHubKey
		}
		for _, f := range l.files {
			credential, err := f.get(ctx, key)
			if err != nil {
				return auth.EmptyCredential, err
			}
			if credential != auth.EmptyCredential {
				return credential, nil
			}
		}
		return auth.EmptyCredential, nil
	}, nil
}
