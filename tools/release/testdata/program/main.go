// Command program is a small program with a dependency, for tests.
package main

import "github.com/opencontainers/go-digest"

func main() { println(digest.FromString("").String()) }
