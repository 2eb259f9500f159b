package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go/aws/awserr"
	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
)

const (
	// defaultHealthInterval is distribution's default for health.storagedriver.interval.
	defaultHealthInterval = 10 * time.Second
	// defaultHealthThreshold is how many consecutive checks may fail before the registry reports not ready
	// (health.storagedriver.threshold). A single failed S3 request must not remove it from its Service.
	defaultHealthThreshold = 3
)

// Health checks at intervals that the storage responds. Hanging is failing: the time since the last success decides.
//
// It does not write. A full volume calls for an alert; failing readiness would stop pulls too.
type Health struct {
	driver   storagedriver.StorageDriver
	storage  configuration.Storage
	root     string // of the filesystem driver, or ""
	Interval time.Duration
	tolerate time.Duration // failures for so long after the last success
	log      *slog.Logger

	success atomic.Pointer[time.Time] // the last
	failure atomic.Pointer[error]     // of the last check; nil if it succeeded
}

func NewHealth(config *configuration.Configuration, driver storagedriver.StorageDriver, log *slog.Logger) *Health {
	interval := cmp.Or(max(config.Health.StorageDriver.Interval, 0), defaultHealthInterval)
	threshold := cmp.Or(max(config.Health.StorageDriver.Threshold, 0), defaultHealthThreshold)
	root, _ := FilesystemRoot(config.Storage)
	return &Health{
		driver: driver, storage: config.Storage, root: root, log: log,
		Interval: interval, tolerate: time.Duration(threshold) * interval,
	}
}

// Run checks at once and then at each interval until ctx ends.
func (h *Health) Run(ctx context.Context) {
	poll.Every(ctx, h.Interval, func() { h.check(ctx) })
}

func (h *Health) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, h.Interval)
	defer cancel()
	_, err := h.driver.Stat(ctx, "/")
	// In an empty bucket, this path does not exist.
	if IsNotFound(err) && h.root == "" {
		err = nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the process is shutting down
	}

	previous := h.failure.Load()
	if err != nil {
		err = explain(h.storage, err)
		h.failure.Store(&err)
		if previous == nil {
			h.log.Error("storage check failed", "error", err.Error()) // a driver's error would be an object
		}
		return
	}
	now := time.Now()
	h.success.Store(&now)
	h.failure.Store(nil)
	if previous != nil {
		h.log.Info("storage check succeeded again")
	}
}

// Err returns nil while the storage is healthy.
func (h *Health) Err(now time.Time) error {
	failure, success := h.failure.Load(), h.success.Load()
	switch {
	case success != nil && now.Sub(*success) < h.tolerate:
		return nil
	case failure != nil:
		return fmt.Errorf("storage: %w", *failure)
	case success == nil:
		return errors.New("storage: not checked yet")
	}
	return fmt.Errorf("storage: no response for %s", now.Sub(*success).Round(time.Second))
}

// explain adds to an error of S3 that a configuration causes where that is and what to do.
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
