package stored

import (
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
)

// references returns the references of images, without those of the registry itself. They begin with its address if the
// word is the beginning of one that does.
func references(content *catalog.Catalog, address, word string) (found []string) {
	for _, image := range content.Images() {
		if catalog.Own(image.Repository) {
			continue
		}
		for _, full := range image.References(address) {
			if short := strings.TrimPrefix(full, address+"/"); strings.HasPrefix(short, word) {
				found = append(found, short)
			} else {
				found = append(found, full)
			}
		}
	}
	return found
}

// repositories returns the repositories, without those of the registry itself.
func repositories(content *catalog.Catalog, _, _ string) (found []string) {
	for _, image := range content.Images() {
		if !catalog.Own(image.Repository) {
			found = append(found, image.Repository)
		}
	}
	return slices.Compact(found) // images are sorted by repository
}
