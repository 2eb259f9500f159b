// Package registry is the OCI registry of the cluster: the handlers of
// github.com/distribution/distribution/v3 behind an HTTP front of its own.
//
// The front owns what distribution leaves out or does once and for all at its
// start: mutual TLS whose certificates and CAs follow the mounted files, a plain
// listener that opens and closes with the file of its users, who may read and who
// may write, health and metrics on ports of their own, deadlines that end stalled
// connections but no slow ones, and draining. Distribution
// stores and serves: nothing here knows manifests, and of blobs only where their
// bytes are.
//
// It does not issue certificates, make credentials, expire content or replicate,
// and it is not a pull-through cache.
//
// Listeners speak HTTP/1.1 only. A pull is a handful of large bodies: over
// HTTP/2 they would share one connection, its flow-control window, its lock and
// so one core, and every peer (containerd, CRI-O, oras, the node proxy) speaks
// HTTP/1.1 with a pool of connections. It also leaves out a protocol whose
// stream resets have been a way to exhaust servers.
package registry
