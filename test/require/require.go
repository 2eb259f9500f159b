// Package require ends a test that cannot go on because of an error. What a test checks, it compares itself.
package require

import "testing"

// NoError ends the test if err is not nil, and prints what the error is about.
func NoError(t testing.TB, err error, about ...any) {
	t.Helper()
	if err == nil {
		return
	}
	for i, value := range about {
		if text, is := value.([]byte); is {
			about[i] = string(text)
		}
	}
	t.Fatal(append([]any{err}, about...)...)
}

// Value returns a function that returns value, or ends the test if err is not nil:
//
//	data := require.Value(os.ReadFile(name))(t)
func Value[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}
