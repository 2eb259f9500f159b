package tlsfiles

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

func TestClosedConnectionsAreForgotten(t *testing.T) {
	source, _ := open(t, tlsfilestest.NewCA(t, "ca").Files(t, pki.OrganizationServer, []string{"registry"}))
	clients := NewClients(source, time.Now)
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	for _, step := range []struct {
		state   http.ConnState
		open    int
		closing bool
	}{
		{http.StateNew, 1, false}, {http.StateActive, 1, false}, {http.StateIdle, 1, false}, {http.StateClosed, 0, false},
		{http.StateClosed, 0, false},
	} {
		clients.State(server, step.state)
		known := clients.conns[server]
		if len(clients.conns) != step.open || known != nil && (known.closing != nil) != step.closing {
			t.Errorf("after %s: %+v", step.state, clients.conns)
		}
	}
}
