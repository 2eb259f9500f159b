package registry

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// RouteLogs sends distribution's logs, which are global to the process, to log. Call it once, before anything else.
//
// Distribution's information is logged at debug level, because the front end logs one line per request
// itself; so are errors that are only responses to clients, such as an unknown blob.
func RouteLogs(log *slog.Logger) {
	level := logrus.WarnLevel
	if log.Enabled(context.Background(), slog.LevelDebug) {
		level = logrus.DebugLevel
	}
	logger := logrus.StandardLogger()
	logger.SetLevel(level)
	logger.SetOutput(io.Discard)
	hooks := make(logrus.LevelHooks)
	hooks.Add(logHook{log})
	logger.ReplaceHooks(hooks)
}

// logHook passes logrus entries to slog.
type logHook struct{ log *slog.Logger }

func (logHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h logHook) Fire(entry *logrus.Entry) error {
	level := slog.LevelDebug
	switch {
	case entry.Message == "response completed with error":
		if status, ok := entry.Data["http.response.status"].(int); !ok || status >= http.StatusInternalServerError {
			level = slog.LevelError
		}
	case entry.Level <= logrus.ErrorLevel:
		level = slog.LevelError
	case entry.Level == logrus.WarnLevel:
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("component", "distribution"), slog.String("detail", entry.Message)}
	for _, key := range slices.Sorted(maps.Keys(entry.Data)) {
		value := entry.Data[key]
		switch key {
		case "go.version":
			continue
		case "http.request.uri": // its query contains upload state
			text, _ := value.(string)
			value, _, _ = strings.Cut(text, "?")
		}
		attrs = append(attrs, slog.Any(key, value))
	}
	h.log.LogAttrs(entry.Context, level, "distribution", attrs...)
	return nil
}

// serverLog receives net/http's logs. Handshakes that probes and port scans abort are logged at debug level.
type serverLog struct {
	log      *slog.Logger
	listener string
}

func (l serverLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := slog.LevelWarn
	if strings.HasPrefix(text, "http: TLS handshake error") && strings.HasSuffix(text, ": EOF") {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, "connection failed", "listener", l.listener, "error", text)
	return len(line), nil
}
