package registry

import (
	"bytes"
	"encoding/json"
	"log"
	"log/slog"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestLogsOfDistribution(t *testing.T) {
	t.Parallel()
	answered := func(status int) logrus.Fields { return logrus.Fields{"http.response.status": status} }
	for name, tt := range map[string]struct {
		level   logrus.Level
		fields  logrus.Fields
		message string
		want    slog.Level
	}{
		"info becomes debug":         {logrus.InfoLevel, nil, "redis not configured", slog.LevelDebug},
		"warnings stay warnings":     {logrus.WarnLevel, nil, "odd", slog.LevelWarn},
		"errors stay errors":         {logrus.ErrorLevel, nil, "disk gone", slog.LevelError},
		"a server error is an error": {logrus.ErrorLevel, answered(500), "response completed with error", slog.LevelError},
		"a client error is debug":    {logrus.ErrorLevel, answered(404), "response completed with error", slog.LevelDebug},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			hook := logHook{slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			entry := &logrus.Entry{Level: tt.level, Message: tt.message, Data: tt.fields}
			require.NoError(t, hook.Fire(entry))
			var line struct {
				Level  slog.Level
				Detail string
			}
			require.NoError(t, json.Unmarshal(out.Bytes(), &line))
			if line.Level != tt.want || line.Detail != tt.message {
				t.Errorf("logged: %s", out.String())
			}
		})
	}
}

func TestRouteLogs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	RouteLogs(slog.New(slog.NewJSONHandler(&out, nil)))
	t.Cleanup(func() { RouteLogs(slog.New(slog.DiscardHandler)) })
	logrus.WithField("http.request.uri", "/v2/a/blobs/uploads/1?_state=secret").WithField("go.version",
		"x").Error("broken")
	logrus.Info("chatter")
	text := out.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, `"http.request.uri":"/v2/a/blobs/uploads/1"`) ||
		strings.Contains(text, "go.version") {
		t.Errorf("logged: %s", text)
	}
}

func TestFailedConnectionsAreLogged(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"http: TLS handshake error from 1.2.3.4:5: EOF":                                      "DEBUG",
		"http: TLS handshake error from 1.2.3.4:5: tls: client didn't provide a certificate": "WARN",
	} {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		log.New(serverLog{logger, "tls"}, "", 0).Print(line)
		if text := out.String(); !strings.Contains(text, "level="+want) || !strings.Contains(text, "listener=tls") ||
			!strings.Contains(text, "1.2.3.4:5") {
			t.Errorf("%s: logged as %s", line, text)
		}
	}
}
