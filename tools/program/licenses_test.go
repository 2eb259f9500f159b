package program

import (
	"bytes"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestLicenses(t *testing.T) {
	t.Parallel()
	all := require.Value(Licenses(t.Context(), "github.com/zarf-dev/zarf-registry/cmd/..."))(t)
	for _, want := range []string{
		"Go standard library\n", "github.com/zarf-dev/zarf-registry\n", "k8s.io/client-go v", "github.com/distribution/distribution/v3 v",
		"Redistribution and use in source and binary forms", "Apache License", "Permission is hereby granted",
	} {
		if !bytes.Contains(all, []byte(want)) {
			t.Errorf("no %q", want)
		}
	}
	again, err := Licenses(t.Context(), "github.com/zarf-dev/zarf-registry/cmd/...")
	if err != nil || !bytes.Equal(all, again) {
		t.Errorf("another run gives other bytes (%v)", err)
	}
}
