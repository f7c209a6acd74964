package importmode

import (
	"fmt"
	"time"
)

// Mode is a value of imageStreamImportMode on config.openshift.io/v1 Image.
type Mode string

// The values that the API knows. Unset is read, and never written.
const (
	Unset            Mode = ""
	Legacy           Mode = "Legacy"
	PreserveOriginal Mode = "PreserveOriginal"
)

// Release is what decides of a ClusterVersion.
type Release struct {
	// Image is status.desired.image; empty until the cluster knows its payload.
	Image string
	// Architecture is status.desired.architecture: "Multi", or "" for a payload
	// of one architecture. An upgrade clears it for a while.
	Architecture string
	// Completed is true when any entry of status.history is Completed.
	Completed bool
	// Latest is status.history[0].state; empty without history.
	Latest string
}

// Facts is all that the decision depends on.
type Facts struct {
	// Spec and Status are spec. and status.imageStreamImportMode of Image/cluster.
	Spec, Status Mode
	// Release is nil when there is no ClusterVersion.
	Release *Release
	// WhenMissing is the mode to take without a ClusterVersion; Unset holds.
	WhenMissing Mode
	// Last is the mode that this controller wrote last; Unset when it has not.
	Last Mode
}

// DemotionDelay is how long a decision for Legacy must stand before it
// replaces PreserveOriginal: every change redeploys the OpenShift API server.
const DemotionDelay = 2 * time.Minute

// Decision says what status.imageStreamImportMode should be.
type Decision struct {
	// Want is the mode to have; Unset means: leave the field as it is.
	Want Mode
	// Delay is how long this same decision must have stood before it is written.
	Delay time.Duration
	// Held is true when the facts do not allow a decision yet.
	Held bool
	// Degraded is true when a hold that lasts is a fault of the cluster.
	Degraded bool
	// Reason in CamelCase and Message for conditions and events.
	Reason, Message string
}

// Settled tells whether nothing is to be written.
func (d Decision) Settled(status Mode) bool { return d.Want == Unset || d.Want == status }

// Reasons of a Decision.
const (
	ReasonOverride              = "SpecOverride"
	ReasonMultiPayload          = "MultiArchPayload"
	ReasonSinglePayload         = "SingleArchPayload"
	ReasonFirstInstall          = "FirstInstall"
	ReasonUpgradeInProgress     = "UpgradeInProgress"
	ReasonClusterVersionMissing = "ClusterVersionMissing"
	ReasonUnknownValue          = "UnknownValue"
)

// Decide follows the precedence that image streams have: the spec of
// Image/cluster, then the payload's architecture. It never wants Unset, and
// holds while an upgrade hides the payload's architecture.
func Decide(f Facts) Decision {
	switch f.Spec {
	case Legacy, PreserveOriginal:
		return Decision{Want: f.Spec, Reason: ReasonOverride, Message: fmt.Sprintf("spec.imageStreamImportMode is %s", f.Spec)}
	case Unset:
	default:
		return f.hold(ReasonUnknownValue, fmt.Sprintf("spec.imageStreamImportMode %q is not a mode that this version knows", f.Spec), true)
	}
	r := f.Release
	if r == nil || r.Image == "" {
		what := "there is no ClusterVersion"
		if r != nil {
			what = "ClusterVersion names no payload image yet"
		}
		if f.WhenMissing == Unset {
			return f.hold(ReasonClusterVersionMissing, what, true)
		}
		return f.demote(f.WhenMissing, ReasonClusterVersionMissing, what+"; configured to take "+string(f.WhenMissing))
	}
	switch {
	case r.Architecture == "Multi":
		return Decision{Want: PreserveOriginal, Reason: ReasonMultiPayload, Message: "the payload is multi-architecture"}
	case r.Architecture != "":
		return f.hold(ReasonUnknownValue, fmt.Sprintf("status.desired.architecture %q of ClusterVersion is not one that this version knows", r.Architecture), true)
	case !r.Completed:
		return Decision{Want: Legacy, Reason: ReasonFirstInstall, Message: "no version was completed yet and the payload has one architecture"}
	case r.Latest == "Completed":
		return f.demote(Legacy, ReasonSinglePayload, "the payload has one architecture")
	default:
		return f.hold(ReasonUpgradeInProgress, "an upgrade is under way, during which the payload's architecture is not known", false)
	}
}

// hold leaves the field alone, unless someone cleared it: then the value that
// stood there before comes back.
func (f Facts) hold(reason, message string, degraded bool) Decision {
	d := Decision{Held: true, Degraded: degraded, Reason: reason, Message: message}
	if f.Status == Unset {
		d.Want = f.Last
	}
	return d
}

// demote delays the step from PreserveOriginal down to Legacy.
func (f Facts) demote(to Mode, reason, message string) Decision {
	d := Decision{Want: to, Reason: reason, Message: message}
	if f.Status == PreserveOriginal && to == Legacy {
		d.Delay = DemotionDelay
	}
	return d
}
