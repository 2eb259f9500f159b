package content

import (
	"hash/maphash"
	"sync"
)

var lockSeed = maphash.MakeSeed()

// repositoryLocks are locks for repositories. A few share one. The zero value is not locked.
type repositoryLocks [64]sync.RWMutex

func (l *repositoryLocks) forRepository(repository string) *sync.RWMutex {
	return &l[maphash.String(lockSeed, repository)%uint64(len(l))]
}
