package proxy

import "time"

// limits bound what a client, the registry or a broken network can take.
type limits struct {
	readHeader time.Duration // for a client to send a request's header, its TLS handshake included
	read       time.Duration // for a request with a body, which is refused, but read to its end
	idle       time.Duration // between two requests of a client's connection
	write      time.Duration // for one write to a client, of bufferSize bytes at most
	waiting    int64         // requests that wait for the registry
	quiet      time.Duration // without a request, before the proxy counts as idle

	unwatched time.Duration // for the registry to begin an answer, before it is noticed that the client leaves
	dial      time.Duration // for a connection to the registry
	handshake time.Duration // for TLS on it
	head      time.Duration // for the registry to begin an answer
	stall     time.Duration // without progress, before a body counts as broken off
}

var defaultLimits = limits{
	readHeader: 10 * time.Second, // clients are on this node
	read:       30 * time.Second,
	idle:       90 * time.Second, // as long as Go's own clients keep a connection, so that it is they who close it
	write:      60 * time.Second, // about 4 KiB/s at least
	waiting:    1000,             // about 20 KiB each; a node that pulls has tens of requests under way
	quiet:      10 * time.Second, // longer than the pauses within a pull

	unwatched: 20 * time.Millisecond,
	dial:      3 * time.Second,  // inside a cluster it takes milliseconds
	handshake: 30 * time.Second, // a registry from which a thousand nodes pull at once may need more than 10 s
	head:      30 * time.Second, // object storage is slow, and a dead peer answers never
	stall:     30 * time.Second,
}

const (
	// maxHeaderBytes bounds the header of a request. A runtime sends less than 1 KiB.
	maxHeaderBytes = 32 << 10
	// maxHeadBytes bounds the header of an answer. The registry sends less than 1 KiB.
	maxHeadBytes = 64 << 10
	// bufferSize is what is read of a body before it is written on. A GiB took 1.20 s of CPU time with 64 KiB, 1.10 s with
	// 128 KiB and 1.04 s with 256 KiB, at 620, 690 and 730 MB/s, since proxy and client wait for each other less often; more
	// than that changes nothing.
	bufferSize = 256 << 10
	// progressSize is how much of a body must have come until it counts as progress after it broke off.
	progressSize = 64 << 10
	// smallBufferSize is for bodies that are not longer: manifests and configurations. A buffer that is not used for a while
	// goes, and the next one is cleared first.
	smallBufferSize = 8 << 10
	// fillTimeout is how long a body's first bytes wait for more to fill the buffer.
	fillTimeout = 20 * time.Millisecond
	// lingerTimeout is how long the rest of a refused ClientHello is read. Closing with unread data would reset the
	// connection, and the client might never see the answer.
	lingerTimeout = 500 * time.Millisecond

	// userTimeout is how long sent data may stay unacknowledged (TCP_USER_TIMEOUT): it finds a node that has died long
	// before limits.head does.
	userTimeout = 10 * time.Second
	// idleLifetime is how long an unused connection to the registry is kept: over the pauses within a pull. Longer would
	// save a handshake of a few milliseconds now and then, and cost the registry memory for each node of the cluster.
	idleLifetime = 10 * time.Second
	// maxIdle is how many are kept: a few parallel pulls with three layers each. One costs about 30 KiB.
	maxIdle = 32
	// lookupTimeout and lookupInterval keep a cluster DNS that is down from costing more than this, this often.
	lookupTimeout  = 2 * time.Second
	lookupInterval = 2 * time.Second
)
