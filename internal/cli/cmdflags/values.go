package cmdflags

import (
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

// Set implements [pflag.Value].
func (v *parsedValue[T]) Set(text string) error {
	value, err := v.parse(text)
	if err == nil {
		*v.into, v.text = value, text
	}
	return err
}

// String implements [pflag.Value].
func (v *parsedValue[T]) String() string { return v.text }

// Type implements [pflag.Value].
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

// AddAge adds a flag that accepts a duration, such as 720h or 30d.
func AddAge(flags *pflag.FlagSet, into *time.Duration, name, usage string) {
	flags.Var(&parsedValue[time.Duration]{into: into, kind: "DURATION", parse: parseAge}, name, usage)
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

// parseSize parses a size in bytes.
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

var errAge = errors.New("want a duration such as 90m, 720h or 30d")

// parseAge parses a duration, which may be in days.
func parseAge(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n <= 0 || n > 36500 { // 100 years; time.Duration holds less than 300
			return 0, errAge
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	age, err := time.ParseDuration(text)
	if err != nil || age <= 0 {
		return 0, errAge
	}
	return age, nil
}
