package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/zarf-dev/zarf-registry/internal/gc"
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
	response, err := send(ctx, transport, access, http.MethodPost,
		url.URL{Path: gc.Path, RawQuery: request.Query().Encode()}, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return errors.New("the registry's release does not support garbage collection: upgrade it with init-hook install")
	default:
		return responseError(response)
	}
	events := json.NewDecoder(response.Body)
	for {
		var e gc.Event
		switch err := events.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return errors.New("the registry stopped before it had finished: check its pod's log, then run it again")
		case err != nil:
			return fmt.Errorf("reading the registry's response: %w", err)
		case e.Error != "":
			return errors.New(e.Error)
		}
		if err := handle(e); err != nil {
			return err
		}
		if e.Result != nil {
			return nil
		}
	}
}
