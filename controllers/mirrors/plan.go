package mirrors

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// ParseDelivery reads one of the deliveries.
func ParseDelivery(text string) (mirrors.Delivery, error) {
	switch d := mirrors.Delivery(text); d {
	case mirrors.DeliveryAuto, mirrors.DeliveryInspector, mirrors.DeliveryNodes, mirrors.DeliveryMachineConfig:
		return d, nil
	}
	return "", fmt.Errorf("delivery %q is none of auto, inspector, nodes, machineconfig", text)
}

// Limit is how many bytes a ConfigMap may hold; the API server takes 1 MiB with
// everything around.
const Limit = 1<<20 - 16<<10

// Facts are what Make decides on.
type Facts struct {
	Objects []mirrors.Object
	// Protected images stay reachable whatever is blocked.
	Protected []imageref.Reference
	Delivery  mirrors.Delivery
	// MachineConfigOperator tells whether it runs on this cluster.
	MachineConfigOperator bool
	// Policy asks for policy.json too.
	Policy bool
}

// Plan is what the cluster should hold.
type Plan struct {
	// Data of the ConfigMap; nil when it would be larger than Limit, and then
	// what is there stays.
	Data map[string]string
	// Result of the merge.
	Result *mirrors.Result
	// Delivery in force, never DeliveryAuto.
	Delivery mirrors.Delivery
	// Size of the data in bytes.
	Size int
	// Objects tells of each object what became of it.
	Objects []ObjectStatus
}

// ObjectStatus is what became of one object.
type ObjectStatus struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Accepted is false when a part was rejected or contradicts another object.
	Accepted  bool     `json:"accepted"`
	Rejected  []string `json:"rejected,omitempty"`
	Conflicts []string `json:"conflicts,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
	// UnsupportedByContainerd is what nodes with containerd cannot follow.
	UnsupportedByContainerd []string `json:"unsupportedByContainerd,omitempty"`
}

// Make merges the objects and says what to store.
func Make(f Facts) (Plan, error) {
	res := mirrors.Build(f.Objects, mirrors.Options{Protected: f.Protected})
	p := Plan{Result: res, Delivery: f.Delivery, Objects: objectStatus(f.Objects, res)}
	if p.Delivery == mirrors.DeliveryAuto || p.Delivery == "" {
		p.Delivery = mirrors.DeliveryNodes
		if f.MachineConfigOperator {
			p.Delivery = mirrors.DeliveryInspector
		}
	}
	conf := res.RegistriesConf()
	sum := sha256.Sum256(conf)
	data := map[string]string{mirrors.KeyConf: string(conf), mirrors.KeySHA256: hex.EncodeToString(sum[:]), mirrors.KeyDelivery: string(p.Delivery)}
	if f.Policy {
		policy, err := res.PolicyJSON()
		if err != nil {
			return Plan{}, fmt.Errorf("render policy.json: %w", err)
		}
		if policy != nil {
			data[mirrors.KeyPolicy] = string(policy)
		}
	}
	for key, value := range data {
		p.Size += len(key) + len(value)
	}
	if p.Size <= Limit {
		p.Data = data
	}
	return p, nil
}

// objectStatus sorts problems by their object; sorted by kind and name.
func objectStatus(objects []mirrors.Object, res *mirrors.Result) []ObjectStatus {
	type id struct{ kind, name string }
	byID := map[id]*ObjectStatus{}
	for _, o := range objects {
		byID[id{o.Kind(), o.Name()}] = &ObjectStatus{Kind: o.Kind(), Name: o.Name(), Accepted: true}
	}
	add := func(problems []mirrors.Problem, to func(*ObjectStatus, string)) {
		for _, p := range problems {
			if s := byID[id{p.Kind, p.Name}]; s != nil {
				to(s, p.Field+": "+p.Reason)
			}
		}
	}
	add(res.Rejected, func(s *ObjectStatus, text string) { s.Rejected, s.Accepted = append(s.Rejected, text), false })
	add(res.Conflicts, func(s *ObjectStatus, text string) { s.Conflicts, s.Accepted = append(s.Conflicts, text), false })
	add(res.Warnings, func(s *ObjectStatus, text string) { s.Warnings = append(s.Warnings, text) })
	add(res.Notes, func(s *ObjectStatus, text string) { s.Warnings = append(s.Warnings, text) })
	add(res.Unsupported(), func(s *ObjectStatus, text string) {
		s.UnsupportedByContainerd = append(s.UnsupportedByContainerd, text)
	})
	out := make([]ObjectStatus, 0, len(byID))
	for _, s := range byID {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b ObjectStatus) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return out
}
