package clusters

import "testing"

func TestParseReceived(t *testing.T) {
	const text = "Inter-| Receive | Transmit\n face |bytes packets|bytes\n    lo:  10 1 0\n  eth0: 7390000    1234 0\n"
	if got, err := parseReceived(text); err != nil || got != 7390000 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseReceived("lo: 10\n"); err == nil {
		t.Error("no error without eth0")
	}
}
