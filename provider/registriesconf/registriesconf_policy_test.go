package registriesconf

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

func TestAPolicyIsFollowedAndItsLastGoodContentStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(`{"default": [{"type": "reject"}]}`)
	clock := clocktesting.NewFakeClock(time.Now())
	source, err := Open(Options{Policy: file, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := imageref.Parse("quay.io/a")
	if err != nil {
		t.Fatal(err)
	}
	blocked := func() bool {
		clock.Step(Interval)
		res := source.Current().Resolve(ref)
		return res.Err != nil && res.Err.Class == provider.ClassBlocked
	}
	if !blocked() {
		t.Error("a policy that rejects everything lets an image through")
	}
	put(`{"default": [{"type": "insecureAcceptAnything"}]}`)
	if blocked() {
		t.Error("a changed policy is not followed")
	}
	put(`{"default": [`)
	if blocked() {
		t.Error("a broken policy replaced the last good one")
	}
	if _, err := Open(Options{Policy: file}); err == nil {
		t.Error("a broken policy is taken at the start")
	}
}
