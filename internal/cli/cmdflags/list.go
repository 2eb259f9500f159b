package cmdflags

import (
	"os"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// ReadList reads the references in a file, one per line.
func ReadList(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return name.ReadList(file, path)
}
