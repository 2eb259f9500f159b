// Package version names the release that a program was built from. It knows
// nothing about compatibility between releases.
package version

// Version is the release, set by the linker from the chart's appVersion
// (-X github.com/zarf-dev/zarf-registry/internal/version.Version=…). A program
// built without it calls itself "dev".
var Version = "dev"

// Commit is the full hash of the commit, followed by -dirty if files had changed. The linker sets it like Version. It
// is empty for programs of the payload, which are the same in all releases between which their sources do not change.
var Commit = ""
