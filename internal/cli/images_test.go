package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/distributiontest"
	"github.com/zarf-dev/zarf-registry/test/dockerdaemontest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// imageCommand runs a command line of zarf-registry images on a machine without a
// cluster, with a local store and a home of its own.
type imageCommand struct {
	t    *testing.T
	home string
}

func newImageCommand(t *testing.T, logins map[string]string) *imageCommand {
	t.Helper()
	home := clitest.LoginHome(t, logins)
	t.Setenv("KUBECONFIG", filepath.Join(home, "none")) // not empty: the developer's own would be used
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("ZARF_REGISTRY_IMAGE_STORE", filepath.Join(home, "store"))
	t.Setenv("TMPDIR", t.TempDir())
	return &imageCommand{t, home}
}

func (c *imageCommand) context(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	var out, errOut bytes.Buffer
	root := New(&out, &errOut)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(append([]string{"images"}, args...))
	code = execute(ctx, root, &errOut)
	return code, out.String(), errOut.String()
}

// Run runs what must succeed, and returns what it printed.
func (c *imageCommand) run(args ...string) string {
	c.t.Helper()
	return c.pipe("", args...)
}

func (c *imageCommand) pipe(stdin string, args ...string) string {
	c.t.Helper()
	code, out, errOut := c.context(c.t.Context(), stdin, args...)
	if code != 0 {
		c.t.Fatalf("images %v: exit code %d:\n%s", args, code, errOut)
	}
	return out
}

// fails runs what must fail, and returns its error and what it printed.
func (c *imageCommand) fails(code int, stdin string, args ...string) (message, stdout string) {
	c.t.Helper()
	got, out, errOut := c.context(c.t.Context(), stdin, args...)
	if got != code {
		c.t.Errorf("images %v: exit code %d, want %d:\n%s", args, got, code, errOut)
	}
	return errOut, out
}

// testRegistry is distribution's registry. Where it has a user, nobody else gets anything.
type testRegistry struct {
	*distributiontest.Registry
	user, password string
}

func newTestRegistry(t *testing.T, secure bool, user, password string) testRegistry {
	t.Helper()
	reg := distributiontest.New(t, secure, distributiontest.NewApp(t))
	reg.Require(user, password)
	return testRegistry{reg, user, password}
}

// crane are the options and the name with which crane's library talks to the
// registry.
func (r testRegistry) crane(t *testing.T, ref string) (name.Reference, []remote.Option) {
	t.Helper()
	var options []name.Option
	if strings.HasPrefix(r.URL, "http:") {
		options = append(options, name.Insecure)
	}
	parsed := require.Value(name.ParseReference(r.Host()+"/"+ref, options...))(t)
	auth := authn.Anonymous
	if r.user != "" {
		auth = &authn.Basic{Username: r.user, Password: r.password}
	}
	return parsed, []remote.Option{remote.WithTransport(r.Client().Transport), remote.WithAuth(auth)}
}

// has tells the digest that the registry has under a tag.
func (r testRegistry) has(t *testing.T, ref string) string {
	t.Helper()
	parsed, options := r.crane(t, ref)
	return require.Value(remote.Get(parsed, options...))(t).Digest.String()
}

// put puts an image into the registry, for one platform, and returns its digest.
func (r testRegistry) put(t *testing.T, ref, architecture string) string {
	t.Helper()
	parsed, options := r.crane(t, ref)
	image := randomImage(t, architecture)
	require.NoError(t, remote.Write(parsed, image, options...))
	return digestOf(t, image)
}

// putIndex puts an index of images for two platforms into the registry.
func (r testRegistry) putIndex(t *testing.T, ref string) string {
	t.Helper()
	parsed, options := r.crane(t, ref)
	index := v1.ImageIndex(empty.Index)
	for _, architecture := range []string{"amd64", "arm64"} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        randomImage(t, architecture),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	require.NoError(t, remote.WriteIndex(parsed, index, options...))
	return digestOf(t, index)
}

// randomImage has two layers of 4 KiB.
func randomImage(t *testing.T, architecture string) v1.Image {
	t.Helper()
	image := require.Value(random.Image(4096, 2))(t)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	image = require.Value(mutate.ConfigFile(image, config))(t)
	return image
}

func digestOf(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	return require.Value(of.Digest())(t).String()
}

var seconds = regexp.MustCompile(`"seconds": [0-9.e-]+`)

// golden is JSON without what differs from run to run.
func golden(t *testing.T, printed string, replace ...string) string {
	t.Helper()
	if !json.Valid([]byte(printed)) {
		t.Fatalf("it is not JSON:\n%s", printed)
	}
	return seconds.ReplaceAllString(strings.NewReplacer(replace...).Replace(printed), `"seconds": 0`)
}

func TestImagesGoFromRegistryToArchiveToRegistry(t *testing.T) {
	c := newImageCommand(t, nil)
	from := newTestRegistry(t, false, "", "")
	index := from.putIndex(t, "team/multi:1")
	single := from.put(t, "team/single:2", "amd64")
	archive := filepath.Join(c.home, "images.tar")

	list := filepath.Join(c.home, "images.txt")
	require.NoError(t, os.WriteFile(list, []byte("# what the application needs\n"+from.Host()+"/team/multi:1\n"), 0o600))
	out := c.run("pull", "-f", list, from.Host()+"/team/single:2", "--out", archive, "--plain-http", "--platform", "all")
	clitest.Same(t, "pull prints", out, from.Host()+"/team/single:2\n"+from.Host()+"/team/multi:1\n")

	to := newTestRegistry(t, true, "robot", "a long secret")
	push := []string{"push", archive, "--to", to.Host(), "--prefix", "mirror", "--ca-file", to.CAFile(t), "--username",
		"robot", "--password-stdin"}
	out = c.pipe("a long secret\n", push...)
	for ref, want := range map[string]string{"mirror/team/multi:1": index, "mirror/team/single:2": single} {
		if got := to.has(t, ref); got != want {
			t.Errorf("%s is %s, want %s", ref, got, want)
		}
		if !strings.Contains(out, to.Host()+"/"+ref+"\n") {
			t.Errorf("push does not print %s:\n%s", ref, out)
		}
	}

	var again render.List[map[string]any]
	require.NoError(t, json.Unmarshal([]byte(c.pipe("a long secret", append(push, "--output", "json")...)), &again))
	for _, result := range again.Items {
		if result["bytesSent"] != 0.0 || result["bytesSkipped"] == 0.0 || len(again.Items) != 2 {
			t.Errorf("the second push says %v", again)
		}
	}
}

func TestZarfTags(t *testing.T) {
	c := newImageCommand(t, nil)
	from, to := newTestRegistry(t, false, "", ""), newTestRegistry(t, false, "", "")
	digest := from.put(t, "team/app:1", runtime.GOARCH)
	archive := filepath.Join(c.home, "app.tar")
	c.run("pull", from.Host()+"/team/app:1", "--out", archive, "--plain-http")
	name := "zarf.dev/team/app:1"
	pushed := to.Host() + "/team/app:1\n" + to.Host() + "/team/app:1-zarf-2854962264\n"
	for _, args := range [][]string{
		{"push", archive, "--reference", name, "--plain-http"},
		{"copy", from.Host() + "/team/app:1", "--reference", name, "--from-plain-http", "--to-plain-http"},
	} {
		clitest.Same(t, args[0]+" prints", c.run(append(args, "--to", to.Host(), "--zarf-tags")...), pushed)
	}
	clitest.Same(t, "the additional tag", to.has(t, "team/app:1-zarf-2854962264"), digest)
}

func TestResultsAsJSON(t *testing.T) {
	c := newImageCommand(t, nil)
	from, to := newTestRegistry(t, false, "", ""), newTestRegistry(t, false, "", "")
	digest := from.put(t, "app:1", runtime.GOARCH)
	bytes := regexp.MustCompile(`"bytes(Sent|Received)": [0-9]{4,5}`)
	for name, args := range map[string][]string{
		"pull to a layout": {"pull", from.Host() + "/app:1", "--out", filepath.Join(c.home, "layout"), "--plain-http",
			"--no-store"},
		"pull to an archive": {"pull", from.Host() + "/app:1", "--out", filepath.Join(c.home, "a.tar"), "--plain-http",
			"--no-store"},
		"copy": {"copy", from.Host() + "/app:1", "--to", to.Host(), "--to-plain-http", "--from-plain-http", "--no-store"},
	} {
		t.Run(name, func(t *testing.T) {
			out := bytes.ReplaceAllString(golden(t, c.run(append(args, "--output", "json")...), from.Host(), "FROM",
				to.Host(), "TO", digest, "sha256:APP"), `"bytes$1": 10000`)
			if name == "copy" {
				clitest.JSON(t, render.TransferList, out)
			} else if !strings.Contains(out, `"reference": "FROM/app:1"`) || !strings.Contains(out, `"bytesReceived": 10000`) {
				t.Errorf("it says\n%s", out)
			}
		})
	}
}

func TestThePlatformIsThisMachinesWhereThereIsNoCluster(t *testing.T) {
	c := newImageCommand(t, nil)
	from, to := newTestRegistry(t, false, "", ""), newTestRegistry(t, false, "", "")
	index := from.putIndex(t, "app:1")
	code, _, errOut := c.context(t.Context(), "", "copy", from.Host()+"/app:1", "--to", to.Host(), "--to-plain-http",
		"--from-plain-http")
	if want := "no cluster configured, using this machine's platform (--platform) platforms=linux/" +
		runtime.GOARCH; code != 0 || !strings.Contains(errOut, want) {
		t.Errorf("exit code %d, it does not say which platform:\n%s", code, errOut)
	}
	if got := to.has(t, "app:1"); got == index {
		t.Error("the whole index was copied")
	}
	c.run("copy", from.Host()+"/app@"+index, "--to", to.Host(), "--to-plain-http", "--from-plain-http", "--reference",
		"other:1")
	if got := to.has(t, "library/other:1"); got != index {
		t.Errorf("what a digest names is not whole: %s, want %s", got, index)
	}
}

func TestCredentialsComeFromWhereUsersLoggedIn(t *testing.T) {
	from := newTestRegistry(t, true, "robot", "from a keychain")
	clitest.HelperProgram(t, "fake", `read host; test "$host" = `+from.Host()+
		` && echo '{"ServerURL":"'$host'","Username":"robot","Secret":"from a keychain"}'`)
	c := newImageCommand(t, map[string]string{".docker/config.json": `{"credHelpers":{"` + from.Host() + `":"fake"}}`})
	from.put(t, "app:1", runtime.GOARCH)
	c.run("pull", from.Host()+"/app:1", "--ca-file", from.CAFile(t), "--out", filepath.Join(c.home, "out"))

	c = newImageCommand(t, map[string]string{".docker/config.json": `{"credHelpers":{"` + from.Host() + `":"absent"}}`})
	message, _ := c.fails(1, "", "pull", from.Host()+"/app:1", "--ca-file", from.CAFile(t), "--out",
		filepath.Join(c.home, "out"))
	if !strings.Contains(message, "credential helper docker-credential-absent, configured for "+from.Host()+" in "+c.home+
		"/.docker/config.json: not in PATH") {
		t.Errorf("the error does not say which helper fails:\n%s", message)
	}
	if strings.Contains(message, "retrying") {
		t.Errorf("a helper that fails is tried again:\n%s", message)
	}
}

func TestRegistriesThatCannotBeReachedSayWhatToDo(t *testing.T) {
	c := newImageCommand(t, nil)
	secure, plain := newTestRegistry(t, true, "robot", "secret one"), newTestRegistry(t, false, "", "")
	out := filepath.Join(c.home, "out")
	for name, tc := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"an authority that nobody trusts": {"", []string{secure.Host() + "/app:1"}, "--ca-file"},
		"no TLS":                          {"", []string{plain.Host() + "/app:1"}, "--plain-http"},
		"nobody":                          {"", []string{secure.Host() + "/app:1", "--ca-file", secure.CAFile(t)}, "docker login " + secure.Host()},
		"another password": {"wrong one", []string{secure.Host() + "/app:1", "--ca-file", secure.CAFile(t), "--username",
			"robot", "--password-stdin"}, "--password-stdin"},
		"no such image": {"", []string{plain.Host() + "/app:1", "--plain-http"}, plain.Host() + "/app:1"},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			message, printed := c.fails(1, tc.stdin, append([]string{"pull", "--out", out, "--platform", "all", "--retries", "0"},
				tc.args...)...)
			if !strings.Contains(message, tc.want) || strings.Contains(message, "wrong one") || printed != "" {
				t.Errorf("it prints %q and says\n%swant %q", printed, message, tc.want)
			}
		})
	}
}

// With --log-format=json, stderr has only JSON.
func TestACopySaysWhichSideFails(t *testing.T) {
	c := newImageCommand(t, nil)
	secure, plain := newTestRegistry(t, true, "robot", "secret one"), newTestRegistry(t, false, "", "")
	plain.put(t, "app:1", runtime.GOARCH)
	for want, args := range map[string][]string{
		"pass --from-plain-http": {plain.Host() + "/app:1", "--to", secure.Host()},
		"or pass --to-username": {plain.Host() + "/app:1", "--from-plain-http", "--to", secure.Host(), "--ca-file",
			secure.CAFile(t)},
		"or pass --from-username": {secure.Host() + "/app:1", "--to", plain.Host(), "--ca-file", secure.CAFile(t)},
	} {
		message, _ := c.fails(1, "", append([]string{"copy", "--retries", "0", "--platform", "all"}, args...)...)
		if !strings.Contains(message, want) {
			t.Errorf("%q: it says\n%swant %q", args, message, want)
		}
	}
	c.pipe("secret one", "copy", plain.Host()+"/app:1", "--from-plain-http", "--to", secure.Host(), "--ca-file",
		secure.CAFile(t), "--to-username", "robot", "--password-stdin")
	c.pipe("secret one", "copy", secure.Host()+"/app:1", "--from-username", "robot", "--to", plain.Host(),
		"--to-plain-http", "--ca-file", secure.CAFile(t), "--password-stdin", "--prefix", "back")
	if got, want := plain.has(t, "back/app:1"), plain.has(t, "app:1"); got != want {
		t.Errorf("the copy is %s, want %s", got, want)
	}
}

func TestAJSONLogIsJSONAlone(t *testing.T) {
	c := newImageCommand(t, nil)
	from := newTestRegistry(t, false, "", "")
	from.put(t, "app:1", runtime.GOARCH)
	from.put(t, "other:1", runtime.GOARCH)
	code, _, errOut := c.context(t.Context(), "", "pull", from.Host()+"/app:1", from.Host()+"/other:1", "--plain-http",
		"--out", filepath.Join(c.home, "a.tar"), "--log-format", "json")
	if code != 0 || !strings.Contains(errOut, `"msg":"2 images, `) ||
		!strings.Contains(errOut, `"msg":"`+from.Host()+"/app:1: ") {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
	for line := range strings.Lines(errOut) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

func TestAnInterruptedRunSaysHowToGoOn(t *testing.T) {
	c := newImageCommand(t, nil)
	from := newTestRegistry(t, false, "", "")
	from.put(t, "app:1", runtime.GOARCH)
	ctx, cancel := context.WithCancel(t.Context())
	stop := func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			cancel()
			<-r.Context().Done()
			return true
		}
		return false
	}
	from.SetFront(stop)
	args := []string{"pull", from.Host() + "/app:1", "--plain-http", "--out", filepath.Join(c.home, "a.tar")}
	code, out, errOut := c.context(ctx, "", args...)
	if code != 1 || out != "" ||
		!strings.HasSuffix(errOut, "Error: interrupted: run the same command again to continue\n") {
		t.Errorf("exit code %d, it prints %q and says\n%s", code, out, errOut)
	}
	if left, err := filepath.Glob(filepath.Join(c.home, "*a.tar*")); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	from.SetFront(nil)
	c.run(args...)
}

func TestImagesComeFromTheDockerEngine(t *testing.T) {
	c := newImageCommand(t, nil)
	app := dockerdaemontest.Image{Names: []string{"team/app:1"}, Architecture: runtime.GOARCH,
		Layers: []dockerdaemontest.Layer{{Data: []byte("a layer")}}}
	other := dockerdaemontest.Image{Names: []string{"other:2"}, Architecture: runtime.GOARCH,
		Layers: []dockerdaemontest.Layer{{Data: []byte("another")}}}
	engine := &dockerdaemontest.Engine{
		Images: map[string]string{"team/app:1": app.ID().String(), "other:2": other.ID().String()},
		Stream: func(w io.Writer, _ []string) error { return dockerdaemontest.Modern(app, other).Write(w) },
	}
	engine.ListenUnix(t)
	t.Setenv("TMPDIR", t.TempDir()) // where the engine has no socket
	to := newTestRegistry(t, false, "", "")
	clitest.Same(t, "push prints", c.run("push", "docker-daemon:team/app:1", "docker-daemon:other:2", "--to", to.Host(),
		"--plain-http"),
		to.Host()+"/team/app:1\n"+to.Host()+"/library/other:2\n")
	pushed := to.has(t, "team/app:1")

	clitest.Same(t, "push prints", c.run("push", "docker-daemon:team/app:1", "--to", to.Host(), "--plain-http", "--reference",
		"a.example/renamed:3"), to.Host()+"/renamed:3\n")
	clitest.Same(t, "copy prints", c.run("copy", "docker-daemon:team/app:1", "--to", to.Host(), "--to-plain-http", "--prefix",
		"copied"), to.Host()+"/copied/team/app:1\n")
	for _, ref := range []string{"renamed:3", "copied/team/app:1"} {
		if got := to.has(t, ref); got != pushed {
			t.Errorf("%s is %s, want %s", ref, got, pushed)
		}
	}
	archive := filepath.Join(c.home, "app.tar")
	clitest.Same(t, "pull prints", c.run("pull", "docker-daemon:team/app:1", "--out", archive), "docker.io/team/app:1\n")
	for _, source := range []string{archive, "docker-daemon:team/app:1"} {
		if out := c.run("list", source, "--no-trunc"); !strings.Contains(out, "docker.io/team/app:1") || !strings.Contains(out, pushed) ||
			strings.Contains(out, "other") {
			t.Errorf("list %s prints\n%s", source, out)
		}
	}
	message, _ := c.fails(1, "", "push", "docker-daemon:absent:1", "--to", to.Host(), "--plain-http")
	if !strings.Contains(message, "absent:1") || !strings.Contains(message, "docker pull") {
		t.Errorf("an image that the engine does not have: %s", message)
	}
	message, out := c.fails(1, "", "push", "docker-daemon:absent:1", "docker-daemon:team/app:1", "--to", to.Host(),
		"--plain-http", "--prefix", "beside")
	clitest.Same(t, "push beside one that the engine does not have prints", out, to.Host()+"/beside/team/app:1\n")
	if !strings.Contains(message, "not found: absent:1") || strings.Contains(message, "did not send it") {
		t.Errorf("it says %s", message)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}

// The platforms of the named cluster's nodes are the default. An invalid kubeconfig that is named
// explicitly is an error.
func TestThePlatformsOfTheClusterThatIsNamed(t *testing.T) {
	c := newImageCommand(t, nil)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"a"},"status":{"nodeInfo":{"operatingSystem":"linux","architecture":"arm64"}}}]}`)
	}))
	t.Cleanup(api.Close)
	kubeconfig := newKubeconfig(t, api.URL)
	from := newTestRegistry(t, false, "", "")
	from.putIndex(t, "app:1")
	pull := func(more ...string) []string {
		return append([]string{"pull", from.Host() + "/app:1", "--plain-http", "--out", filepath.Join(c.home, "app.tar")},
			more...)
	}
	for _, more := range [][]string{{"--kubeconfig", kubeconfig}, nil} {
		if more == nil {
			t.Setenv("KUBECONFIG", kubeconfig)
		}
		code, _, errOut := c.context(t.Context(), "", pull(more...)...)
		if want := "using the platforms of the cluster's nodes (--platform) platforms=linux/arm64"; code != 0 ||
			!strings.Contains(errOut, want) {
			t.Errorf("exit code %d:\n%swant %s", code, errOut, want)
		}
		if out := c.run("list", filepath.Join(c.home, "app.tar")); !strings.Contains(out, " linux/arm64 ") {
			t.Errorf("it pulled\n%s", out)
		}
	}
	if message, _ := c.fails(3, "", pull("--context", "absent")...); !strings.Contains(message,
		`"absent" does not exist`) {
		t.Errorf("a context that is not there: %s", message)
	}
	api.Close()
	code, _, errOut := c.context(t.Context(), "", pull()...)
	if want := "warning: cannot read the platforms of the cluster's nodes, using this machine's (--platform) " +
		"platforms=linux/"; code != 0 || !strings.Contains(errOut, want) {
		t.Errorf("exit code %d:\n%swant %s", code, errOut, want)
	}
}

func TestListShowsWhatIsThere(t *testing.T) {
	c := newImageCommand(t, nil)
	reg := newTestRegistry(t, true, "robot", "secret")
	index := reg.putIndex(t, "team/multi:1")
	single := reg.put(t, "team/single:2", "amd64")
	archive := filepath.Join(c.home, "one.tar")
	c.pipe("secret", "pull", "--out", archive, "--ca-file", reg.CAFile(t), "--username", "robot", "--password-stdin",
		reg.Host()+"/team/single:2", "--platform", "all")

	from := []string{"list", "--from", reg.Host(), "--ca-file", reg.CAFile(t), "--username", "robot", "--password-stdin"}
	sizes := regexp.MustCompile(`[0-9.]+ kB`)
	text := sizes.ReplaceAllString(c.pipe("secret", from...), "SIZE")
	clitest.Same(t, "list", strings.Join(strings.Fields(text), " "), strings.Join([]string{
		"REFERENCE DIGEST PLATFORMS SIZE",
		reg.Host() + "/team/multi:1", index[:len("sha256:")+12] + "…", "linux/amd64,linux/arm64 SIZE",
		reg.Host() + "/team/single:2", single[:len("sha256:")+12] + "…", "linux/amd64 SIZE",
	}, " "))
	bytes := regexp.MustCompile(`"size": [0-9]{4,5}`)
	out := golden(t, c.pipe("secret", append(from, "--output", "json")...), reg.Host(), "HOST", index, "sha256:INDEX",
		single, "sha256:SINGLE")
	clitest.Same(t, "list --output json", bytes.ReplaceAllString(out, `"size": 1`), `{
  "apiVersion": "registry.zarf.dev/v1",
  "kind": "ImageList",
  "items": [
    {
      "reference": "HOST/team/multi:1",
      "digest": "sha256:INDEX",
      "mediaType": "application/vnd.oci.image.index.v1+json",
      "platforms": [
        "linux/amd64",
        "linux/arm64"
      ],
      "size": 1
    },
    {
      "reference": "HOST/team/single:2",
      "digest": "sha256:SINGLE",
      "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
      "platforms": [
        "linux/amd64"
      ],
      "size": 1
    }
  ]
}
`)

	out = golden(t, c.run("list", archive, "--output", "json"), reg.Host(), "HOST", single, "sha256:SINGLE", archive,
		"ARCHIVE")
	clitest.Same(t, "list of a source", bytes.ReplaceAllString(out, `"size": 1`), `{
  "apiVersion": "registry.zarf.dev/v1",
  "kind": "ImageList",
  "items": [
    {
      "source": "ARCHIVE",
      "reference": "HOST/team/single:2",
      "digest": "sha256:SINGLE",
      "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
      "platforms": [
        "linux/amd64"
      ],
      "size": 1
    }
  ]
}
`)
	nameless := filepath.Join(c.home, "nameless")
	path := require.Value(layout.Write(nameless, empty.Index))(t)
	require.NoError(t, path.AppendImage(randomImage(t, "arm64")))
	clitest.Same(t, "names", c.run("list", archive, nameless, "--output", "name"), reg.Host()+"/team/single:2\n")
	text = c.run("list", archive, nameless)
	if lines := strings.Split(text, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "SOURCE ") ||
		!strings.HasPrefix(lines[2], nameless+" ") || !strings.Contains(lines[2], "  -  ") {
		t.Errorf("list of two sources prints\n%s", text)
	}

	clitest.Same(t, "list of an empty registry", c.run("list", "--plain-http", "--output", "json", "--from",
		newTestRegistry(t, false, "", "").Host()),
		"{\n  \"apiVersion\": \"registry.zarf.dev/v1\",\n  \"kind\": \"ImageList\",\n  \"items\": []\n}\n")
	clitest.Same(t, "list of an empty registry", c.run("list", "--plain-http", "--from", newTestRegistry(t, false, "", "").Host()),
		"REFERENCE  DIGEST  PLATFORMS  SIZE\n")
}

func TestListSaysThatARegistryDoesNotTell(t *testing.T) {
	c := newImageCommand(t, nil)
	reg := newTestRegistry(t, false, "", "")
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		silent := func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/_catalog") {
				w.WriteHeader(status)
				return true
			}
			return false
		}
		reg.SetFront(silent)
		message, out := c.fails(1, "", "list", "--plain-http", "--from", reg.Host())
		if !strings.Contains(message, "cannot list the repositories of "+reg.Host()) || out != "" {
			t.Errorf("with status %d it prints %q and says\n%s", status, out, message)
		}
	}
}

func TestTheCacheIsLookedAfter(t *testing.T) {
	c := newImageCommand(t, nil)
	from := newTestRegistry(t, false, "", "")
	from.put(t, "app:1", runtime.GOARCH)
	c.run("pull", from.Host()+"/app:1", "--plain-http", "--out", filepath.Join(c.home, "out.tar"))
	store := filepath.Join(c.home, "store")

	bytes := regexp.MustCompile(`"bytes": [0-9]{4,5}`)
	clitest.JSON(t, render.BlobStore, bytes.ReplaceAllString(strings.ReplaceAll(c.run("store", "info", "--output", "json"),
		store, "/store"), `"bytes": 10000`))
	if out := c.run("store", "info"); !strings.HasPrefix(out, "directory              "+store+
		"\nblobs                  4 (") || !strings.Contains(out, "\ninterrupted downloads  0\n") {
		t.Errorf("info prints\n%s", out)
	}
	if out := c.run("store", "prune", "--size", "1"); !strings.HasPrefix(out, "blobs removed                  4 (") ||
		!strings.HasSuffix(out, "left                           0 B\n") {
		t.Errorf("prune --size prints\n%s", out)
	}
	clitest.JSON(t, render.BlobStorePruned, c.run("store", "prune", "--output", "json"))
}

func TestTheCacheIsWhereUsersWantIt(t *testing.T) {
	c := newImageCommand(t, nil)
	from := newTestRegistry(t, false, "", "")
	from.put(t, "app:1", runtime.GOARCH)
	exists := func(path ...string) bool {
		_, err := os.Stat(filepath.Join(append([]string{c.home}, path...)...))
		return err == nil
	}
	pull := func(args ...string) {
		c.run(append([]string{"pull", from.Host() + "/app:1", "--plain-http", "--out", filepath.Join(c.home, "out.tar")},
			args...)...)
	}
	pull("--no-store")
	if left, _ := filepath.Glob(filepath.Join(c.home, "*")); cmp.Diff(left,
		[]string{filepath.Join(c.home, "out.tar")}) != "" {
		t.Errorf("--no-store leaves %v", left)
	}
	pull("--store-dir", filepath.Join(c.home, "mine"))
	if !exists("mine", "blobs") || exists("store") {
		t.Error("--store-dir is not used")
	}
	pull()
	if !exists("store", "blobs") {
		t.Error("ZARF_REGISTRY_IMAGE_STORE is not used")
	}
	t.Setenv("ZARF_REGISTRY_IMAGE_STORE", "")
	t.Setenv("XDG_CACHE_HOME", filepath.Join(c.home, "user"))
	pull()
	if runtime.GOOS == "linux" && !exists("user", "zarf-registry", "images", "blobs") {
		t.Error("the user's cache directory is not used")
	}
	require.NoError(t, os.WriteFile(filepath.Join(c.home, "file"), nil, 0o600))
	if message, _ := c.fails(1, "", "store", "info", "--store-dir",
		filepath.Join(c.home, "file")); !strings.Contains(message, filepath.Join(c.home, "file")) {
		t.Errorf("a file as store: %s", message)
	}
}

func TestShellsCompleteImages(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"platforms": {[]string{"pull", "--platform", ""},
			"auto\nall\nlinux/amd64\nlinux/arm64\nlinux/amd64,linux/arm64\n:4\n"},
		"archives, which are files":    {[]string{"push", ""}, ":0\n"},
		"where to pull to":             {[]string{"pull", "--out", ""}, ":0\n"},
		"list files":                   {[]string{"pull", "-f", ""}, ":0\n"},
		"the local store, a directory": {[]string{"store", "info", "--store-dir", ""}, ":16\n"},
		"certificates by their names":  {[]string{"list", "--ca-file", ""}, "pem\ncrt\ncer\n:8\n"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, _ := run(t, append([]string{"__complete", "images"}, c.args...)...)
			if code != 0 || out != c.want {
				t.Errorf("it completes to %q, exit code %d; want %q", out, code, c.want)
			}
		})
	}
}

func TestImagesRefuseWhatCannotBeRight(t *testing.T) {
	c := newImageCommand(t, nil)
	file := func(name, text string) string {
		path := filepath.Join(c.home, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	noPEM, badList, noList := file("no.pem", "rubbish"), file("bad.txt", "nginx\nmy nginx\n"),
		file("none.txt", "# nothing\n")
	out := filepath.Join(c.home, "out")
	directory := filepath.Join(c.home, "directory.tar")
	require.NoError(t, os.Mkdir(directory, 0o700))
	pull := func(args ...string) []string { return append([]string{"pull", "nginx", "--out", out}, args...) }
	push := func(args ...string) []string { return append([]string{"push", "app.tar"}, args...) }
	duplicate := func(args ...string) []string { return append([]string{"copy", "nginx"}, args...) }
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no concurrency": {pull("--oci-concurrency", "0"),
			`invalid argument "0" for "--oci-concurrency" flag: want a number from 1 to 100`},
		"less than no retries": {push("--retries", "-1"),
			`invalid argument "-1" for "--retries" flag: want a number from 0 to 1000`},
		"a size without a unit": {pull("--store-size", "20XB"),
			`invalid argument "20XB" for "--store-size" flag: want a size such as 20GB, 1.5TB or 500MiB`},
		"an unknown flag":       {pull("--colour"), "unknown flag: --colour"},
		"an unknown output":     {pull("--output", "xml"), `invalid argument "xml" for "-o, --output" flag: want table, json or yaml; --out names the file`},
		"an unknown log format": {push("--log-format", "xml"), `invalid --log-format "xml": want json, text or auto`},
		"a namespace":           {push("-n", "Not_One"), `invalid namespace "Not_One": want a DNS label`},
		"a release":             {duplicate("--release", "Not One"), `invalid release name "Not One"`},
		"a chart's name":        {[]string{"list", "--name", "a.b"}, `invalid name "a.b": want a DNS label that begins with a letter`},
		"an architecture alone": {pull("--platform", "amd64"),
			`--platform: platform "amd64": want OS/ARCHITECTURE as in linux/amd64, several separated by commas, or all`},
		"a store and none": {pull("--no-store", "--store-size", "1GB"),
			"--no-store cannot be combined with --store-dir or --store-size"},
		"nothing to pull": {[]string{"pull", "--out", out},
			"no images given: name them as arguments or in a list with --file"},
		"nothing to copy": {[]string{"copy"}, "no images given: name them as arguments or in a list with --file"},
		"nothing to push": {[]string{"push"},
			"nothing to push: name archives, layout directories or docker-daemon:NAME"},
		"no place to pull to": {[]string{"pull", "nginx"},
			"--out is required: want a layout directory, or an archive that ends in .tar"},
		"a compressed archive": {[]string{"pull", "nginx", "--out", out + ".tar.gz"},
			"invalid --out " + out + ".tar.gz: archives are not compressed, because layers already are: use .tar"},
		"a file for a layout": {[]string{"pull", "nginx", "--out", noPEM},
			"invalid --out " + noPEM + ": it is a file; archives end in .tar, and layouts are directories"},
		"a directory for an archive": {[]string{"pull", "nginx", "--out", directory},
			"invalid --out " + directory + ": it ends in .tar, but is a directory"},
		"no reference": {[]string{"pull", "https://ghcr.io/a", "--out", out},
			`image reference "https://ghcr.io/a": invalid reference format`},
		"no reference in a list": {pull("-f", badList), "--file: " + badList +
			`:2: image reference "my nginx": invalid reference format`},
		"an empty list": {pull("-f", noList), "--file: " + noList +
			": contains no image reference: want one per line, with comments after #"},
		"no such list": {pull("-f", "/nonexistent"), "--file: open /nonexistent: no such file or directory"},
		"stdin for two": {pull("-f", "-", "--username", "u", "--password-stdin"),
			"--file: stdin can be read only once: for the password or for one list of references"},
		"stdin twice": {pull("-f", "-", "-f", "-"),
			"--file: stdin can be read only once: for the password or for one list of references"},
		"a name without a password": {pull("--username", "u"),
			`a user name requires --password-stdin: echo "$PASSWORD" | zarf-registry … --password-stdin`},
		"a password without a name": {push("--password-stdin"), "--password-stdin requires a user name"},
		"no password": {pull("--username", "u", "--password-stdin"),
			"--password-stdin: stdin is empty: pipe the password into it"},
		"one name for two registries": {pull("ghcr.io/a/b", "--username", "u", "--password-stdin"),
			"a user name applies to one registry, but the images are from several: transfer them one registry at a time, or use " +
				"docker login"},
		"one name for two sources": {duplicate("ghcr.io/a/b", "--from-username", "u", "--password-stdin"),
			"a user name applies to one registry, but the images are from several: transfer them one registry at a time, or use " +
				"docker login"},
		"a name for the cluster": {push("--username", "u", "--password-stdin"),
			"a user name requires --to: the cluster's registry has its own credential"},
		"a name for the cluster, to copy": {duplicate("--to-username", "u", "--password-stdin"),
			"--to-username requires --to: the cluster's registry has its own credential"},
		"two names": {duplicate("--from-username", "u", "--to-username", "u", "--to", "a.example", "--password-stdin"),
			"--from-username cannot be combined with --to-username, because stdin has one password: use docker login for one of " +
				"the registries"},
		"a URL to copy to": {duplicate("--to", "https://a.example"),
			`invalid --to "https://a.example": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost, without a scheme (for HTTP, use --to-plain-http)`},
		"a name for the cluster, to list": {[]string{"list", "--username", "u", "--password-stdin"},
			"--username requires --from"},
		"no TLS for the cluster": {push("--plain-http"),
			"HTTP without TLS requires --to: the cluster's registry uses mutual TLS"},
		"no TLS for the cluster, to copy": {duplicate("--to-plain-http"),
			"HTTP without TLS requires --to: the cluster's registry uses mutual TLS"},
		"no TLS for the cluster, to list": {[]string{"list", "--plain-http"}, "--plain-http requires --from"},
		"no such authority": {pull("--ca-file", "/nonexistent"),
			"--ca-file: open /nonexistent: no such file or directory"},
		"no authority": {pull("--ca-file", noPEM), "--ca-file: " + noPEM + " contains no PEM certificate"},
		"a URL to push to": {push("--to", "https://a.example"),
			`invalid --to "https://a.example": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost, without a scheme (for HTTP, use --plain-http)`},
		"a path to push to": {push("--to", "a.example/team"),
			`invalid --to "a.example/team": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost; give the path with --prefix team`},
		"a name to push to": {push("--to", "registry"),
			`invalid --to "registry": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost`},
		"no port to push to": {push("--to", "a.example:http"),
			`invalid --to "a.example:http": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost`},
		"no registry to push to": {push("--to", ""),
			`invalid --to "": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost`},
		"no registry to list": {[]string{"list", "--from", ""},
			`invalid --from "": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost`},
		"a layout that is the local store": {pull("--store-dir", out), "invalid --out " + out +
			": it is the local store of blobs, which keeps no images: choose another directory for either"},
		"a path to list": {[]string{"list", "--from", "a.example/team"},
			`invalid --from "a.example/team": want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost, without a path`},
		"a registry and an archive": {[]string{"list", "a.tar", "--from", "a.example"},
			"--from lists a registry and cannot be combined with archives, layouts or images of the Docker engine"},
		"a prefix in upper case": {push("--prefix", "Team"),
			`--prefix: prefix "Team": want lower-case path components, such as team or team/mirror`},
		"a prefix upwards": {duplicate("--prefix", "../team"),
			`--prefix: prefix "../team": want lower-case path components, such as team or team/mirror`},
		"no name to push under": {push("--reference", "a b"),
			`--reference: image reference "a b": invalid reference format`},
		"one name for two images": {duplicate("alpine", "--reference", "a:1"),
			"--reference names a single image: give one image"},
		"one name for two archives": {push("b.tar", "--reference", "a:1"),
			"--reference names a single image: give one source"},
		"an engine without an image": {[]string{"push", "docker-daemon:"},
			`image reference "docker-daemon:": has no name after the colon: want one as in docker-daemon:nginx:1.27`},
		"an engine to list": {[]string{"list", "docker-daemon:"},
			`image reference "docker-daemon:": has no name after the colon: want one as in docker-daemon:nginx:1.27`},
		"an output for the local store": {[]string{"store", "info", "--output", "wide"}, `invalid argument "wide" for "-o, --output" flag: want table, json or yaml`},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			message, printed := c.fails(3, "", tc.args...)
			said, see, _ := strings.Cut(message, "\nsee ")
			clitest.Same(t, "the error", said, "Error: "+tc.want)
			if !strings.HasPrefix(see, "zarf-registry images "+tc.args[0]) || !strings.HasSuffix(see, " --help\n") {
				t.Errorf("it names the help of %q", see)
			}
			if printed != "" {
				t.Errorf("it prints %s", printed)
			}
		})
	}
	for _, path := range []string{"store", "out"} {
		if _, err := os.Stat(filepath.Join(c.home, path)); err == nil {
			t.Errorf("what was refused has made %s", path)
		}
	}
}

func TestInvalidRemovalsAreRefused(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, []byte("Bad Name\n"), 0o600))
	c := newImageCommand(t, nil)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"prune"}, "no rule selects images"},
		{[]string{"prune", "--keep-last=-1"}, "must not be negative"},
		{[]string{"prune", "--older-than=soon"}, "want a duration"},
		{[]string{"prune", "--match=127.0.0.1:31999/a"}, "--match"},
		{[]string{"prune", "--untagged", "--keep=A"}, "--keep"},
		{[]string{"prune", "--untagged", "--keep-file=" + list}, "Bad Name"},
		{[]string{"prune", "--untagged", "--keep-file=" + list + "x"}, "no such file"},
		{[]string{"prune", "--untagged", "--output=xml"}, "--output"},
		{[]string{"prune", "--untagged", "--grace-period=-1h"}, "want a duration"},
		{[]string{"delete"}, "nothing to delete"},
		{[]string{"delete", "Bad Name"}, "Bad Name"},
		{[]string{"list", "--untagged", "--from=registry.example.com"}, "cluster's registry only"},
		{[]string{"list", "--repositories", "app.tar"}, "cluster's registry only"},
		{[]string{"list", "--repositories", "--untagged"}, "cannot be combined"},
		{[]string{"inventory"}, "--out is required"},
		{[]string{"export"}, "--out is required"},
		{[]string{"pull", "nginx", "--out=app.tar", "--have=" + list + "x"}, "no such file"},
		{[]string{"pull", "nginx", "--out=app.tar", "--have=" + list}, "not an inventory"},
		{[]string{"pull", "nginx", "--out=layout", "--have=" + list}, "requires an archive"},
	} {
		if said, _ := c.fails(exitcode.Refused, "", tt.args...); !strings.Contains(said, tt.want) {
			t.Errorf("%q: %s, want %q", tt.args, said, tt.want)
		}
	}
}

func TestInvalidSearchesAreRefused(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(values, []byte("image: nginx\n"), 0o600))
	c := newImageCommand(t, nil)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{values}, values + ": document 1: not a Kubernetes manifest"},
		{[]string{values + "x"}, "no such file"},
		{[]string{"-"}, "no Kubernetes manifest in -"},
		{[]string{"--output=xml"}, "want table, json, yaml or name"},
		{[]string{"--platform=amd64"}, "--platform"},
		{[]string{"--prefix=A"}, "prefix"},
		{[]string{"--namespace=A"}, "amespace"},
		{[]string{"-", "--exclude-namespace=a"}, "--exclude-namespace applies to the cluster's workloads"},
	} {
		said, out := c.fails(exitcode.Refused, "", append([]string{"missing"}, tt.args...)...)
		if !strings.Contains(said, tt.want) || out != "" {
			t.Errorf("%q: %s, want %q", tt.args, said, tt.want)
		}
	}
}
