package mirrors

import (
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

func TestAPolicyIsJudgedByItsMostSpecificScope(t *testing.T) {
	policy, err := ParsePolicy([]byte(`{
	  "default": [{"type": "reject"}],
	  "transports": {"docker": {
	    "docker.io": [{"type": "insecureAcceptAnything"}],
	    "docker.io/library/evil": [{"type": "reject"}],
	    "docker.io/library/evil:fixed": [{"type": "insecureAcceptAnything"}],
	    "quay.io/signed": [{"type": "signedBy", "keyType": "GPGKeys"}],
	    "*.corp.example": [{"type": "insecureAcceptAnything"}],
	    "bad.corp.example": [{"type": "reject"}],
	    "reg.local:5000/team": [{"type": "insecureAcceptAnything"}]
	  }}}`))
	if err != nil {
		t.Fatal(err)
	}
	for reference, want := range map[string]bool{
		"busybox":                  true,
		"library/evil":             false,
		"evil:fixed":               true,
		"evil:other":               false,
		"evilest":                  true,
		"quay.io/signed/app":       true,
		"quay.io/other":            false,
		"a.corp.example/x":         true,
		"a.b.corp.example/x":       true,
		"a.corp.example:5000/x":    true,
		"bad.corp.example/x":       false,
		"reg.local:5000/team/a":    true,
		"reg.local:5000/other":     false,
		"reg.local/team":           false,
		"reg.local:5000/teammates": false,
	} {
		ref, err := imageref.Parse(reference)
		if err != nil {
			t.Fatal(err)
		}
		if got := policy.Permits(ref); got != want {
			t.Errorf("%s: permitted %v, want %v", reference, got, want)
		}
		res := (*Config)(nil).Under(policy).Resolve(ref)
		if blocked := res.Err != nil && res.Err.Class == provider.ClassBlocked && len(res.Candidates) == 0; blocked == want {
			t.Errorf("%s: resolved to %+v", reference, res)
		}
	}
}

func TestAPolicyThatContainersWouldRefuseIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                               "policy.json",
		`{}`:                              "no default",
		`{"default": []}`:                 "default has no requirement",
		`{"default": [{"type":"maybe"}]}`: `"maybe"`,
		`{"default": [{"type":"reject"}], "transports": {"docker": {"a.io": []}}}`: `transports.docker["a.io"]`,
	} {
		if _, err := ParsePolicy([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %s", text, err, want)
		}
	}
}

// What we render is what we read: the two halves mean the same.
func TestTheRenderedPolicyIsReadBack(t *testing.T) {
	objects, err := Decode(NamedFile{Name: "x.yaml", Data: []byte(`{apiVersion: config.openshift.io/v1, kind: Image, metadata: {name: cluster}, spec: {registrySources: {allowedRegistries: [quay.io, "*.corp.example"]}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := Build(objects, Options{}).PolicyJSON()
	if err != nil {
		t.Fatal(err)
	}
	policy, err := ParsePolicy(text)
	if err != nil {
		t.Fatal(err)
	}
	for reference, want := range map[string]bool{"quay.io/a": true, "x.corp.example/a": true, "busybox": false} {
		ref, _ := imageref.Parse(reference)
		if got := policy.Permits(ref); got != want {
			t.Errorf("%s: permitted %v, want %v", reference, got, want)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(`{"default": [{"type":"reject"}], "transports": {"docker": {"a.io": [{"type":"insecureAcceptAnything"}]}}}`))
	ref, _ := imageref.Parse("a.io/b:c")
	f.Fuzz(func(_ *testing.T, data []byte) {
		if p, err := ParsePolicy(data); err == nil {
			p.Permits(ref)
		}
	})
}
