package spec

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// The response to the first PUT was lost.
func TestARepeatedPutFindsTheFinishedBlob(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	begun := ask(t, s, "POST", "/v2/a/blobs/uploads/", "", "").Header().Get("Location")
	finish := begun + "&digest=" + digest.FromString("large").String()
	for n := range 2 {
		if got := ask(t, s, "PUT", finish, "", "large"); got.Code != http.StatusCreated ||
			got.Header().Get("Docker-Content-Digest") != digest.FromString("large").String() {
			t.Errorf("%d: status %d %v %s", n, got.Code, got.Header(), got.Body)
		}
	}
	// What was cancelled is not finished, although the blob exists.
	cancelled := ask(t, s, "POST", "/v2/a/blobs/uploads/", "", "").Header().Get("Location")
	if got := ask(t, s, "DELETE", cancelled, "", ""); got.Code != http.StatusNoContent {
		t.Errorf("cancel: %d", got.Code)
	}
	if got := ask(t, s, "PUT", cancelled+"&digest="+digest.FromString("large").String(), "", ""); got.Code != http.StatusNotFound {
		t.Errorf("a cancelled upload: %d %s", got.Code, got.Body)
	}
	other := begun + "&digest=" + digest.FromString("other").String()
	if got := ask(t, s, "PUT", other, "", ""); got.Code != http.StatusNotFound {
		t.Errorf("another blob: %d %s", got.Code, got.Body)
	}
	if got := ask(t, s, "PUT", strings.Replace(finish, "/v2/a/", "/v2/b/", 1), "", ""); got.Code == http.StatusCreated {
		t.Error("a blob of another repository")
	}
}

func TestRequestsWhileAnUploadIsBeingFinished(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	const id = "01a22515-6a77-764f-b5ea-69ef1e791ae0"
	path := uploadPath("a", id)
	end := s.commits.begin(path, &commit{location: path + "?_state=x", size: 5})
	if got := ask(t, s, "GET", path, "", ""); got.Code != http.StatusNoContent || got.Header().Get("Range") != "0-4" ||
		got.Header().Get("Location") != path+"?_state=x" {
		t.Errorf("the status is %d %v", got.Code, got.Header())
	}
	for _, method := range []string{"PATCH", "DELETE"} {
		if got := ask(t, s, method, path, "", "x"); got.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", method, got.Code)
		}
	}
	repeated := make(chan *httptest.ResponseRecorder, 1)
	d := digest.FromString("large").String()
	begun := ask(t, s, "POST", "/v2/a/blobs/uploads/", "", "").Header().Get("Location")
	finish := path + begun[strings.Index(begun, "?"):] + "&digest=" + d
	go func() { repeated <- ask(t, s, "PUT", finish, "", "") }()
	select {
	case got := <-repeated:
		t.Fatalf("the repeated PUT did not wait: %d %s", got.Code, got.Body)
	case <-time.After(100 * time.Millisecond):
	}
	end("")
	<-repeated
	if s.commits.get(path) != nil {
		t.Error("the upload is still being finished")
	}
}
