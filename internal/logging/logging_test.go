package logging_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args              []string
		begins, dismissed string
		fail              string
	}{
		"JSON without a terminal":    {nil, `{"time":`, "quiet", ""},
		"text on request":            {[]string{"--log-format=text"}, "time=", "quiet", ""},
		"only messages of the level": {[]string{"--log-level=error"}, "", "loud", ""},
		"an unknown format":          {[]string{"--log-format=xml"}, "", "", `invalid --log-format "xml"`},
	} {
		t.Run(name, func(t *testing.T) {
			var o logging.Options
			flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
			o.Register(flags)
			require.NoError(t, flags.Parse(c.args))
			var out bytes.Buffer
			log, err := o.New(&out)
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) {
					t.Errorf("error is %v, want one with %q", err, c.fail)
				}
				return
			}
			require.NoError(t, err)
			log.Debug("quiet")
			log.Info("loud")
			if got := out.String(); !strings.HasPrefix(got, c.begins) || strings.Contains(got, c.dismissed) {
				t.Errorf("logged %q", got)
			}
		})
	}
}
