package manifest

import (
	"strings"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/platform"
)

// bundleLabel begins the labels of an OLM bundle image, which holds manifests
// and no program.
// Source: https://olm.operatorframework.io/docs/tasks/creating-operator-bundle/
const bundleLabel = "operators.operatorframework.io.bundle."

type configJSON struct {
	platformJSON
	Config *struct {
		Labels map[string]string `json:"Labels"`
	} `json:"config"`
}

// WithConfig gives the facts of an image manifest, config being the content
// that Config points at. The caller has checked its digest.
//
// A config without an architecture, or with an unknown one, is no program:
// ClassNotRunnable. One with an architecture and no operating system is linux,
// with a warning, as such images run on every Linux node.
func (d Document) WithConfig(config []byte) (Facts, error) {
	facts := d.Facts
	if len(config) > MaxConfig {
		return facts, invalid("the config is larger than %d bytes", MaxConfig)
	}
	var raw configJSON
	if err := decode(config, &raw); err != nil {
		return facts, invalid("the config is no valid JSON: %w", err)
	}
	err := raw.describe(&facts)
	return facts, err
}

func (c *configJSON) describe(facts *Facts) error {
	if c.bundle() {
		facts.ContentOnly = true
		return nil
	}
	if c.Architecture == "" || c.unknown() {
		return notRunnable("its config names no architecture: it is no container image")
	}
	if c.OS == "" {
		c.OS = platform.Linux
		facts.warn("the config names no operating system; linux is assumed, as runtimes on linux do")
	}
	p, err := c.normalize()
	if err != nil {
		return invalid("the config is wrong: %s", message(err))
	}
	facts.Platforms = []string{p.String()}
	return nil
}

func (c *configJSON) bundle() bool {
	if c.Config == nil {
		return false
	}
	for label := range c.Config.Labels {
		if strings.HasPrefix(label, bundleLabel) {
			return true
		}
	}
	return false
}

// Child is what reading one of a Document's Children, and what it points at in
// turn, came to. Err is nil or what went wrong.
type Child struct {
	Facts Facts
	Err   error
}

// WithChildren gives the facts of an index, children being the outcomes for
// d.Children in the same order.
//
// A child that failed in a way that may pass makes the whole index unknown: the
// list of platforms must be complete. One that is not runnable, or breaks its
// specification, is left out with a warning; when nothing else is there, its
// error is the index's. Where the index says a part of an entry's platform and
// the child another, the index decides, with a warning.
func (d Document) WithChildren(children []Child) (Facts, error) {
	facts := d.Facts
	if len(children) != len(d.Children) {
		return facts, provider.Errorf(provider.ClassInternal, "%d of %d entries of the index were read", len(children), len(d.Children))
	}
	var found platformSet
	for _, p := range d.Platforms {
		found.add(p)
	}
	var left tally
	var durable error
	contentOnly := false
	for i, child := range children {
		if child.Err != nil {
			class := classOf(child.Err)
			if class.Retryable() {
				return facts, child.Err
			}
			left.add(message(child.Err))
			if durable == nil || class == provider.ClassInvalidContent {
				durable = child.Err
			}
			continue
		}
		for _, warning := range child.Facts.Warnings {
			if len(facts.Warnings) < maxWarnings {
				facts.Warnings = append(facts.Warnings, warning)
			}
		}
		contentOnly = contentOnly || child.Facts.ContentOnly
		for _, p := range d.Children[i].overrule(child.Facts.Platforms, &facts) {
			found.add(p)
		}
	}
	left.warn(&facts, "%d of the index's entries are left out; the first: %s")
	if found.overflow {
		return facts, invalid("the index names more than %d platforms", MaxPlatforms)
	}
	facts.Platforms = found.sorted()
	switch {
	case len(facts.Platforms) > 0:
		return facts, nil
	case contentOnly:
		facts.ContentOnly = true
		return facts, nil
	case durable != nil:
		return facts, durable
	}
	return facts, notRunnable("the index has no entry that a container runtime could run")
}

// overrule puts what the index declared of an entry in the place of what the
// entry itself says.
func (d Descriptor) overrule(platforms []string, facts *Facts) []string {
	if d.declared == (platformJSON{}) {
		return platforms
	}
	var result []string
	for _, text := range platforms {
		p, err := platform.Parse(text)
		if err != nil {
			continue
		}
		merged := platformJSON{OS: p.OS, OSVersion: p.OSVersion, Architecture: p.Architecture, Variant: p.Variant}
		if d.declared.OS != "" {
			merged.OS = d.declared.OS
		}
		if d.declared.Architecture != "" {
			merged.Architecture, merged.Variant = d.declared.Architecture, d.declared.Variant
		} else if d.declared.Variant != "" {
			merged.Variant = d.declared.Variant
		}
		if d.declared.OSVersion != "" {
			merged.OSVersion = d.declared.OSVersion
		}
		decided, err := merged.normalize()
		if err != nil {
			facts.warn("the index's platform of %s is ignored: %s", d.Digest, message(err))
			result = append(result, text)
			continue
		}
		if decided != p {
			facts.warn("the index says %s of %s, its config says %s; the index decides", decided, d.Digest, p)
		}
		result = append(result, decided.String())
	}
	return result
}
