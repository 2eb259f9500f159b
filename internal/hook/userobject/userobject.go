// Package userobject reads the Secrets that the values name, and describes what is wrong with objects
// of the user. It changes none, and does not know what they are for.
package userobject

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Problem describes what is wrong with an object. Cause continues a sentence that begins with the name
// of the object.
type Problem struct{ Object, Cause, Remedy string }

// New returns the Problem of an object.
func New(object, cause, remedy string) Problem { return Problem{object, cause, remedy} }

func (p Problem) String() string { return p.Object + " " + p.Cause }

// Refuse returns one error for all problems, nil if there are none.
func Refuse(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = strings.ReplaceAll(fmt.Sprintf("%s; %s", p, p.Remedy), "\n", " ")
	}
	return exitcode.Refuse("%s", strings.Join(lines, "\n  "))
}

// Sentences turns causes that continue a sentence into complete ones.
func Sentences(problems []Problem) []Problem {
	for i := range problems {
		problems[i].Cause = "it " + problems[i].Cause
	}
	return problems
}

// Secret reads a Secret that the user names. If it cannot be used, it is nil. If foreign is set,
// init-hook must not have created it.
func Secret(
	ctx context.Context, r *release.Release, name, remedy string, foreign bool,
) (*corev1.Secret, []Problem, error) {
	object := r.Object("Secret", name)
	secret, err := r.ReadSecret(ctx, name)
	switch {
	case err != nil:
		return nil, nil, err
	case secret == nil:
		return nil, []Problem{{object, "does not exist", remedy}}, nil
	case foreign && secret.Labels[names.LabelManagedBy] == names.Manager:
		return nil, []Problem{{object, "was created by zarf-registry, which overwrites and deletes it",
			"name your own Secret"}}, nil
	}
	return secret, nil, nil
}
