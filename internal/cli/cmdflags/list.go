package cmdflags

import (
	"io"
	"os"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// ReadList reads the references in a file, or for - in stdin, one per line.
func ReadList(stdin io.Reader, path string) ([]string, error) {
	if path == "-" {
		return name.ReadList(stdin, "stdin")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return name.ReadList(file, path)
}
