package importmode

import (
	"os"
	"strings"
	"testing"
)

// The controller may do what the golden file says and nothing else. The
// end-to-end test runs it with the chart's rules and meets no Forbidden, so a
// rule cannot be missing; this one keeps another from being added in passing.
func TestTheChartGrantsTheGoldenRulesAndNoMore(t *testing.T) {
	template, err := os.ReadFile("../../deploy/charts/archkeeper/templates/_importmode.tpl")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/rbac.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	for line := range strings.Lines(string(template)) {
		if !strings.HasPrefix(line, "{{") {
			rules.WriteString(line)
		}
	}
	if rules.String() != string(golden) {
		t.Errorf("the chart grants\n%swant\n%s", rules.String(), golden)
	}
}
