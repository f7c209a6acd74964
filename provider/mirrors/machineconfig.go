package mirrors

import (
	"encoding/base64"
	"slices"

	"sigs.k8s.io/yaml"
)

// The files that a MachineConfig and the node agent write.
const (
	// DropInName sorts behind the files of distributions and of administrators.
	DropInName = "60-archkeeper.conf"
	DropInPath = "/etc/containers/registries.conf.d/" + DropInName
	PolicyPath = "/etc/containers/policy.json"
)

type (
	ignitionContents struct {
		Source string `json:"source"`
	}
	ignitionFile struct {
		Path      string           `json:"path"`
		Mode      int              `json:"mode"`
		Overwrite bool             `json:"overwrite"`
		Contents  ignitionContents `json:"contents"`
	}
	ignition struct {
		Ignition struct {
			Version string `json:"version"`
		} `json:"ignition"`
		Storage struct {
			Files []ignitionFile `json:"files"`
		} `json:"storage"`
	}
	machineConfig struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Config ignition `json:"config"`
		} `json:"spec"`
	}
)

// MachineConfigName gives 99-<pool>-archkeeper-registries.
func MachineConfigName(pool string) string { return "99-" + pool + "-archkeeper-registries" }

// MachineConfig writes a MachineConfig (machineconfiguration.openshift.io/v1,
// Ignition 3.4) that brings registries.conf to the nodes of a pool as a drop-in,
// and policy.json when it is not nil. The same contents give the same bytes:
// they name no version of the generator.
func MachineConfig(pool string, registriesConf, policyJSON []byte) ([]byte, error) {
	var mc machineConfig
	mc.APIVersion, mc.Kind = "machineconfiguration.openshift.io/v1", "MachineConfig"
	mc.Metadata.Name = MachineConfigName(pool)
	mc.Metadata.Labels = map[string]string{"machineconfiguration.openshift.io/role": pool}
	mc.Spec.Config.Ignition.Version = "3.4.0"
	add := func(path string, data []byte) {
		mc.Spec.Config.Storage.Files = append(mc.Spec.Config.Storage.Files, ignitionFile{
			Path: path, Mode: 0o644, Overwrite: true,
			Contents: ignitionContents{Source: "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString(data)},
		})
	}
	add(DropInPath, registriesConf)
	if policyJSON != nil {
		add(PolicyPath, policyJSON)
	}
	return yaml.Marshal(mc)
}

// Disruption is what a changed file does to a node, the mildest first.
type Disruption int

// The classes of disruption.
const (
	DisruptionNone   Disruption = iota // the bytes are equal: nothing is written
	DisruptionReload                   // CRI-O reads its files again
	DisruptionDrain                    // pods are evicted first
	DisruptionReboot                   // the node restarts
)

// String gives none, reload, drain or reboot.
func (d Disruption) String() string {
	switch d {
	case DisruptionNone:
		return "none"
	case DisruptionReload:
		return "reload"
	case DisruptionDrain:
		return "drain"
	case DisruptionReboot:
		return "reboot"
	}
	return "reboot"
}

// ParseDisruption reads reload, drain or reboot.
func ParseDisruption(text string) (Disruption, bool) {
	for _, d := range []Disruption{DisruptionReload, DisruptionDrain, DisruptionReboot} {
		if d.String() == text {
			return d, true
		}
	}
	return DisruptionNone, false
}

// Rule is what the machine-config operator has been told to do when a file
// changes (its node disruption policy).
type Rule int

// The rules.
const (
	RuleUnknown Rule = iota // no rule for the file: the node restarts
	RuleReload              // reload, restart of a service, or nothing
	RuleSpecial             // as for the operator's own registries.conf: it looks at the change
	RuleDrain
)

// Classify says what the machine-config operator does to a node when before
// becomes after. Under RuleSpecial mirrors by digest that are added need a
// reload alone, because no pull that works today goes another way for another
// content; everything else drains.
func Classify(before, after *Config, equal bool, rule Rule) Disruption {
	switch {
	case equal:
		return DisruptionNone
	case rule == RuleReload:
		return DisruptionReload
	case rule == RuleSpecial && onlyAddsDigestMirrors(before, after):
		return DisruptionReload
	case rule == RuleSpecial, rule == RuleDrain:
		return DisruptionDrain
	}
	return DisruptionReboot
}

func onlyAddsDigestMirrors(before, after *Config) bool {
	if !slices.Equal(before.SearchRegistries(), after.SearchRegistries()) {
		return false
	}
	old := map[string]Entry{}
	for _, e := range before.Entries() {
		old[e.Prefix] = e
	}
	for _, e := range after.Entries() {
		was := old[e.Prefix] // a new entry is compared with one without rules
		delete(old, e.Prefix)
		if e.Insecure != was.Insecure || e.Blocked != was.Blocked {
			return false
		}
		kept := 0
		for _, m := range e.Mirrors {
			switch {
			case kept < len(was.Mirrors) && was.Mirrors[kept] == m:
				kept++
			case m.Pull != PullDigest || m.Insecure:
				return false
			}
		}
		if kept < len(was.Mirrors) {
			return false
		}
	}
	return len(old) == 0
}
