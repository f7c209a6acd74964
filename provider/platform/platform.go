// Package platform writes platforms as containerd's platforms package
// normalises and formats them, and tells on which nodes they run.
//
// Registries are not trusted: a platform with a part that could not be a
// Kubernetes label value (control characters, slashes, a length of a mebibyte)
// is no platform, and no such text ever comes out of this package.
package platform

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/platforms"

	"github.com/archkeeper/archkeeper/provider"
)

// Linux is the operating system whose nodes kubernetes.io/arch is asked for.
const Linux = "linux"

// unknown is what BuildKit writes for things that are no platform.
const unknown = "unknown"

// A part is a label value of Kubernetes, so that every platform can become
// part of a label or of a requirement.
var part = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// Platform is one normalised platform. It is comparable. The zero Platform is
// none. os.features are left out: they do not decide where an image runs.
type Platform struct {
	OS, OSVersion, Architecture, Variant string
}

// Normalize gives the platform that the fields of an OCI descriptor or image
// config name, aliases (x86_64, aarch64, armhf) resolved: arm without a variant
// is v7, arm64/v8 and amd64/v1 lose theirs.
//
// The error, a *provider.Error of ClassInvalidContent, quotes the part that is
// missing, says "unknown" or could not be a label. An empty os is never filled
// in with that of the machine this runs on.
func Normalize(os, osVersion, architecture, variant string) (Platform, error) {
	for _, field := range [...]struct {
		name, value string
		required    bool
	}{
		{"os", os, true}, {"architecture", architecture, true}, {"variant", variant, false}, {"os.version", osVersion, false},
	} {
		switch {
		case field.value == "" && !field.required:
		case field.value == "":
			return Platform{}, provider.Errorf(provider.ClassInvalidContent, "the platform has no %s", field.name)
		case !part.MatchString(field.value):
			return Platform{}, provider.Errorf(provider.ClassInvalidContent, "the platform's %s is %s", field.name, provider.Quote(field.value))
		case field.required && strings.EqualFold(field.value, unknown):
			return Platform{}, provider.Errorf(provider.ClassInvalidContent, "the platform's %s is unknown", field.name)
		}
	}
	n := platforms.Normalize(platforms.Platform{OS: os, OSVersion: osVersion, Architecture: architecture, Variant: variant})
	return Platform{OS: n.OS, OSVersion: n.OSVersion, Architecture: n.Architecture, Variant: n.Variant}, nil
}

// Parse reads os[(os.version)]/architecture[/variant]. Both os and architecture
// must be there. Errors are *provider.Error of ClassInvalidContent.
func Parse(text string) (Platform, error) {
	fields := strings.SplitN(text, "/", 4)
	if len(fields) < 2 || len(fields) > 3 {
		return Platform{}, provider.Errorf(provider.ClassInvalidContent, "%s is not of the form os/architecture[/variant]", provider.Quote(text))
	}
	os, version, variant := fields[0], "", ""
	if name, rest, found := strings.Cut(os, "("); found {
		inside, closed := strings.CutSuffix(rest, ")")
		if !closed || inside == "" {
			return Platform{}, provider.Errorf(provider.ClassInvalidContent, "%s is not of the form os(version)/architecture", provider.Quote(text))
		}
		os, version = name, inside
	}
	if len(fields) == 3 {
		if variant = fields[2]; variant == "" {
			return Platform{}, provider.Errorf(provider.ClassInvalidContent, "%s has an empty variant", provider.Quote(text))
		}
	}
	p, err := Normalize(os, version, fields[1], variant)
	if err != nil {
		var problem *provider.Error
		if errors.As(err, &problem) {
			problem.Message = provider.Quote(text) + " is no platform: " + problem.Message
		}
		return Platform{}, err
	}
	return p, nil
}

// String gives the form of the wire: linux/amd64, linux/arm/v7,
// windows(10.0.17763.1)/amd64. Parse reads it back. Empty for the zero Platform.
func (p Platform) String() string {
	if p == (Platform{}) {
		return ""
	}
	return platforms.FormatAll(platforms.Platform{OS: p.OS, OSVersion: p.OSVersion, Architecture: p.Architecture, Variant: p.Variant})
}

// NodeArchitectures gives the values of the node label kubernetes.io/arch on
// which a runtime would run the platform as OS linux, sorted: none when it is
// not linux. amd64 runs 386 (containerd and CRI-O take it); arm64 nodes do not
// run arm, since not every such CPU can.
func (p Platform) NodeArchitectures() []string {
	switch {
	case p.OS != Linux:
		return nil
	case p.Architecture == "386":
		return []string{"386", "amd64"}
	}
	return []string{p.Architecture}
}

// RunsOn tells whether a node of the platform node would run p. It is equality
// with four allowances, those of containerd's Only matcher: a node without an
// os.version takes any; a variant takes the lower ones of arm (v7 takes v6) and
// amd64 (v3 takes v2 and the plain one); amd64 takes 386. Unlike there, arm64
// does not take arm.
func (p Platform) RunsOn(node Platform) bool {
	if p.OS != node.OS || node.OSVersion != "" && p.OSVersion != node.OSVersion {
		return false
	}
	if p.Architecture != node.Architecture && (p.Architecture != "386" || node.Architecture != "amd64") {
		return false
	}
	if p.Variant == node.Variant && p.Architecture == node.Architecture {
		return true
	}
	without := func(x Platform) platforms.Platform {
		return platforms.Platform{OS: x.OS, Architecture: x.Architecture, Variant: x.Variant}
	}
	return levels(node.Variant) && platforms.Only(without(node)).Match(without(p))
}

// levels guards containerd's Only, whose work grows with the number in a
// variant: amd64/v99999999 would cost as many steps.
func levels(variant string) bool { return len(variant) <= len("v9.9") }

// Architectures gives the union of NodeArchitectures of formatted platforms,
// sorted, without duplicates; never nil. A text that is no platform gives none.
func Architectures(formatted []string) []string {
	set := map[string]struct{}{}
	for _, text := range formatted {
		p, err := Parse(text)
		if err != nil {
			continue
		}
		for _, architecture := range p.NodeArchitectures() {
			set[architecture] = struct{}{}
		}
	}
	names := slices.AppendSeq(make([]string, 0, len(set)), maps.Keys(set))
	slices.Sort(names)
	return names
}
