package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// ErrChanged means that a manifest was not deleted, because it was pushed again or became part of an index.
var ErrChanged = errors.New("not deleted")

// Catalog reads what the registry contains.
func Catalog(ctx context.Context, transport http.RoundTripper, access release.PushAccess) (*catalog.Catalog, error) {
	response, err := send(ctx, transport, access, http.MethodGet, url.URL{Path: catalog.Path}, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the registry's catalog: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("reading the registry's catalog: %w", responseError(response))
	}
	return catalog.Read(response.Body)
}

// DeleteManifest deletes a manifest by its digest, with all of its tags, unless it was pushed since, or an index refers
// to it: then the error is [ErrChanged]. The zero time deletes it in any case. ref may also be a tag, which alone is
// deleted; since must be zero then. What does not exist is deleted.
func DeleteManifest(ctx context.Context, transport http.RoundTripper, access release.PushAccess, repository, ref string,
	since time.Time) error {
	header := http.Header{}
	if !since.IsZero() {
		header.Set("If-Unmodified-Since", since.UTC().Format(http.TimeFormat))
	}
	response, err := send(ctx, transport, access, http.MethodDelete,
		url.URL{Path: "/v2/" + repository + "/manifests/" + ref}, header)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusAccepted, http.StatusNotFound:
		return nil
	case http.StatusPreconditionFailed:
		return fmt.Errorf("%w: %w", ErrChanged, responseError(response))
	}
	return responseError(response)
}

// send sends a request to the registry, with the push credential. Target has a path, and perhaps a query.
func send(ctx context.Context, transport http.RoundTripper, access release.PushAccess, method string, target url.URL,
	header http.Header) (*http.Response, error) {
	target.Scheme, target.Host = "https", Host(access)
	r, err := http.NewRequestWithContext(ctx, method, target.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.SetBasicAuth(access.Username, access.Password)
	return transport.RoundTrip(r)
}

func responseError(response *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // the status is enough
	return fmt.Errorf("the registry responded %s: %s", response.Status, strings.TrimSpace(string(body)))
}
