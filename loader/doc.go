// Package loader is a folder of C and of the Go tests that drive it; it has no Go code of its own.
//
// loader.c is a freestanding static program for amd64 and arm64 that runs in a pod whose image is a node's pause image: it puts together and
// checks the payload that package internal/injector describes, writes the program that comes out, and executes it. probe.c is the
// program of the image that proves that a node can pull. The Makefile is the only place that knows how they are built.
package loader
