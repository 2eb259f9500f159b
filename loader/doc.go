// Package loader contains C programs and the Go tests that drive them.
//
// loader.c is a freestanding static program for amd64 and arm64. It runs in a pod whose image is a node's
// pause image, joins and verifies the payload described in package internal/payload/injector, writes its program
// and executes it. With -s it supervises the program and replaces it when the payload changes. probe.c
// is the program of the image for verifying pulls. The Makefile builds both.
package loader
