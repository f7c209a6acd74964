// Package config is the configuration of the controllers, of admission and of
// explain: one YAML document, read strictly. A field that is unknown, given twice
// or out of range is refused with its path, so that a typing error never silently
// means the default.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	sigsjson "sigs.k8s.io/json"

	"github.com/archkeeper/archkeeper/internal/document"
)

// What a document says it is.
const (
	APIVersion = "archkeeper.io/v1alpha1"
	Kind       = "Configuration"
)

// MaxSize of a document, in bytes.
const MaxSize = 1 << 20

// Configuration is the document.
type Configuration struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Placement  Placement `json:"placement"`
}

// Mode says whether decisions are acted on.
type Mode string

// The modes.
const (
	ModeEnforce Mode = "enforce"
	// ModeObserve decides and records, and changes nothing.
	ModeObserve Mode = "observe"
)

// UserArchitecture says what becomes of an architecture that the user chose.
type UserArchitecture string

// What becomes of a user's choice.
const (
	// UserArchitecturePreserve leaves it alone, also where it does not fit.
	UserArchitecturePreserve UserArchitecture = "preserve"
	// UserArchitectureTighten adds the images' architectures beside it.
	UserArchitectureTighten UserArchitecture = "tighten"
)

// Placement says which pods are placed, and how. Its JSON form is the policy's
// input.config.
type Placement struct {
	// Mode is enforce (the default) or observe.
	Mode Mode `json:"mode"`
	// Gate is the scheduling gate on which pods wait: archkeeper.io/architecture.
	Gate string `json:"gate"`
	// HoldDeadline, from the pod's creation, after which it is not held any
	// longer: 2m. At most 24h.
	HoldDeadline Duration `json:"holdDeadline"`
	// FallbackArchitecture is applied at the deadline; empty (the default)
	// releases the pod unchanged.
	FallbackArchitecture string `json:"fallbackArchitecture"`
	// SchedulableArchitectures narrow what pods are placed on; empty: all.
	SchedulableArchitectures []string `json:"schedulableArchitectures"`
	// UserArchitecture is preserve (the default) or tighten.
	UserArchitecture UserArchitecture `json:"userArchitecture"`
	// ConstrainAlways adds the requirement also where the images run on every
	// architecture of the cluster: true, because a node of another may join.
	ConstrainAlways bool `json:"constrainAlways"`
	// Preferred weighs architectures against each other.
	Preferred []Preference `json:"preferred"`
	// TolerateArchitectureTaints tolerates kubernetes.io/arch=<architecture>:NoSchedule
	// for the architectures that the images run on.
	TolerateArchitectureTaints bool `json:"tolerateArchitectureTaints"`
	// Pin sets container images to the digest that was inspected.
	Pin bool `json:"pin"`
	// ExcludedNamespaces are names, or patterns with *, beside our own
	// namespace and Gatekeeper's: kube-*, openshift-*, hypershift-*.
	ExcludedNamespaces []string `json:"excludedNamespaces"`
	// NamespaceSelector and PodSelector choose by label; empty: everything.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       metav1.LabelSelector `json:"podSelector"`
}

// Preference is the weight of one architecture, 1 to 100.
type Preference struct {
	Architecture string `json:"architecture"`
	Weight       int32  `json:"weight"`
}

// Duration is written as Go does: 90s, 2m, 1h30m.
type Duration time.Duration

// MarshalJSON writes the duration as text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads the duration from text.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return &json.UnmarshalTypeError{Value: "a value that is no duration such as 2m"}
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is no duration such as 2m", text)
	}
	*d = Duration(parsed)
	return nil
}

// Default is the configuration of an empty document.
func Default() Configuration {
	return Configuration{APIVersion: APIVersion, Kind: Kind, Placement: Placement{
		Mode:                     ModeEnforce,
		Gate:                     "archkeeper.io/architecture",
		HoldDeadline:             Duration(2 * time.Minute),
		SchedulableArchitectures: []string{},
		UserArchitecture:         UserArchitecturePreserve,
		ConstrainAlways:          true,
		Preferred:                []Preference{},
		ExcludedNamespaces:       []string{"kube-*", "openshift-*", "hypershift-*"},
	}}
}

// maxHoldDeadline keeps a typing error from holding pods for ever.
const maxHoldDeadline = 24 * time.Hour

// Parse reads a text of one document. What it leaves out has its default. The error names
// the path of each offending field.
func Parse(text []byte) (Configuration, error) {
	if len(text) > MaxSize {
		return Configuration{}, fmt.Errorf("configuration: larger than %d bytes", MaxSize)
	}
	raw, err := document.One(text)
	if err != nil {
		return Configuration{}, fmt.Errorf("configuration: %w", err)
	}
	// Durations are read apart, so that an error of theirs has a path too.
	if err := checkDuration(raw); err != nil {
		return Configuration{}, err
	}
	c := Default()
	c.APIVersion, c.Kind = "", ""
	strict, err := sigsjson.UnmarshalStrict(raw, &c)
	if err != nil {
		return Configuration{}, fmt.Errorf("configuration: %w", withPath(err))
	}
	if len(strict) > 0 {
		return Configuration{}, fmt.Errorf("configuration: %w", errors.Join(strict...))
	}
	if problems := c.validate(); len(problems) > 0 {
		return Configuration{}, fmt.Errorf("configuration: %w", problems.ToAggregate())
	}
	return c, nil
}

func checkDuration(raw []byte) error {
	var shape struct {
		Placement struct {
			HoldDeadline json.RawMessage `json:"holdDeadline"`
		} `json:"placement"`
	}
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(raw, &shape); err != nil {
		return nil //nolint:nilerr // the shape is judged, with its path, by who reads all of it
	}
	if shape.Placement.HoldDeadline == nil || string(shape.Placement.HoldDeadline) == "null" {
		return nil
	}
	var d Duration
	if err := d.UnmarshalJSON(shape.Placement.HoldDeadline); err != nil {
		return fmt.Errorf("configuration: placement.holdDeadline: %s is no duration such as 2m", shape.Placement.HoldDeadline)
	}
	return nil
}

// withPath puts the path in front of a type error.
func withPath(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Errorf("%s: %w", wrong.Field, err)
	}
	return err
}

var namespacePattern = regexp.MustCompile(`^[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?$`)

func (c *Configuration) validate() field.ErrorList {
	var all field.ErrorList
	if c.APIVersion != APIVersion {
		all = append(all, field.NotSupported(field.NewPath("apiVersion"), c.APIVersion, []string{APIVersion}))
	}
	if c.Kind != Kind {
		all = append(all, field.NotSupported(field.NewPath("kind"), c.Kind, []string{Kind}))
	}
	return append(all, c.Placement.validate(field.NewPath("placement"))...)
}

func (p *Placement) validate(at *field.Path) field.ErrorList {
	var all field.ErrorList
	if modes := []Mode{ModeEnforce, ModeObserve}; !slices.Contains(modes, p.Mode) {
		all = append(all, field.NotSupported(at.Child("mode"), p.Mode, modes))
	}
	if values := []UserArchitecture{UserArchitecturePreserve, UserArchitectureTighten}; !slices.Contains(values, p.UserArchitecture) {
		all = append(all, field.NotSupported(at.Child("userArchitecture"), p.UserArchitecture, values))
	}
	for _, problem := range validation.IsQualifiedName(p.Gate) {
		all = append(all, field.Invalid(at.Child("gate"), p.Gate, problem))
	}
	if d := time.Duration(p.HoldDeadline); d <= 0 || d > maxHoldDeadline {
		all = append(all, field.Invalid(at.Child("holdDeadline"), d.String(), "must be above 0 and at most 24h"))
	}
	if p.FallbackArchitecture != "" {
		all = append(all, architecture(at.Child("fallbackArchitecture"), p.FallbackArchitecture)...)
		if len(p.SchedulableArchitectures) > 0 && !slices.Contains(p.SchedulableArchitectures, p.FallbackArchitecture) {
			all = append(all, field.Invalid(at.Child("fallbackArchitecture"), p.FallbackArchitecture, "is not among schedulableArchitectures"))
		}
	}
	for i, a := range p.SchedulableArchitectures {
		path := at.Child("schedulableArchitectures").Index(i)
		all = append(all, architecture(path, a)...)
		if slices.Contains(p.SchedulableArchitectures[:i], a) {
			all = append(all, field.Duplicate(path, a))
		}
	}
	for i, preference := range p.Preferred {
		path := at.Child("preferred").Index(i)
		all = append(all, architecture(path.Child("architecture"), preference.Architecture)...)
		if preference.Weight < 1 || preference.Weight > 100 {
			all = append(all, field.Invalid(path.Child("weight"), preference.Weight, "must be 1 to 100"))
		}
		if slices.ContainsFunc(p.Preferred[:i], func(q Preference) bool { return q.Architecture == preference.Architecture }) {
			all = append(all, field.Duplicate(path.Child("architecture"), preference.Architecture))
		}
	}
	for i, pattern := range p.ExcludedNamespaces {
		if !namespacePattern.MatchString(pattern) {
			all = append(all, field.Invalid(at.Child("excludedNamespaces").Index(i), pattern, "must be a namespace, or a pattern of one with *"))
		}
	}
	selectorOptions := metav1validation.LabelSelectorValidationOptions{}
	all = append(all, metav1validation.ValidateLabelSelector(&p.NamespaceSelector, selectorOptions, at.Child("namespaceSelector"))...)
	return append(all, metav1validation.ValidateLabelSelector(&p.PodSelector, selectorOptions, at.Child("podSelector"))...)
}

func architecture(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "an architecture, such as arm64")}
	}
	var all field.ErrorList
	for _, problem := range validation.IsValidLabelValue(value) {
		all = append(all, field.Invalid(at, value, problem))
	}
	return all
}

// DefaultSystemNamespaces are our own namespace and Gatekeeper's where nobody
// says otherwise. They are never placed: what places pods must be able to start.
func DefaultSystemNamespaces() []string { return []string{"archkeeper-system", "gatekeeper-system"} }

// Excluding gives the placement with more excluded namespaces.
func (p Placement) Excluding(namespaces ...string) Placement {
	p.ExcludedNamespaces = slices.Concat(p.ExcludedNamespaces, namespaces)
	return p
}

// JSON is the policy's input.config.
func (p Placement) JSON() (json.RawMessage, error) {
	p.SchedulableArchitectures = append([]string{}, p.SchedulableArchitectures...)
	p.Preferred = append([]Preference{}, p.Preferred...)
	p.ExcludedNamespaces = append([]string{}, p.ExcludedNamespaces...)
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encoding the placement configuration: %w", err)
	}
	return raw, nil
}

// The annotations by which a namespace overrides the placement of its own pods,
// where that cannot hurt others.
const (
	// AnnotationMode may be observe: the namespace's pods are left alone.
	AnnotationMode = "placement.archkeeper.io/mode"
	// AnnotationHoldDeadline may shorten the deadline.
	AnnotationHoldDeadline = "placement.archkeeper.io/hold-deadline"
	// AnnotationFallbackArchitecture names a fallback; empty: none.
	AnnotationFallbackArchitecture = "placement.archkeeper.io/fallback-architecture"
	// AnnotationUserArchitecture is preserve or tighten.
	AnnotationUserArchitecture = "placement.archkeeper.io/user-architecture"
)

// ForNamespace gives the placement for pods of a namespace with these
// annotations. An annotation that is not allowed to say what it says changes
// nothing and is named in the error, beside which the placement is usable.
func (p Placement) ForNamespace(annotations map[string]string) (Placement, error) {
	var all field.ErrorList
	at := field.NewPath("metadata", "annotations")
	if text, ok := annotations[AnnotationMode]; ok {
		if Mode(text) == ModeObserve {
			p.Mode = ModeObserve
		} else if Mode(text) != p.Mode {
			all = append(all, field.NotSupported(at.Key(AnnotationMode), text, []Mode{ModeObserve}))
		}
	}
	if text, ok := annotations[AnnotationHoldDeadline]; ok {
		if d, err := time.ParseDuration(strings.TrimSpace(text)); err != nil || d <= 0 || d > time.Duration(p.HoldDeadline) {
			all = append(all, field.Invalid(at.Key(AnnotationHoldDeadline), text,
				fmt.Sprintf("must be above 0 and at most %s", time.Duration(p.HoldDeadline))))
		} else {
			p.HoldDeadline = Duration(d)
		}
	}
	if text, ok := annotations[AnnotationFallbackArchitecture]; ok {
		changed := p
		changed.FallbackArchitecture = text
		if problems := changed.validate(at); len(problems) > 0 {
			all = append(all, field.Invalid(at.Key(AnnotationFallbackArchitecture), text, problems[0].ErrorBody()))
		} else {
			p = changed
		}
	}
	if text, ok := annotations[AnnotationUserArchitecture]; ok {
		switch value := UserArchitecture(text); value {
		case UserArchitecturePreserve, UserArchitectureTighten:
			p.UserArchitecture = value
		default:
			all = append(all, field.NotSupported(at.Key(AnnotationUserArchitecture), value,
				[]UserArchitecture{UserArchitecturePreserve, UserArchitectureTighten}))
		}
	}
	if len(all) > 0 {
		return p, all.ToAggregate()
	}
	return p, nil
}
