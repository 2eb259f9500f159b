package storage

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go/aws/awserr"
	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
)

// explain returns an error of the storage with its place and what to do, if it is one of S3 that a configuration
// causes.
func explain(storage configuration.Storage, err error) error {
	var driverError storagedriver.Error
	if !errors.As(err, &driverError) {
		return err
	}
	failure, ok := errors.AsType[awserr.Error](driverError.Detail)
	if !ok {
		return err
	}
	const keys = "correct the keys and their rights, and restart the registry, which reads keys at its start"
	advice := map[string]string{
		"NoSuchBucket":          "create the bucket, or correct storage.s3.bucket",
		"InvalidAccessKeyId":    keys,
		"SignatureDoesNotMatch": keys,
		"AccessDenied":          keys,
		"Forbidden":             keys,
		"NoCredentialProviders": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (in the chart: " +
			"registry.storage.s3.existingSecret), or give the pod an identity",
		"RequestError": "check storage.s3.regionendpoint, the network, and for a private CA AWS_CA_BUNDLE (in the chart: " +
			"registry.storage.s3.caSecret)",
	}[failure.Code()]
	if advice == "" {
		return err
	}
	reason := failure.Message()
	if cause := failure.OrigErr(); cause != nil {
		reason = cause.Error()
	}
	parameters := storage.Parameters()
	return fmt.Errorf("storage.s3: bucket %v at %v: %s: %s: %s", parameters["bucket"],
		cmp.Or(parameters["regionendpoint"], parameters["region"]), failure.Code(), reason, advice)
}
