package proxy

import (
	"log/slog"
	"sync"
	"time"
)

// logInterval is the minimum interval between two entries of the same message. While the registry
// is away, every waiting request would log its own.
const logInterval = 10 * time.Second

// limitedLogger logs each message at most once per logInterval, with the number of suppressed
// entries.
type limitedLogger struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[string]*seen // by message; messages are constants, so the map stays small
}

type seen struct {
	last       time.Time
	suppressed int
}

func newLimitedLogger(log *slog.Logger) *limitedLogger {
	return &limitedLogger{log: log, seen: make(map[string]*seen)}
}

func (l *limitedLogger) Warn(message string, args ...any) {
	now := time.Now()
	l.mu.Lock()
	s := l.seen[message]
	if s == nil {
		s = &seen{}
		l.seen[message] = s
	}
	if now.Sub(s.last) < logInterval {
		s.suppressed++
		l.mu.Unlock()
		return
	}
	suppressed := s.suppressed
	s.last, s.suppressed = now, 0
	l.mu.Unlock()
	if suppressed > 0 {
		args = append(args, "suppressed", suppressed)
	}
	l.log.Warn(message, args...)
}
