package proxy

import "time"

// limits bound the resources that a client, the registry or a broken network can consume.
type limits struct {
	readHeader  time.Duration // for a client to send a request header, including its TLS handshake
	read        time.Duration // for a request with a body, which is refused but read to its end
	idle        time.Duration // between two requests on a client's connection
	write       time.Duration // for one write to a client, of at most bufferSize bytes
	maxWaiting  int64         // requests that wait for the registry
	quiet       time.Duration // without a request, before the proxy counts as idle
	waitTimeout time.Duration // for a response to containerd to start
	ping        time.Duration // for a response to Docker's ping to start
	silent      time.Duration // for which a connection without a request delays the end

	disconnectCheckAfter time.Duration // for the start of a response, before the client's disconnect is watched for
	dial                 time.Duration // for a connection to the registry
	ackTimeout           time.Duration // for it to acknowledge data or a keepalive probe, or the connection is broken
	handshake            time.Duration // for the TLS handshake on it
	head                 time.Duration // for the registry to start its response
	progressTimeout      time.Duration // without progress, before a body counts as broken off
	cacheTurn            time.Duration // of waiting for a body, before the rest comes from another cache
}

var defaultLimits = limits{
	readHeader:  10 * time.Second, // clients are on this node
	read:        30 * time.Second,
	idle:        90 * time.Second, // as long as Go's own clients keep a connection, so that the clients close it
	write:       60 * time.Second, // at least about 4 KiB/s
	maxWaiting:  1000,             // about 20 KiB each; a pulling node has tens of requests in flight
	quiet:       10 * time.Second, // longer than the pauses within a pull
	waitTimeout: 28 * time.Second, // containerd waits 30 s
	ping:        10 * time.Second, // Docker waits 15 s
	silent:      5 * time.Second,  // as in net/http

	disconnectCheckAfter: 20 * time.Millisecond,
	dial:                 3 * time.Second,  // takes milliseconds within a cluster
	ackTimeout:           10 * time.Second, // a pod or node that disappears closes no connections
	handshake:            30 * time.Second, // a registry from which a thousand nodes pull at once may need more than 10 s
	head:                 30 * time.Second, // object storage is slow
	progressTimeout:      30 * time.Second,
}

// defaultCacheLimits are those of requests to caches: a request that exceeds them goes to the registry.
// A cache asks the registry before it responds, for 5 s at most.
var defaultCacheLimits = limits{
	disconnectCheckAfter: defaultLimits.disconnectCheckAfter,
	dial:                 time.Second,
	ackTimeout:           5 * time.Second,
	handshake:            5 * time.Second,
	head:                 10 * time.Second,
	progressTimeout:      5 * time.Second,
	cacheTurn:            5 * time.Second, // costs a handshake
}

const (
	// cachePause is how long caches are not asked after a connection to them failed.
	cachePause = 5 * time.Second
	// slowBody is how much of a body a cache must deliver in a second of limits.turn: otherwise it has failed.
	slowBody = 64 << 10

	// maxHeaderBytes bounds a request's header. Runtimes send less than 1 KiB.
	maxHeaderBytes = 32 << 10
	// maxHeadBytes bounds a response's header. The registry sends less than 1 KiB.
	maxHeadBytes = 64 << 10
	// maxConnections is how many clients may be connected. A node's runtime opens a few for each image
	// that it pulls. A client that does not read takes 100 KiB, half of it in the kernel.
	maxConnections = 512
	// maxUpstream is how many connections to the registry may be in use: 32 images with three layers
	// each at once. One takes 300 KiB, and up to 600 KiB if its client reads and then stalls.
	maxUpstream = 96
	// receiveSize is how much the kernel may receive for a body (SO_RCVBUF); it uses up to twice as much
	// memory. Otherwise the limit is 6 MB or more, which a client that reads and then stalls would hold.
	receiveSize = 256 << 10
	// unsentSize is how much the kernel keeps for a client that does not read (TCP_NOTSENT_LOWAT).
	// Otherwise it is 2.5 MB on a loopback interface.
	unsentSize = 32 << 10

	// bufferSize is how much of a body is read before it is written to the client. One GiB takes 1.20
	// s of CPU time with 64 KiB, 1.10 s with 128 KiB and 1.04 s with 256 KiB, at 620, 690 and 730
	// MB/s, because proxy and client wait for each other less often. Larger buffers bring nothing.
	bufferSize = 256 << 10
	// maxLarge is how many buffers of that size may be in use: 16 MiB.
	maxLarge = 64
	// mediumBufferSize is for all other clients, and at the beginning of each body.
	mediumBufferSize = 32 << 10
	// fastAfter is how much a client must take without delay to get a large buffer: more than the
	// kernel takes for a client that does not read.
	fastAfter = 256 << 10
	// progressSize is how much of a resumed body must arrive to count as progress.
	progressSize = 64 << 10
	// smallBufferSize is for bodies up to this size: manifests and configurations. The pool drops
	// unused buffers, and a new buffer must be zeroed.
	smallBufferSize = 8 << 10
	// fillTimeout is how long the first bytes of a body wait for more to fill the buffer.
	fillTimeout = 20 * time.Millisecond

	// idleLifetime is how long an unused connection to the registry is kept. It spans the pauses
	// within a pull. A longer lifetime would occasionally save a handshake of a few milliseconds, but
	// cost the registry memory for every node of the cluster.
	idleLifetime = 10 * time.Second
	// maxIdle is how many idle connections are kept: a few parallel pulls with three layers each. A
	// connection takes about 30 KiB.
	maxIdle = 32
	// lookupTimeout and lookupInterval bound the time spent on a cluster DNS that is down.
	lookupTimeout  = 2 * time.Second
	lookupInterval = 2 * time.Second
)
