// Package mounted reads files of directories in which the kubelet mounts Secrets and ConfigMaps.
//
// It does not watch them: its callers read again.
package mounted

import (
	"errors"
	"os"
	"path/filepath"
)

// dataLink is the link with which the kubelet replaces all files of a directory at once. It points to a directory that
// the kubelet creates for each generation, under a name that it never reuses.
const dataLink = "..data"

// tries is how often a directory is read that is replaced meanwhile. Generations are minutes apart.
const tries = 4

// errReplaced means that a directory is replaced faster than it can be read.
var errReplaced = errors.New("its files are being replaced")

// Link returns the name of the current generation, or "" in a plain directory.
func Link(dir string) (string, error) {
	link, err := os.Readlink(filepath.Join(dir, dataLink))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return link, err
}

// Read calls read with the directory of the current generation; of a plain directory with dir. It returns the name of
// that generation, as Link does, and read's error. The kubelet removes a generation right after it has mounted the next
// one, so Read calls read again if there is a next one.
func Read(dir string, read func(generation string) error) (link string, err error) {
	for range tries {
		if link, err = Link(dir); err != nil {
			return "", err
		}
		generation := link
		if !filepath.IsAbs(link) {
			generation = filepath.Join(dir, link)
		}
		err = read(generation)
		if now, _ := Link(dir); now == link {
			return link, err
		}
	}
	return "", errReplaced
}

// ReadFile returns the content of a file that is mounted, or not.
func ReadFile(path string) (data []byte, err error) {
	dir, name := filepath.Split(path)
	_, err = Read(dir, func(generation string) (err error) {
		data, err = os.ReadFile(filepath.Join(generation, name))
		return err
	})
	return data, err
}
