package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

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

// DeleteTag deletes a tag, and not its manifest. What does not exist is deleted.
func DeleteTag(
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, repository, tag string,
) error {
	response, err := send(ctx, transport, access, http.MethodDelete,
		url.URL{Path: "/v2/" + repository + "/manifests/" + tag}, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusAccepted || response.StatusCode == http.StatusNotFound {
		return nil
	}
	return responseError(response)
}

// DeleteManifests deletes manifests with all of their tags, unless they were pushed since the catalog was read, or an
// index refers to them that is kept. It calls yield for each, also for those that do not exist; kept says why one was
// not deleted.
func DeleteManifests(ctx context.Context, transport http.RoundTripper, access release.PushAccess,
	request deletion.Request, yield func(repository string, d digest.Digest, kept string)) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	return readEvents(ctx, transport, access, url.URL{Path: deletion.Path}, body, func(e deletion.Event) (bool, error) {
		switch {
		case e.Error != "":
			return false, errors.New(e.Error)
		case e.Digest != "":
			yield(e.Repository, e.Digest, e.Kept)
		}
		return !e.End, nil
	})
}

// send sends a request to the registry, with the push credential. Target has a path, and perhaps a query.
func send(ctx context.Context, transport http.RoundTripper, access release.PushAccess, method string, target url.URL,
	body []byte) (*http.Response, error) {
	target.Scheme, target.Host = "https", Host(access)
	r, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.SetBasicAuth(access.Username, access.Password)
	return transport.RoundTrip(r)
}

func responseError(response *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // the status is enough
	return fmt.Errorf("the registry responded %s: %s", response.Status, strings.TrimSpace(string(body)))
}
