package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
)

// maxSpaceAnswer limits what is read of a response, in bytes: a digest takes at most 140.
const maxSpaceAnswer = space.MaxDigests * 160

// Space returns how full the registry's volume is. It has no limit if the registry does not tell, as those of other
// projects.
func (r *Registry) Space(ctx context.Context) (usage space.Usage, err error) {
	_, err = r.space(ctx, http.MethodGet, nil, &usage)
	return usage, r.wrap(ctx, err)
}

// Missing returns which of the blobs no repository of the registry has. The registry must be one that reports its
// Space.
func (r *Registry) Missing(ctx context.Context, digests []digest.Digest) ([]digest.Digest, error) {
	var missing []digest.Digest
	for len(digests) > 0 {
		n := min(len(digests), space.MaxDigests)
		body, err := json.Marshal(space.Query{Digests: digests[:n]})
		if err != nil {
			return nil, err
		}
		var answer space.Answer
		ok, err := r.space(ctx, http.MethodPost, body, &answer)
		if err == nil && !ok {
			err = protocolErrorf("does not tell what it has")
		}
		if err != nil {
			return nil, r.wrap(ctx, err)
		}
		missing, digests = append(missing, answer.Missing...), digests[n:]
	}
	return missing, nil
}

// space sends a request to space.Path. It reports whether the registry supports it.
func (r *Registry) space(ctx context.Context, method string, body []byte, response any) (ok bool, err error) {
	target := url.URL{Scheme: "https", Host: r.Host(), Path: space.Path}
	if r.remote.PlainHTTP {
		target.Scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return false, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		defer resp.Body.Close()
		if err := json.NewDecoder(io.LimitReader(resp.Body, maxSpaceAnswer)).Decode(response); err != nil {
			return false, protocolErrorf("returned an invalid description of its storage (%v)", err)
		}
		return true, nil
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return false, resp.Body.Close()
	}
	return false, newResponseError(resp)
}
