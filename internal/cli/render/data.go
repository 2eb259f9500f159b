package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// APIVersion is the version of the format of all data.
const APIVersion = "registry.zarf.dev/v1"

// Kind says which fields an object has that a command prints as data.
type Kind string

const (
	BlobStore         Kind = "BlobStore"         // images store info
	BlobStorePruned   Kind = "BlobStorePruned"   // images store prune
	Certificates      Kind = "Certificates"      // certs show
	CredentialList    Kind = "CredentialList"    // credentials list
	GarbageCollection Kind = "GarbageCollection" // images garbage-collect
	HealedPods        Kind = "HealedPods"        // heal
	ImageList         Kind = "ImageList"         // images list
	ImageRemoval      Kind = "ImageRemoval"      // images delete, images prune
	Installation      Kind = "Installation"      // install
	InstallationPlan  Kind = "InstallationPlan"  // install --dry-run
	MissingImages     Kind = "MissingImages"     // images missing
	RepositoryList    Kind = "RepositoryList"    // images list --repositories
	Scrub             Kind = "Scrub"             // images scrub
	Status            Kind = "Status"            // status
	SupportBundle     Kind = "SupportBundle"     // support-bundle
	TransferList      Kind = "TransferList"      // images push, pull, copy, export
	Version           Kind = "Version"           // version
)

// List is the object of a kind that ends in List. It is an object, not an array, so that it can get more fields.
type List[T any] struct {
	Items []T `json:"items"`
}

// Data writes a value, which must be an object in JSON, as JSON or YAML, with [APIVersion] and its kind.
func Data(w io.Writer, output string, kind Kind, value any) error {
	var fields bytes.Buffer
	encoder := json.NewEncoder(&fields)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	rest, isObject := bytes.CutPrefix(fields.Bytes(), []byte("{"))
	if !isObject {
		return fmt.Errorf("%T is not an object in JSON", value)
	}
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q`, APIVersion, kind)
	if rest[0] != '}' {
		head += ","
	}
	object := append([]byte(head), rest...)
	var text []byte
	var err error
	if output == FormatYAML {
		text, err = yaml.JSONToYAML(object)
	} else {
		var indented bytes.Buffer
		err = json.Indent(&indented, object, "", "  ")
		text = indented.Bytes()
	}
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
