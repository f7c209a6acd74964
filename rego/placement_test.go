package rego_test

import (
	"testing"

	"github.com/archkeeper/archkeeper/rego/lib/regotest"
)

func TestPlacementPolicy(t *testing.T) {
	regotest.Run(t, "placement", nil)
}
