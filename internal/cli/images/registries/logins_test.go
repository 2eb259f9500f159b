package registries

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// loggedIn is what docker login writes for a host without a credential helper.
func loggedIn(host, user, password string) string {
	return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

// echoHelper knows one host.
const echoHelper = `read host
case "$1 $host" in
"get secure.example") echo '{"ServerURL":"secure.example","Username":"robot","Secret":"from the keychain"}' ;;
"get token.example") echo '{"ServerURL":"token.example","Username":"<token>","Secret":"a refresh token"}' ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac`

func TestCredentialsAreFoundWhereLoginsPutThem(t *testing.T) {
	clitest.HelperProgram(t, "echo", echoHelper)
	for name, c := range map[string]struct {
		files map[string]string
		env   map[string]string // HOME stands for the home's path
		host  string
		want  auth.Credential
	}{
		"nowhere": {nil, nil, "a.example", auth.EmptyCredential},
		"docker's file": {map[string]string{".docker/config.json": loggedIn("a.example:5000", "u", "p:q")}, nil,
			"a.example:5000", auth.Credential{Username: "u", Password: "p:q"}},
		"not another port's": {map[string]string{".docker/config.json": loggedIn("a.example:5000", "u", "p")}, nil,
			"a.example", auth.EmptyCredential},
		"with a scheme, as old dockers wrote it": {map[string]string{".docker/config.json": loggedIn("https://a.example/v1/",
			"u", "p")}, nil,
			"a.example", auth.Credential{Username: "u", Password: "p"}},
		"Docker Hub": {map[string]string{".docker/config.json": loggedIn("https://index.docker.io/v1/", "u", "p")}, nil,
			"registry-1.docker.io", auth.Credential{Username: "u", Password: "p"}},
		"Docker Hub, as podman writes it": {map[string]string{"run/containers/auth.json": loggedIn("docker.io", "u", "p")}, nil,
			"registry-1.docker.io", auth.Credential{Username: "u", Password: "p"}},
		"Docker Hub by its short name": {map[string]string{".docker/config.json": loggedIn("https://index.docker.io/v1/", "u",
			"p")}, nil,
			"docker.io", auth.Credential{Username: "u", Password: "p"}},
		"DOCKER_CONFIG": {map[string]string{"other/config.json": loggedIn("a.example", "u", "p"),
			".docker/config.json": "{broken"},
			map[string]string{"DOCKER_CONFIG": "HOME/other"}, "a.example", auth.Credential{Username: "u", Password: "p"}},
		"podman's file": {map[string]string{"run/containers/auth.json": loggedIn("a.example", "u", "p")}, nil,
			"a.example", auth.Credential{Username: "u", Password: "p"}},
		"podman's file that lasts": {map[string]string{".config/containers/auth.json": loggedIn("a.example", "u", "p")}, nil,
			"a.example", auth.Credential{Username: "u", Password: "p"}},
		"docker's before podman's": {map[string]string{".docker/config.json": loggedIn("a.example", "docker", "p"),
			"run/containers/auth.json": loggedIn("a.example", "podman", "p")}, nil,
			"a.example", auth.Credential{Username: "docker", Password: "p"}},
		"REGISTRY_AUTH_FILE before all": {map[string]string{".docker/config.json": loggedIn("a.example", "docker", "p"),
			"mine.json": loggedIn("a.example", "mine", "p")},
			map[string]string{"REGISTRY_AUTH_FILE": "HOME/mine.json"}, "a.example",
			auth.Credential{Username: "mine", Password: "p"}},
		"an empty file": {map[string]string{".docker/config.json": " \n",
			"run/containers/auth.json": loggedIn("a.example", "u", "p")}, nil,
			"a.example", auth.Credential{Username: "u", Password: "p"}},
		"a helper for all": {map[string]string{".docker/config.json": `{"credsStore":"echo"}`}, nil,
			"secure.example", auth.Credential{Username: "robot", Password: "from the keychain"}},
		"a helper for one registry": {map[string]string{".docker/config.json": `{"credsStore":"none","credHelpers":{"secure.example":"echo"}}`}, nil,
			"secure.example", auth.Credential{Username: "robot", Password: "from the keychain"}},
		"a token of a helper": {map[string]string{".docker/config.json": `{"credsStore":"echo"}`}, nil,
			"token.example", auth.Credential{RefreshToken: "a refresh token"}},
		"a helper that knows nothing of it, then podman's file": {map[string]string{".docker/config.json": `{"credsStore":"echo"}`, "run/containers/auth.json": loggedIn("a.example", "u", "p")}, nil,
			"a.example", auth.Credential{Username: "u", Password: "p"}},
	} {
		t.Run(name, func(t *testing.T) {
			home := clitest.LoginHome(t, c.files)
			for key, value := range c.env {
				t.Setenv(key, strings.ReplaceAll(value, "HOME", home))
			}
			find := require.Value(readLogins())(t)
			got, err := find(t.Context(), c.host)
			if err != nil || got != c.want {
				t.Errorf("found %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestCredentialsThatCannotBeReadAreNamedAndNotShown(t *testing.T) {
	const secret = "hunter2"
	encoded := base64.StdEncoding.EncodeToString([]byte(secret)) // no user, no colon
	for name, c := range map[string]struct {
		config, helper string
		want           string // HOME stands for the home's path
	}{
		"not JSON": {`{"auths": {"a.example": hunter2`, "",
			"reading the registries' credentials in HOME/.docker/config.json: invalid JSON at byte 25: repair the file or " +
				"log in again"},
		"cut off": {`{"auths": {"a.example": {"auth": "hunter2`, "",
			"reading the registries' credentials in HOME/.docker/config.json: invalid JSON at byte 41: repair the file or " +
				"log in again"},
		"another kind of file": {`{"auths": ["hunter2"]}`, "",
			"reading the registries' credentials in HOME/.docker/config.json: it is not in the format of docker login and " +
				"podman login: repair the file or log in again"},
		"an entry of another kind": {`{"auths": {"a.example": "hunter2"}}`, "",
			"the credential for a.example in HOME/.docker/config.json is not in the format of docker login and podman login: " +
				"log in again"},
		"an entry without a colon": {`{"auths": {"a.example": {"auth": "` + encoded + `"}}}`, "",
			"the credential for a.example in HOME/.docker/config.json is not in the format of docker login and podman login: " +
				"log in again"},
		"no such helper": {`{"credsStore": "absent-one"}`, "",
			"credential helper docker-credential-absent-one, configured for a.example in HOME/.docker/config.json: not in " +
				"PATH: install it or log in again"},
		"a helper that fails": {`{"credHelpers": {"a.example": "own"}}`, "echo the keychain is locked; exit 1",
			"credential helper docker-credential-own, configured for a.example in HOME/.docker/config.json: failed: the " +
				"keychain is locked"},
		"a helper that fails without a word": {`{"credsStore": "own"}`, "exit 3",
			"credential helper docker-credential-own, configured for a.example in HOME/.docker/config.json: failed: exit " +
				"status 3"},
		"a helper that fails and tells": {`{"credsStore": "own"}`, `echo '{"Username":"u","Secret":"hunter2"}'; exit 1`,
			"credential helper docker-credential-own, configured for a.example in HOME/.docker/config.json: failed"},
		"a helper that tells something else": {`{"credsStore": "own"}`, "echo hunter2",
			"credential helper docker-credential-own, configured for a.example in HOME/.docker/config.json: invalid JSON output"},
		"a helper that tells a number": {`{"credsStore": "own"}`, `echo '{"Secret": 1}'`,
			"credential helper docker-credential-own, configured for a.example in HOME/.docker/config.json: invalid JSON output"},
	} {
		t.Run(name, func(t *testing.T) {
			home := clitest.LoginHome(t, map[string]string{".docker/config.json": c.config})
			if c.helper != "" {
				clitest.HelperProgram(t, "own", c.helper)
			}
			find, err := readLogins()
			if err == nil {
				_, err = find(t.Context(), "a.example")
			}
			if want := strings.ReplaceAll(c.want, "HOME", home); err == nil || err.Error() != want {
				t.Fatalf("error is\n%v, want\n%s", err, want)
			}
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), encoded) {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

func TestPasswordsAreOneLineOfStdin(t *testing.T) {
	for text, want := range map[string]string{"a b c\n": "a b c", "secret": "secret", "s\r\n": "s", " s ": " s "} {
		if got, err := readPassword(strings.NewReader(text)); err != nil || got != want {
			t.Errorf("of %q the password is %q, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                                "--password-stdin: stdin is empty: pipe the password into it",
		"\n":                              "--password-stdin: stdin is empty: pipe the password into it",
		"user\nsecret\n":                  "--password-stdin: stdin has several lines: want one",
		strings.Repeat("x", 64<<10) + "y": "--password-stdin: stdin has more than 65536 bytes",
	} {
		if _, err := readPassword(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("of %d bytes the error is %v, want %s", len(text), err, want)
		}
	}
}
