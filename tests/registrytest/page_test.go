package registrytest_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/tests/registrytest"
)

func TestThePageIsUpToDate(t *testing.T) {
	page, err := os.ReadFile("../../docs/registries.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(page), string(registrytest.Page())); diff != "" {
		t.Fatalf("docs/registries.md is not what the cases say; run make generate (-page +cases):\n%s", diff)
	}
}

func TestCasesHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range registrytest.Cases() {
		if name := c.Group + "/" + c.Name; seen[name] || c.Name == "" {
			t.Errorf("%q is there twice or empty", name)
		} else {
			seen[name] = true
		}
	}
}
