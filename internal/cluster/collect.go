package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// maxErrorBody limits how many bytes of an error response are quoted.
const maxErrorBody = 64 << 10

// Collect asks the registry to collect garbage and passes each event to handle. An error that the
// registry reports in its last event is returned.
func Collect(
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, request gc.Request,
	handle func(gc.Event) error,
) error {
	return readEvents(ctx, transport, access, url.URL{Path: gc.Path, RawQuery: request.Query().Encode()}, nil,
		func(e gc.Event) (bool, error) {
			if e.Error != "" {
				return false, errors.New(e.Error)
			}
			return e.Result == nil, handle(e)
		})
}

// Scrub asks the registry to read all that it stores and passes each event to handle. An error that the registry
// reports in its last event is returned.
func Scrub(
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, request scrub.Request,
	handle func(scrub.Event) error,
) error {
	return readEvents(ctx, transport, access, url.URL{Path: scrub.Path, RawQuery: request.Query().Encode()}, nil,
		func(e scrub.Event) (bool, error) {
			if e.Error != "" {
				return false, errors.New(e.Error)
			}
			return e.Result == nil, handle(e)
		})
}

// readEvents posts a request and passes the lines of the response to handle until it reports that there are no more, or
// an error.
func readEvents[E any](
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, target url.URL, body []byte,
	handle func(E) (more bool, err error),
) error {
	response, err := send(ctx, transport, access, http.MethodPost, target, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return responseError(response)
	}
	events := json.NewDecoder(response.Body)
	for {
		var e E
		switch err := events.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return errors.New("the registry stopped before it had finished: check its pod's log, then run it again")
		case err != nil:
			return fmt.Errorf("reading the registry's response: %w", err)
		}
		if more, err := handle(e); err != nil || !more {
			return err
		}
	}
}
