package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// Uninstall does the work of the release's cleanup Job and then removes the chart's objects, as helm uninstall does. It
// calls cleanup once with the arguments of that Job, or of another one with the same settings: a release that never
// worked may have no cleanup Job. If the release is gone, there are none. Uninstall reports whether there was a
// release. Repeated, it continues an interrupted run. The time limit bounds Helm's part.
func Uninstall(ctx context.Context, helm *action.Configuration, name string, limit time.Duration,
	cleanup func(ctx context.Context, args []string) error,
) (found bool, err error) {
	rel, err := helm.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return false, cleanup(ctx, nil)
	}
	if err != nil {
		return false, fmt.Errorf("reading release %s: %w", name, err)
	}
	if err := refuseForeign(rel); err != nil {
		return true, err
	}
	args, err := jobArguments(rel, "cleanup")
	if err != nil {
		args, err = jobArguments(rel, "prepare")
	}
	if err != nil {
		return true, err
	}
	if err := cleanup(ctx, args); err != nil {
		return true, err
	}
	uninstall := action.NewUninstall(helm)
	uninstall.DisableHooks, uninstall.Timeout = true, limit
	if _, err := uninstall.Run(name); err != nil {
		return true, fmt.Errorf("removing the objects of release %s: %w", name, err)
	}
	return true, nil
}
