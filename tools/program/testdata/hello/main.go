// Command hello stands in for the project's programs in tests.
package main

import (
	"fmt"

	"github.com/zarf-dev/zarf-registry/internal/version"
)

func main() { fmt.Println("hello, I am", version.Version) }
