package proxy

import (
	"sync"
	"sync/atomic"
)

// buffers holds the bodies' buffers. Large ones are limited, and only clients that read without delay
// get them; without one, a body takes more steps.
type buffers struct {
	small, medium, large *sync.Pool
	freeLarge            atomic.Int64
	bytes                atomic.Int64 // in use
}

func newBuffers() *buffers {
	b := &buffers{small: newPool(smallBufferSize), medium: newPool(mediumBufferSize), large: newPool(bufferSize)}
	b.freeLarge.Store(maxLarge)
	return b
}

func newPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		buffer := make([]byte, size)
		return &buffer
	}}
}

// get returns a buffer for a body of length bytes, or of unknown length if that is negative.
func (b *buffers) get(length int64, fast bool) (buffer *[]byte) {
	switch {
	case length >= 0 && length <= smallBufferSize:
		buffer = b.small.Get().(*[]byte)
	case fast && b.freeLarge.Add(-1) >= 0:
		buffer = b.large.Get().(*[]byte)
	default:
		if fast {
			b.freeLarge.Add(1)
		}
		buffer = b.medium.Get().(*[]byte)
	}
	b.bytes.Add(int64(len(*buffer)))
	return buffer
}

func (b *buffers) put(buffer *[]byte) {
	b.bytes.Add(-int64(len(*buffer)))
	switch len(*buffer) {
	case smallBufferSize:
		b.small.Put(buffer)
	case mediumBufferSize:
		b.medium.Put(buffer)
	default:
		b.large.Put(buffer)
		b.freeLarge.Add(1)
	}
}
