// Package hostfiles writes the files of one owner, a release, into directories of a node that belong to others, and takes them
// out again. Every file is there whole or not at all, whatever happens in between: it is written beside its place, synced, and
// renamed. What was there before is kept under another name, by a hard link, and is put back by a rename, so that it is the
// same file again: inode, owner, mode, times and label.
//
// The release's files carry a mark in their first line. Files of others are neither replaced nor removed, unless the caller
// says so. All that can be found out before the first write is, and is refused then: [Tree.Plan] only reads, [Plan.Apply] only
// writes. A run that was ended in between, at whatever point, needs no repair: the next one comes to the same end.
//
// It knows no format and shows no contents; internal/noderuntime does.
package hostfiles

import (
	"bytes"
	"io/fs"
	"path"
	"strings"
)

const (
	// markPrefix begins the files of all releases. The line is a comment in TOML and YAML, and PEM's readers skip it.
	markPrefix = "# Written by zarf-registry, release "
	markSuffix = ". Changes are overwritten.\n"
	// backupSuffix names what was there before, a file or a directory.
	backupSuffix = ".before-zarf-registry"
	// What is being written, or taken away, is named with both of these around it.
	temporaryPrefix, temporarySuffix = ".", ".zarf-registry-new"
	// maxSize bounds the files that are read whole, in bytes. A Secret cannot hold more, so no file of a release is larger.
	maxSize = 1 << 20
	// maxMark bounds the first line that is looked at: a namespace and a name have 63 and 53 bytes at most.
	maxMark = 256
)

// Mark is the first line of the files of a release, NAMESPACE/NAME.
func Mark(release string) string { return markPrefix + release + markSuffix }

// Backup names what is kept of the file or the directory at path.
func Backup(path string) string { return path + backupSuffix }

func temporary(base string) string { return temporaryPrefix + base + temporarySuffix }

func isTemporary(base string) bool {
	return strings.HasPrefix(base, temporaryPrefix) && strings.HasSuffix(base, temporarySuffix) &&
		len(base) > len(temporaryPrefix)+len(temporarySuffix)
}

// reserved says whether a name is one that only this package gives.
func reserved(base string) bool { return isTemporary(base) || strings.HasSuffix(base, backupSuffix) }

// markOf returns the release that wrote a file, empty if none did, and what comes after the mark.
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

// File is one that the release wants on the node.
type File struct {
	// Path is DIRECTORY/NAME or DIRECTORY/FOLDER/NAME, where DIRECTORY is one that the tree was opened with.
	Path string
	// Content is all but the first line, the mark.
	Content []byte
	// Mode are the permissions.
	Mode fs.FileMode
}

// Wants is what Plan goes by. The zero value wants nothing: all files of the release are taken away, and what was there before
// is put back.
type Wants struct {
	Files []File
	// Force lets Files replace what others wrote, a release under another name included. What was there before is kept, except
	// another release's.
	Force bool
	// Replace are the paths of Files where that is so without Force.
	Replace []string
	// Away are folders of others, DIRECTORY/FOLDER, that are moved aside while they are named here, and put back by a Plan
	// that does not name them.
	Away []string
}

// Action is what is done to a file.
type Action string

// The actions, in words for people.
const (
	New       Action = "new"
	Changed   Action = "changed"
	Unchanged Action = "unchanged"
	PutBack   Action = "put back"
	Removed   Action = "removed"
)

// Change is what a plan does to one file.
type Change struct {
	// Path is the file's; a folder's where a whole folder is moved aside or put back.
	Path   string
	Action Action
	// Old and New are its contents before and after, without the mark; nil where there is no file, and for folders.
	Old, New []byte
	// Foreign says that the file is not marked as the release's, because somebody else wrote exactly what is wanted.
	Foreign bool
	// Backup is where what was there before is kept afterwards; empty where there was nothing, or it is back.
	Backup string
	// Done says that Apply has done it.
	Done bool
}

// Refusal says why nothing can be done. Nothing was changed then.
type Refusal struct{ Problems []string }

func (r *Refusal) Error() string { return strings.Join(r.Problems, "\n") }

// below says whether name is in dir, at whatever depth.
func below(dir, name string) bool { return strings.HasPrefix(name, dir+"/") }

func clean(name string) bool { return path.IsAbs(name) && path.Clean(name) == name && name != "/" }
