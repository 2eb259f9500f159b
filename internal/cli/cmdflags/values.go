package cmdflags

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// parsedValue is a flag whose value is validated when it is parsed. The error says what
// the flag accepts; cobra adds the flag's name.
type parsedValue[T any] struct {
	into  *T
	text  string // as given
	kind  string // shown in the help
	parse func(string) (T, error)
}

func (v *parsedValue[T]) Set(text string) error {
	value, err := v.parse(text)
	if err == nil {
		*v.into, v.text = value, text
	}
	return err
}

func (v *parsedValue[T]) String() string { return v.text }

func (v *parsedValue[T]) Type() string { return v.kind }

// AddNumber adds a flag that accepts an integer from minimum to maximum.
func AddNumber(flags *pflag.FlagSet, into *int, name string, minimum, maximum, value int, usage string) {
	*into = value
	flags.Var(&parsedValue[int]{into: into, text: strconv.Itoa(value), kind: "int", parse: func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < minimum || n > maximum {
			return 0, fmt.Errorf("want a number from %d to %d", minimum, maximum)
		}
		return n, nil
	}}, name, usage)
}

// AddSize adds a flag that accepts a size in bytes, such as 20GB.
func AddSize(flags *pflag.FlagSet, into *int64, name, value, usage string) {
	v := &parsedValue[int64]{into: into, kind: "SIZE", parse: parseSize}
	if value != "" {
		_ = v.Set(value) // a constant
	}
	flags.Var(v, name, usage)
}

// AddDuration adds a flag that accepts a duration of at least a minimum, such as 90m or 30d.
func AddDuration(
	flags *pflag.FlagSet, into *time.Duration, name string, minimum, value time.Duration, usage string,
) {
	*into = value
	v := &parsedValue[time.Duration]{into: into, kind: "DURATION", parse: func(text string) (time.Duration, error) {
		d, err := parseDuration(text)
		if err != nil || d < minimum {
			return 0, errDuration
		}
		return d, nil
	}}
	if value != 0 {
		v.text = formatDuration(value)
	}
	flags.Var(v, name, usage)
}

// AddTimeout adds the flag that limits a run.
func AddTimeout(flags *pflag.FlagSet, into *time.Duration, value time.Duration) {
	AddDuration(flags, into, "timeout", 1, value, "time limit for the whole run")
}

// WithTimeout returns a context that ends after --timeout.
func WithTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done within %s (--timeout)", formatDuration(timeout)))
}

// sizeUnits are the accepted units, in any case: decimal (GB), binary (GiB), and
// Kubernetes' forms without the B.
var sizeUnits = map[string]float64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
}

var errSize = errors.New("want a size such as 20GB, 1.5TB or 500MiB")

func parseSize(text string) (int64, error) {
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	unit, known := sizeUnits[strings.ToLower(strings.TrimSpace(text[end:]))]
	number, err := strconv.ParseFloat(text[:end], 64)
	if !known || err != nil {
		return 0, errSize
	}
	bytes := math.Round(number * unit)
	if bytes >= math.MaxInt64 {
		return 0, fmt.Errorf("%w, less than 8 EiB", errSize)
	}
	return int64(bytes), nil
}

var errDuration = errors.New("want a duration such as 90m, 720h or 30d")

// parseDuration parses a duration, which may be in days.
func parseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > 36500 { // 100 years; time.Duration holds less than 300
			return 0, errDuration
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	return time.ParseDuration(text)
}

// formatDuration leaves out minutes and seconds that are zero.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
