// Package hostfiles installs the files of one owner, a release, in directories of a node that
// belong to others, and uninstalls them. Each file is written atomically: to a temporary file that
// is synced and renamed. A previous file is kept as a hard link and restored by a rename, which
// preserves its inode, owner, mode, times and label.
//
// The first line of a release's files marks their owner. Files of others are not replaced or
// removed unless the caller requests it. Whatever can be checked before the first write is checked
// then: [Tree.Plan] only reads, [Plan.Apply] only writes. A run that is interrupted at any point
// needs no repair: the next run reaches the same state.
//
// The package knows no file formats and prints no contents; internal/node/noderuntime does.
package hostfiles

import (
	"bytes"
	"io/fs"
	"path"
	"strings"
)

const (
	// markPrefix starts the files of all releases. The line is a comment in TOML and YAML, and PEM
	// parsers skip it.
	markPrefix = "# Written by zarf-registry, release "
	markSuffix = ". Changes are overwritten.\n"
	// backupSuffix is appended to the name of a previous file.
	backupSuffix = ".before-zarf-registry"
	// Temporary files and directories have this prefix and suffix.
	temporaryPrefix, temporarySuffix = ".", ".zarf-registry-new"
	// maxSize limits the size of files that are read completely, in bytes. A Secret cannot hold more.
	maxSize = 1 << 20
	// maxMark limits the length of the first line. A namespace and a release name have up to 63 and 53
	// bytes.
	maxMark = 256
)

// Mark returns the first line of the files of release NAMESPACE/NAME.
func Mark(release string) string { return markPrefix + release + markSuffix }

// Backup returns the path at which the previous file at path is kept.
func Backup(path string) string { return path + backupSuffix }

func temporary(base string) string { return temporaryPrefix + base + temporarySuffix }

func isTemporary(base string) bool {
	return strings.HasPrefix(base, temporaryPrefix) && strings.HasSuffix(base, temporarySuffix) &&
		len(base) > len(temporaryPrefix)+len(temporarySuffix)
}

// reserved reports whether only this package creates files of that name.
func reserved(base string) bool { return isTemporary(base) || strings.HasSuffix(base, backupSuffix) }

// markOf returns the release that wrote a file, empty if none did, and the content after the mark.
func markOf(content []byte) (release string, rest []byte) {
	line, rest, _ := bytes.Cut(content, []byte("\n"))
	name, ok := strings.CutPrefix(string(line)+"\n", markPrefix)
	if !ok {
		return "", content
	}
	if name, ok = strings.CutSuffix(name, markSuffix); !ok || name == "" {
		return "", content
	}
	return name, rest
}

// File is a file that the release installs.
type File struct {
	// Path is DIRECTORY/NAME or DIRECTORY/FOLDER/NAME, with a DIRECTORY from Options.Directories.
	Path string
	// Content is everything after the mark in the first line.
	Content []byte
	// Mode is the permission bits.
	Mode fs.FileMode
}

// Desired is the desired state. The zero value uninstalls the release: its files are removed and
// previous files restored.
type Desired struct {
	Files []File
	// Force replaces files of others, including other releases. They are kept, except those of
	// releases.
	Force bool
}

// Action is a change to a file.
type Action string

// Actions, as shown to users.
const (
	New       Action = "new"
	Changed   Action = "changed"
	Unchanged Action = "unchanged"
	Restored  Action = "restored"
	Removed   Action = "removed"
)

// Change is the planned change to a file.
type Change struct {
	Path   string
	Action Action
	// Old and New are the contents before and after, without the mark; nil for a missing file.
	Old, New []byte
	// Foreign means that the file lacks the release's mark: somebody else wrote the desired content.
	Foreign bool
	// Backup is the path at which the previous file is kept afterwards; empty if there is none or it
	// is restored.
	Backup string
	// Done is set by Apply.
	Done bool
}

// below reports whether name is inside dir, at any depth.
func below(dir, name string) bool { return strings.HasPrefix(name, dir+"/") }

func clean(name string) bool { return path.IsAbs(name) && path.Clean(name) == name && name != "/" }
