package policy_test

import (
	"io/fs"
	"path"
	"testing"

	constraintclient "github.com/open-policy-agent/frameworks/constraint/pkg/client"
	"github.com/open-policy-agent/frameworks/constraint/pkg/client/drivers/rego"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/gator"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/gator/verify"

	"github.com/archkeeper/archkeeper/policies"
)

// newClient gives Gatekeeper's client with both engines and the world's
// providers. The builtin external_data belongs to the process: the client made
// last answers for all, so these tests do not run in parallel.
func (w *world) newClient(args ...rego.Arg) func(opts ...gator.Opt) (gator.Client, error) {
	return func(opts ...gator.Opt) (gator.Client, error) {
		return gator.NewOPAClient(false, append(opts, gator.WithK8sCEL(), func() ([]constraintclient.Opt, []rego.Arg, error) {
			return nil, append(args, rego.AddExternalDataProviderCache(w.Cache)), nil
		})...)
	}
}

// TestConstraints runs the suite of every room through Gatekeeper's own client,
// against a provider that knows what the room's fixture says.
func TestConstraints(t *testing.T) {
	w := newWorld(t)
	files := policies.FS()
	suites, err := fs.Glob(files, "constraints/*/suite.yaml")
	if err != nil || len(suites) == 0 {
		t.Fatalf("%d suites, %v", len(suites), err)
	}
	for _, file := range suites {
		dir := path.Dir(file)
		t.Run(path.Base(dir), func(t *testing.T) {
			if fixture, err := fs.ReadFile(files, path.Join(dir, "provider.yaml")); err == nil {
				w.learn(t, fixture)
			}
			runSuite(t, w, files, file)
		})
	}
}

// TestExpansion runs the suite of the expansion templates with the fixture of
// image-architectures, whose constraint it uses.
func TestExpansion(t *testing.T) {
	w := newWorld(t)
	files := policies.FS()
	fixture, err := fs.ReadFile(files, "constraints/image-architectures/provider.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w.learn(t, fixture)
	runSuite(t, w, files, "expansion/suite.yaml")
}

func runSuite(t *testing.T, w *world, files fs.FS, file string) {
	t.Helper()
	suites, err := verify.ReadSuites(files, file, file, false)
	if err != nil || len(suites) != 1 {
		t.Fatalf("%d suites, %v", len(suites), err)
	}
	runner, err := verify.NewRunner(files, w.newClient())
	if err != nil {
		t.Fatal(err)
	}
	suites[0].AbsolutePath = file
	result := runner.Run(t.Context(), &everything{}, suites[0])
	if result.Error != nil || len(result.TestResults) == 0 {
		t.Fatalf("%d tests, %v", len(result.TestResults), result.Error)
	}
	for _, test := range result.TestResults {
		t.Run(test.Name, func(t *testing.T) {
			if test.Error != nil {
				t.Fatal(test.Error)
			}
			if test.Skipped {
				t.Fatal("a test must not be skipped")
			}
			for _, c := range test.CaseResults {
				t.Run(c.Name, func(t *testing.T) {
					if c.Error != nil || c.Skipped {
						t.Errorf("skipped %t, %v", c.Skipped, c.Error)
					}
				})
			}
		})
	}
}

// everything is the filter that passes all tests and cases.
type everything struct{}

func (*everything) MatchesTest(*verify.Test) bool   { return true }
func (*everything) MatchesCase(string, string) bool { return true }
