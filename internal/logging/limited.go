package logging

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// limitedInterval is the minimum interval between two entries of the same message. While a server is
// away, every waiting request would log its own.
const limitedInterval = 10 * time.Second

// Limited logs warnings and errors: each message at most once in ten seconds, with the number of suppressed
// entries. Its methods may be called concurrently.
type Limited struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[string]*seen // by message; messages are constants, so the map stays small
}

type seen struct {
	last       time.Time
	suppressed int
}

// NewLimited returns a Limited that logs to log.
func NewLimited(log *slog.Logger) *Limited {
	return &Limited{log: log, seen: make(map[string]*seen)}
}

// Warn logs a warning, or counts it if the same message was logged a short time ago.
func (l *Limited) Warn(message string, args ...any) { l.write(slog.LevelWarn, message, args) }

// Error is Warn for errors.
func (l *Limited) Error(message string, args ...any) { l.write(slog.LevelError, message, args) }

func (l *Limited) write(level slog.Level, message string, args []any) {
	now := time.Now()
	l.mu.Lock()
	s := l.seen[message]
	if s == nil {
		s = &seen{}
		l.seen[message] = s
	}
	if now.Sub(s.last) < limitedInterval {
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
	l.log.Log(context.Background(), level, message, args...)
}
