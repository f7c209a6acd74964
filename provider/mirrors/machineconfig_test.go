package mirrors

import (
	"encoding/base64"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestMachineConfig(t *testing.T) {
	data, err := MachineConfig("worker", []byte("text\n"), []byte("{}\n"))
	if err != nil {
		t.Fatal(err)
	}
	again, _ := MachineConfig("worker", []byte("text\n"), []byte("{}\n"))
	if string(data) != string(again) {
		t.Error("the same contents give other bytes")
	}
	var mc machineConfig
	if err := yaml.UnmarshalStrict(data, &mc); err != nil {
		t.Fatal(err)
	}
	files := mc.Spec.Config.Storage.Files
	if mc.Metadata.Name != "99-worker-archkeeper-registries" || mc.Spec.Config.Ignition.Version != "3.4.0" || len(files) != 2 || files[0].Path != DropInPath || files[1].Path != PolicyPath {
		t.Errorf("%s", data)
	}
	text, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(files[0].Contents.Source, "data:text/plain;charset=utf-8;base64,"))
	if err != nil || string(text) != "text\n" {
		t.Errorf("%s %v", text, err)
	}
}

func TestClassify(t *testing.T) {
	base := world{D("s.io -> m.io,n.io"), R("B b.io")}
	for name, tc := range map[string]struct {
		after world
		rule  Rule
		want  Disruption
	}{
		"equal bytes": {after: base, want: DisruptionNone},
		"a path that the operator has no rule for": {after: world{D("s.io -> m.io,n.io", "t.io -> m.io"), R("B b.io")}, want: DisruptionReboot},
		"a mirror by digest for another source":    {after: world{D("s.io -> m.io,n.io", "t.io -> m.io"), R("B b.io")}, rule: RuleSpecial, want: DisruptionReload},
		"one more mirror by digest":                {after: world{D("s.io -> m.io,o.io,n.io"), R("B b.io")}, rule: RuleSpecial, want: DisruptionReload},
		"a mirror by tag":                          {after: world{D("s.io -> m.io,n.io"), T("t.io -> m.io"), R("B b.io")}, rule: RuleSpecial, want: DisruptionDrain},
		"a mirror less":                            {after: world{D("s.io -> m.io"), R("B b.io")}, rule: RuleSpecial, want: DisruptionDrain},
		"another order":                            {after: world{D("s.io -> n.io,m.io"), R("B b.io")}, rule: RuleSpecial, want: DisruptionDrain},
		"one more blocked scope":                   {after: world{D("s.io -> m.io,n.io"), R("B b.io,c.io")}, rule: RuleSpecial, want: DisruptionDrain},
		"a blocked scope less":                     {after: world{D("s.io -> m.io,n.io")}, rule: RuleSpecial, want: DisruptionDrain},
		"a source that is blocked now":             {after: world{D("s.io -> m.io,n.io; Never"), R("B b.io")}, rule: RuleSpecial, want: DisruptionDrain},
		"a rule to reload":                         {after: world{}, rule: RuleReload, want: DisruptionReload},
		"a rule to drain":                          {after: world{D("s.io -> m.io,o.io,n.io"), R("B b.io")}, rule: RuleDrain, want: DisruptionDrain},
		"search registries":                        {after: world{D("s.io -> m.io,n.io"), R("B b.io", "S q.io")}, rule: RuleSpecial, want: DisruptionDrain},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := build(t, base...), build(t, tc.after...)
			equal := string(before.RegistriesConf()) == string(after.RegistriesConf())
			if got := Classify(before.Config, after.Config, equal, tc.rule); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
