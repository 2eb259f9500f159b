package spec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// oneFile is a driver in which every path leads to the same bytes, or to none, and every link to a blob of ten bytes.
type oneFile struct {
	storagedriver.StorageDriver
	content io.Reader
	err     error
}

func (f oneFile) GetContent(_ context.Context, path string) ([]byte, error) {
	if !strings.Contains(path, "/_layers/") {
		return nil, storagedriver.PathNotFoundError{Path: path}
	}
	return []byte(digest.FromString("x")), nil
}

func (f oneFile) Stat(_ context.Context, path string) (storagedriver.FileInfo, error) {
	return storagedriver.FileInfoInternal{FileInfoFields: storagedriver.FileInfoFields{Path: path, Size: 10}}, nil
}

func (f oneFile) Reader(context.Context, string, int64) (io.ReadCloser, error) {
	return io.NopCloser(f.content), f.err
}

func TestUnreadableBlobsAbortTheResponse(t *testing.T) {
	t.Parallel()
	failure := errors.New("disk gone")
	for name, tt := range map[string]struct {
		file oneFile
		want string // expected log entry; empty: the blob is served
	}{
		"a whole blob arrives":         {oneFile{content: strings.NewReader("0123456789")}, ""},
		"a blob that cannot be opened": {oneFile{err: failure}, "disk gone"},
		"a read error": {oneFile{content: io.MultiReader(strings.NewReader("01234"),
			iotest.ErrReader(failure))}, "disk gone"},
		"a blob shorter than its size": {oneFile{content: strings.NewReader("01234")}, io.ErrUnexpectedEOF.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			logs := &strings.Builder{}
			s := &Registry{Store: &content.Store{Driver: tt.file, Log: slog.New(slog.NewTextHandler(logs, nil))}}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := s.getBlob(w, r, "a", digest.FromString("x")); err != nil {
					t.Errorf("getBlob() = %v, which would be written into the blob", err)
				}
			}))
			var body []byte
			response, err := http.Get(server.URL)
			if err == nil {
				body, err = io.ReadAll(response.Body)
				response.Body.Close()
			}
			server.Close()
			if (err == nil) != (tt.want == "") || tt.want == "" && string(body) != "0123456789" {
				t.Errorf("the client got %q, %v", body, err)
			}
			if text := logs.String(); !strings.Contains(text, tt.want) ||
				(tt.want != "") != strings.Contains(text, digest.FromString("x").String()) {
				t.Errorf("logged: %q", text)
			}
		})
	}
}

func TestAnUploadThatAnotherRequestContinuesIsKept(t *testing.T) {
	t.Parallel()
	s := open(t, fmt.Sprintf("filesystem: {rootdirectory: %q}", t.TempDir()))
	begun := s.request(t, http.StatusAccepted, "POST", "/v2/a/blobs/uploads/", nil).Header().Get("Location")
	complete := begun + "&digest=" + digest.FromString("x").String()
	s.request(t, http.StatusInternalServerError, "PUT", complete, onRead(func([]byte) (int, error) {
		s.request(t, http.StatusAccepted, "PATCH", begun, strings.NewReader(""), "Content-Type", "")
		return 0, io.EOF
	}))
	s.request(t, http.StatusCreated, "PUT", complete, strings.NewReader("x"))
}

// The minor finding of the review: asking does not end what another request sends.
func TestAskingForTheStatusOfAnUploadDoesNotEndIt(t *testing.T) {
	t.Parallel()
	s := open(t, fmt.Sprintf("filesystem: {rootdirectory: %q}", t.TempDir()))
	begun := s.request(t, http.StatusAccepted, "POST", "/v2/a/blobs/uploads/", nil).Header().Get("Location")
	sent := false
	s.request(t, http.StatusCreated, "PUT", begun+"&digest="+digest.FromString("x").String(),
		onRead(func(p []byte) (int, error) {
			if sent {
				return 0, io.EOF
			}
			s.request(t, http.StatusNoContent, "GET", begun, nil)
			sent = true
			return copy(p, "x"), nil
		}))
}

func TestUploadsThatFailOrAreCancelledLeaveNothing(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	s.request(t, http.StatusBadRequest, "POST", "/v2/a/blobs/uploads/?digest="+digest.FromString("x").String(),
		strings.NewReader("y"))
	begun := s.request(t, http.StatusAccepted, "POST", "/v2/a/blobs/uploads/", nil).Header().Get("Location")
	s.request(t, http.StatusNoContent, "DELETE", begun, nil)
	if left, err := s.Driver.List(t.Context(), storage.RepositoriesPath+"/a/_uploads"); len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
