package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// testBrowse opens the pages of images browse in headless Chromium, and uses them with the keyboard.
func testBrowse(t *testing.T, w *world) {
	needsClients(t)
	w.push(t, w.makeArchive(t, "example.com/browse/used:1", 1<<20))
	w.push(t, w.makeArchive(t, "example.com/browse/unused:1", 1<<20))
	w.scheduled(t, "browse", "registry.example.com/browse/used:1")
	page := w.browse(t)
	b := startBrowser(t)
	b.open(page)
	if title := b.script(`return document.title`); title != "Images" {
		t.Fatalf("the title is %v", title)
	}
	// The first Tab leads to the link that skips the navigation, / to the search.
	b.keys("\ue004")
	if got := b.script(`return document.activeElement.textContent`); got != "Skip to content" {
		t.Errorf("the first Tab leads to %v", got)
	}
	b.keys("/")
	b.keys("browse cronjob\ue007") // Enter
	eventually(t, "the search to show one image", func() error {
		if got := b.script(`return [...document.querySelectorAll("tbody a")].map(a => a.textContent).join()`); got !=
			w.address+"/browse/used:1" {
			return fmt.Errorf("found %v at %v", got, b.script(`return location.href`))
		}
		return nil
	})
	b.click("tbody .copy")
	eventually(t, "the reference to be copied", func() error {
		if got := b.script(`return document.getElementById("said").textContent`); got != "Copied "+w.address+"/browse/used:1" {
			return fmt.Errorf("the page says %v", got)
		}
		return nil
	})
	b.click("tbody a")
	eventually(t, "the image's page", func() error {
		text, _ := b.script(`return document.body.innerText`).(string)
		for _, want := range []string{"CronJob " + workloads + "/browse", "layer 1", "image for linux/amd64", "Digest"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("it lacks %q: %s", want, text)
			}
		}
		return nil
	})
	image, _ := b.script(`return location.href`).(string)
	b.open(page + "state")
	text, _ := b.script(`return document.body.innerText`).(string)
	for _, want := range append([]string{"Nothing needs attention.", release + "-server-tls"}, w.nodes...) {
		if !strings.Contains(text, want) {
			t.Errorf("the state lacks %q: %s", want, text)
		}
	}
	for name, url := range map[string]string{"images": page, "image": image, "state": page + "state"} {
		for scheme, background := range map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(16, 21, 27)"} {
			b.cdp("Emulation.setEmulatedMedia", map[string]any{"features": []any{
				map[string]any{"name": "prefers-color-scheme", "value": scheme}}})
			for _, width := range []int{360, 1400} {
				b.cdp("Emulation.setDeviceMetricsOverride", map[string]any{
					"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false})
				b.open(url)
				if color := b.script(`return getComputedStyle(document.body).backgroundColor`); color != background {
					t.Errorf("%s in %s: the background is %v", url, scheme, color)
				}
				wide := b.script(`const main = document.querySelector("main"),
					end = main.getBoundingClientRect().right - parseFloat(getComputedStyle(main).paddingRight);
					return [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, pre") &&
					e.getBoundingClientRect().right > end + 1).map(e => e.outerHTML)`)
				if mustJSON(wide) != "[]" {
					t.Errorf("%s at %d pixels: too wide are %s", url, width, mustJSON(wide))
				}
				b.saves(fmt.Sprintf("browse-%s-%s-%d.png", name, scheme, width))
			}
		}
	}
	if messages := b.request(http.MethodPost, "/se/log", map[string]any{"type": "browser"}); mustJSON(messages) != "[]" {
		t.Errorf("the browser's console says %s", mustJSON(messages))
	}

	// Everything comes from the command, and everything that can be operated has a name.
	for _, path := range []string{"", "state", "?q=browse"} {
		b.open(page + path)
		foreign := b.script(`return performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith(arguments[0]))`,
			page)
		nameless := b.script(`return [...document.querySelectorAll("a, button, input:not([type=hidden]), select")].filter(e =>
			!(e.textContent.trim() || e.getAttribute("aria-label") || e.labels && e.labels.length)).map(e => e.outerHTML)`)
		if mustJSON(foreign) != "[]" || mustJSON(nameless) != "[]" {
			t.Errorf("%q loads %s; without a name are %s", path, mustJSON(foreign), mustJSON(nameless))
		}
	}
}

// browse starts images browse until the test ends, and returns its URL.
func (w *world) browse(t *testing.T) string {
	t.Helper()
	cmd := w.command(t, w.hook, "images", "browse", "-n", w.namespace)
	out := require.Value(cmd.StdoutPipe())(t)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			t.Errorf("images browse: %v: %s", err, errOut.String())
		}
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "images browse printed", url, &errOut)
	return strings.TrimSpace(url)
}

// browser is headless Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2).
type browser struct {
	t       *testing.T
	session string // URL
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	driver := exec.CommandContext(ctx, "chromedriver", "--port=0")
	driver.Cancel = func() error { return driver.Process.Signal(syscall.SIGTERM) }
	out, err := driver.StdoutPipe()
	if err == nil {
		err = driver.Start()
	}
	require.NoError(t, err, "install it with hack/deps.sh clients")
	t.Cleanup(func() {
		stop()
		_ = driver.Wait() // ended by a signal
	})
	var port string
	lines := bufio.NewScanner(out)
	for port == "" && lines.Scan() {
		if m := regexp.MustCompile(`started successfully on port (\d+)`).FindStringSubmatch(lines.Text()); m != nil {
			port = m[1]
		}
	}
	go io.Copy(io.Discard, out)
	b := &browser{t, "http://127.0.0.1:" + port}
	created, _ := b.request(http.MethodPost, "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"browserName": "chrome", "goog:loggingPrefs": map[string]any{"browser": "ALL"},
		"goog:chromeOptions": map[string]any{"args": []string{"--headless", "--no-sandbox",
			"--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--no-first-run", "--disable-quic", "--window-size=1280,900", "--user-data-dir=" + t.TempDir()}},
	}}}).(map[string]any)
	id, _ := created["sessionId"].(string)
	if id == "" {
		t.Fatalf("no session: %v", created)
	}
	b.session += "/session/" + id
	t.Cleanup(func() { b.request(http.MethodDelete, "", nil) })
	return b
}

// request returns the value of a response.
func (b *browser) request(method, path string, body any) any {
	b.t.Helper()
	var content io.Reader
	if method == http.MethodPost {
		if body == nil {
			body = struct{}{}
		}
		content = strings.NewReader(mustJSON(body))
	}
	// Not t.Context(), which has ended when the session is deleted.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := require.Value(http.NewRequestWithContext(ctx, method, b.session+path, content))(b.t)
	response := require.Value(http.DefaultClient.Do(r))(b.t)
	defer response.Body.Close()
	var answer struct{ Value any }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s: %s: %v, error %v", method, path, response.Status, answer.Value, err)
	}
	return answer.Value
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.request(http.MethodPost, "/url", map[string]any{"url": url})
}

func (b *browser) script(text string, arguments ...any) any {
	b.t.Helper()
	if arguments == nil {
		arguments = []any{}
	}
	return b.request(http.MethodPost, "/execute/sync", map[string]any{"script": text, "args": arguments})
}

// keys presses keys, one after the other, wherever the focus is.
func (b *browser) keys(keys string) {
	b.t.Helper()
	var actions []any
	for _, key := range keys {
		for _, kind := range []string{"keyDown", "keyUp"} {
			actions = append(actions, map[string]any{"type": kind, "value": string(key)})
		}
	}
	b.request(http.MethodPost, "/actions", map[string]any{"actions": []any{
		map[string]any{"type": "key", "id": "keyboard", "actions": actions}}})
}

func (b *browser) click(selector string) {
	b.t.Helper()
	element := b.request(http.MethodPost, "/element", map[string]any{"using": "css selector", "value": selector})
	for _, id := range element.(map[string]any) {
		b.request(http.MethodPost, "/element/"+id.(string)+"/click", nil)
	}
}

// cdp runs a command of the Chrome DevTools Protocol.
func (b *browser) cdp(command string, parameters map[string]any) {
	b.t.Helper()
	b.request(http.MethodPost, "/goog/cdp/execute", map[string]any{"cmd": command, "params": parameters})
}

// saves writes a screenshot into the directory $E2E_SCREENSHOTS, if that is set.
func (b *browser) saves(name string) {
	b.t.Helper()
	encoded, _ := b.request(http.MethodGet, "/screenshot", nil).(string)
	content, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(content) < 1000 {
		b.t.Errorf("a screenshot of %d bytes, error %v", len(content), err)
	}
	if dir := os.Getenv("E2E_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			b.t.Error(err)
		}
	}
}
