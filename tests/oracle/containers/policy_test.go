package containers

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.podman.io/image/v5/signature"

	"github.com/archkeeper/archkeeper/tests/oracle/world"
)

// policy.json made of allowed and blocked registries passes its real parser.
func TestPolicyJSON(t *testing.T) {
	accept, reject := "insecureAcceptAnything", "reject"
	for name, tc := range map[string]struct {
		in       *world.World
		fallback string
		want     map[string]string
	}{
		"nothing":              {in: (&world.World{}).D("a.io -> m.io")},
		"blocked":              {in: (&world.World{}).B("b.io", "*.c.io", "b.io:5000/x"), fallback: accept, want: map[string]string{"b.io": reject, "*.c.io": reject, "b.io:5000/x": reject}},
		"allowed":              {in: (&world.World{}).A("a.io/x", "*.c.io").D("a.io/x -> m.io"), fallback: reject, want: map[string]string{"a.io/x": accept, "*.c.io": accept}},
		"both: blocked counts": {in: (&world.World{}).A("a.io").B("b.io"), fallback: accept, want: map[string]string{"b.io": reject}},
		"tags in registrySources broke policy.json":      {in: (&world.World{}).A("a.io/x:1", "a.io/y"), fallback: reject, want: map[string]string{"a.io/y": accept}},
		"a blocked scope with a mirror keeps the mirror": {in: (&world.World{}).B("b.io", "c.io").D("b.io -> m.io"), fallback: accept, want: map[string]string{"c.io": reject}},
		"a mirrored scope inside a blocked one keeps it": {in: (&world.World{}).B("b.io").D("b.io/x -> m.io"), fallback: accept, want: map[string]string{"b.io": reject, "b.io/x": accept}},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := tc.in.Ours(t).PolicyJSON()
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == nil {
				if data != nil {
					t.Errorf("%s", data)
				}
				return
			}
			policy, err := signature.NewPolicyFromBytes(data)
			if err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			word := func(reqs signature.PolicyRequirements) string {
				if len(reqs) != 1 {
					t.Fatalf("%d requirements", len(reqs))
				}
				switch {
				case reflect.DeepEqual(reqs[0], signature.NewPRReject()):
					return reject
				case reflect.DeepEqual(reqs[0], signature.NewPRInsecureAcceptAnything()):
					return accept
				}
				return "?"
			}
			if got := word(policy.Default); got != tc.fallback {
				t.Errorf("default %s", got)
			}
			got := map[string]string{}
			for _, scope := range slices.Sorted(maps.Keys(policy.Transports["docker"])) {
				got[scope] = word(policy.Transports["docker"][scope])
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
