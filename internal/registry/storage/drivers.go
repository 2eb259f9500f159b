// Package storage opens distribution's storage drivers, and knows their layout of paths. It makes the filesystem driver
// durable, keeps space for records on a full file system, and checks that the storage responds.
//
// It does not know what manifests and links mean: package content does.
package storage

import (
	"context"
	"errors"
	"fmt"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory" // drivers for the configuration
	_ "github.com/distribution/distribution/v3/registry/storage/driver/s3-aws"
	_ "golang.org/x/crypto/x509roots/fallback" // for S3 over public TLS, because the image contains no CA certificates
)

const (
	DriverFilesystem = "filesystem"
	DriverInMemory   = "inmemory"
	DriverS3         = "s3"
	DriverS3AWS      = "s3aws" // distribution's other name for the same driver
)

// ReadOnly reports whether the configuration makes the registry read-only.
func ReadOnly(storage configuration.Storage) bool {
	switch set := storage["maintenance"]["readonly"].(type) {
	case map[any]any:
		return set["enabled"] == true
	case map[string]any:
		return set["enabled"] == true
	}
	return false
}

// FilesystemRoot returns the filesystem driver's directory; ok is false for other drivers.
func FilesystemRoot(storage configuration.Storage) (root string, ok bool) {
	if storage.Type() != DriverFilesystem {
		return "", false
	}
	if root, ok := storage.Parameters()["rootdirectory"]; ok {
		return fmt.Sprint(root), true
	}
	return "/var/lib/registry", true // the driver's own default
}

// Open returns the configured storage driver, with durable files or with large parts in S3. It does not connect.
func Open(ctx context.Context, storage configuration.Storage) (driver storagedriver.StorageDriver, err error) {
	name, parameters := storage.Type(), storage.Parameters()
	if name == DriverS3 || name == DriverS3AWS {
		driver, err = openS3(ctx, parameters)
	} else {
		driver, err = factory.Create(ctx, name, parameters)
	}
	if err != nil {
		return nil, fmt.Errorf("storage.%s: %w", name, err)
	}
	if root, ok := FilesystemRoot(storage); ok {
		return durable(driver.(*filesystem.Driver), root), nil
	}
	return driver, nil
}

// FailedWith reports whether a storage driver failed with cause. Distribution's error type does not implement Unwrap.
func FailedWith(err, cause error) bool {
	var driverError storagedriver.Error
	return errors.As(err, &driverError) && errors.Is(driverError.Detail, cause)
}

// IsNotFound reports whether a driver found no file.
func IsNotFound(err error) bool { return errors.As(err, new(storagedriver.PathNotFoundError)) }

// AsUnknown returns a [distribution.ErrBlobUnknown] if a driver found no file, and other errors as they are.
func AsUnknown(err error) error {
	if IsNotFound(err) {
		return distribution.ErrBlobUnknown
	}
	return err
}
