// Package mirroraudit tells whether mirrors hold what their sources hold. A
// mirror that lost its manifest list (docker pull and push, skopeo copy without
// --all) serves one architecture under the source's name.
//
// Compare is pure. Audit asks registries through an interface that
// provider/registry offers.
package mirroraudit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/platform"
	"github.com/archkeeper/archkeeper/provider/registry"
)

// Registry is what an audit asks. It must have no mirrors of its own: each
// reference is asked for at its own place.
type Registry interface {
	provider.Inspector
	Contents(ctx context.Context, image string) (registry.Contents, *provider.Error)
	Has(ctx context.Context, image string) (bool, *provider.Error)
}

// Status is how a mirror's copy stands to its source.
type Status string

// The statuses. All but Identical and Undetermined are findings.
const (
	Identical    Status = "identical"
	Flattened    Status = "flattened"    // one image of the source's index stands in its place
	Sparse       Status = "sparse"       // the source's index, without all of its images
	Subset       Status = "subset"       // another index of some of the source's images
	Reindexed    Status = "reindexed"    // another index of the same images
	Mislabelled  Status = "mislabelled"  // an image under another platform than its own
	Stale        Status = "stale"        // something else under the same tag
	Missing      Status = "missing"      // nothing
	Undetermined Status = "undetermined" // a registry did not answer
)

// Finding is about one image at one mirror.
type Finding struct {
	Image  string `json:"image"`
	Source string `json:"source"`
	Mirror string `json:"mirror,omitempty"`
	// Pull says for which pulls the mirror is used: digest, tag.
	Pull         []string `json:"pull,omitempty"`
	Status       Status   `json:"status"`
	SourceDigest string   `json:"sourceDigest,omitempty"`
	MirrorDigest string   `json:"mirrorDigest,omitempty"`
	// Present and Lacking platforms, where the mirror has some of the source's.
	Present []string `json:"present,omitempty"`
	Lacking []string `json:"lacking,omitempty"`
	Message string   `json:"message"`
	// Commands that mend it; any one of them will do.
	Commands []string `json:"commands,omitempty"`
}

// Entry is an image of an index with the platform that the index declares and
// the one that its own config says; empty when not known.
type Entry struct {
	Digest, Declared, Actual string
}

// platform is what a runtime goes by: the index decides.
func (e Entry) platform() string {
	if e.Declared != "" {
		return e.Declared
	}
	return e.Actual
}

// Copy is what one place holds under a reference.
type Copy struct {
	Digest  string
	Index   bool
	Entries []Entry // of an index, those with a platform
	// Platform of a single image.
	Platform string
	// Absent entries, by digest: the index is there and they are not.
	Absent []string
}

// Compare judges. exact is what the mirror has under the source's digest and
// tagged what it has under the reference's tag; nil for nothing.
func Compare(source Copy, exact, tagged *Copy) (Status, *Finding) {
	f := &Finding{SourceDigest: source.Digest}
	if exact != nil && (tagged == nil || tagged.Digest == source.Digest) {
		f.MirrorDigest = exact.Digest
		if bad := mislabelled(source.Entries); bad != "" {
			f.Message = "source and mirror are identical, and both mislabel: " + bad
			return Mislabelled, f
		}
		if len(exact.Absent) > 0 {
			f.split(source, func(e Entry) bool { return !slices.Contains(exact.Absent, e.Digest) })
			f.Message = "the index is there, but not all of its images: pulls of the lacking ones fail"
			return Sparse, f
		}
		f.Message = "the mirror has what the source has"
		return Identical, f
	}
	if tagged == nil {
		f.Message = "the mirror does not have it"
		return Missing, f
	}
	f.MirrorDigest = tagged.Digest
	if !tagged.Index {
		return compareImage(source, tagged, f)
	}
	return compareIndex(source, tagged, f)
}

func compareImage(source Copy, mirror *Copy, f *Finding) (Status, *Finding) {
	at := slices.IndexFunc(source.Entries, func(e Entry) bool { return e.Digest == mirror.Digest })
	if at < 0 {
		f.Message = "the mirror has another image under this tag"
		if source.Index {
			f.Message += ", for " + known(mirror.Platform) + " alone, where the source has an index"
		}
		return Stale, f
	}
	entry := source.Entries[at]
	f.split(source, func(e Entry) bool { return e.Digest == mirror.Digest })
	if mirror.Platform != "" && entry.Declared != "" && mirror.Platform != entry.Declared {
		f.Message = fmt.Sprintf("the mirror kept one image of the index, which the source calls %s and whose config says %s", entry.Declared, mirror.Platform)
		return Mislabelled, f
	}
	f.Message = "the mirror kept one image of the index: " + known(entry.platform()) + " survived"
	return Flattened, f
}

func compareIndex(source Copy, mirror *Copy, f *Finding) (Status, *Finding) {
	has := map[string]Entry{}
	for _, e := range mirror.Entries {
		has[e.Digest] = e
	}
	shared, foreign := 0, len(mirror.Entries)
	for _, e := range source.Entries {
		m, ok := has[e.Digest]
		if !ok {
			continue
		}
		shared, foreign = shared+1, foreign-1
		if e.Declared != "" && m.Declared != "" && e.Declared != m.Declared {
			f.Message = fmt.Sprintf("the mirror's index calls %s what the source calls %s", m.Declared, e.Declared)
			return Mislabelled, f
		}
	}
	if bad := mislabelled(mirror.Entries); bad != "" {
		f.Message = "the mirror's index mislabels: " + bad
		return Mislabelled, f
	}
	f.split(source, func(e Entry) bool { _, ok := has[e.Digest]; return ok && !slices.Contains(mirror.Absent, e.Digest) })
	switch {
	case shared == 0 || foreign > 0:
		f.Present, f.Lacking = nil, nil
		f.Message = "the mirror has another index under this tag"
		return Stale, f
	case shared < len(source.Entries) || len(f.Lacking) > 0:
		f.Message = "the mirror has an index of its own with some of the images; pulls by the source's digest do not find it"
		return Subset, f
	}
	f.Message = "the mirror has an index of its own with the same images; pulls by the source's digest do not find it"
	return Reindexed, f
}

// mislabelled describes the first entry whose config contradicts its index.
func mislabelled(entries []Entry) string {
	for _, e := range entries {
		if e.Declared != "" && e.Actual != "" && e.Declared != e.Actual {
			return fmt.Sprintf("%s is declared %s, and its config says %s", e.Digest, e.Declared, e.Actual)
		}
	}
	return ""
}

// split sorts the source's platforms by whether the mirror has them.
func (f *Finding) split(source Copy, has func(Entry) bool) {
	for _, e := range source.Entries {
		p := e.platform()
		if p == "" {
			continue
		}
		if has(e) {
			f.Present = append(f.Present, p)
		} else {
			f.Lacking = append(f.Lacking, p)
		}
	}
	slices.Sort(f.Present)
	slices.Sort(f.Lacking)
	f.Present, f.Lacking = slices.Compact(f.Present), slices.Compact(f.Lacking)
}

func known(platform string) string {
	if platform == "" {
		return "an unknown platform"
	}
	return platform
}

// Options of an audit.
type Options struct {
	// Architectures whose images a mirror's index must have; empty: all.
	Architectures []string
	// Step is called after each image, concurrently; nil for nobody.
	Step func()
}

// parallel images; the registry limits further by host.
const parallel = 16

// Audit compares, for each image, every mirror that the rules give for it.
// Findings come in the order of images, then of mirrors. An image without a
// mirror has none.
func Audit(ctx context.Context, from Registry, rules *mirrors.Config, images []string, o Options) []Finding {
	out := make([][]Finding, len(images))
	var group errgroup.Group
	group.SetLimit(parallel)
	for n, image := range images {
		group.Go(func() error {
			out[n] = auditImage(ctx, from, rules, image, o)
			if o.Step != nil {
				o.Step()
			}
			return nil
		})
	}
	_ = group.Wait() // the work reports by findings
	return slices.Concat(out...)
}

type auditor struct {
	Registry
	Options
	ref imageref.Reference
}

func auditImage(ctx context.Context, from Registry, rules *mirrors.Config, image string, o Options) []Finding {
	ref, err := imageref.Parse(image)
	if err != nil {
		return []Finding{{Image: image, Source: image, Status: Undetermined, Message: err.Error()}}
	}
	a := &auditor{Registry: from, Options: o, ref: ref}
	if !mirrored(rules, ref) {
		return nil
	}
	source, failure := a.copyOf(ctx, ref.String(), true)
	if failure != nil || source == nil {
		message := "the source does not have it"
		if failure != nil {
			message = "the source is not known: " + failure.Error()
		}
		return []Finding{{Image: image, Source: ref.String(), Status: Undetermined, Message: message}}
	}
	var findings []Finding
	for _, t := range targets(rules, ref, source.Digest) {
		f := a.audit(ctx, *source, t)
		f.Image, f.Source, f.Mirror, f.Pull = image, ref.String(), t.name, t.pull
		f.mend(ref, t.name)
		findings = append(findings, *f)
	}
	return findings
}

// target is one mirror's place for an image.
type target struct {
	name string
	pull []string
}

// mirrored tells whether any pull of the image has a mirror.
func mirrored(rules *mirrors.Config, ref imageref.Reference) bool {
	return len(targets(rules, ref, "sha256:"+strings.Repeat("0", 64))) > 0
}

// targets lists the mirrors of an image, those by digest first: a reference by
// tag is pinned for them to the source's digest.
func targets(rules *mirrors.Config, ref imageref.Reference, digest string) []target {
	var out []target
	add := func(res mirrors.Resolution, pull string) {
		for _, c := range res.Candidates {
			name := c.Reference.Name()
			if !c.Mirror || name == ref.Name() {
				continue
			}
			at := slices.IndexFunc(out, func(t target) bool { return t.name == name })
			if at < 0 {
				out = append(out, target{name: name, pull: []string{pull}})
			} else if !slices.Contains(out[at].pull, pull) {
				out[at].pull = append(out[at].pull, pull)
			}
		}
	}
	if pinned, err := ref.WithDigest(digest); err == nil {
		add(rules.Resolve(pinned), "digest")
	}
	if ref.Digest() == "" {
		add(rules.Resolve(ref), "tag")
	}
	return out
}

func (a *auditor) audit(ctx context.Context, source Copy, t target) *Finding {
	undetermined := func(err *provider.Error) *Finding {
		return &Finding{Status: Undetermined, SourceDigest: source.Digest, Message: "the mirror is not known: " + err.Error()}
	}
	exact, err := a.copyOf(ctx, t.name+"@"+source.Digest, false)
	if err != nil {
		return undetermined(err)
	}
	var tagged *Copy
	if tag := a.ref.Tag(); tag != "" && (exact == nil || slices.Contains(t.pull, "tag")) {
		if tagged, err = a.copyOf(ctx, t.name+":"+tag, true); err != nil {
			return undetermined(err)
		}
		if tagged == nil && slices.Contains(t.pull, "tag") {
			return &Finding{Status: Missing, SourceDigest: source.Digest, Message: "the mirror does not have the tag " + tag}
		}
	}
	if exact != nil && exact.Index {
		if exact.Absent, err = a.absent(ctx, t.name, source.Entries); err != nil {
			return undetermined(err)
		}
	}
	status, f := Compare(source, exact, tagged)
	f.Status = status
	return f
}

// copyOf reads what is under a reference; nil when there is nothing. Deep asks
// for the platforms that configs say, too.
func (a *auditor) copyOf(ctx context.Context, reference string, deep bool) (*Copy, *provider.Error) {
	contents, err := a.Contents(ctx, reference)
	if err != nil {
		if err.Class == provider.ClassNotFound {
			return nil, nil
		}
		return nil, err
	}
	c := &Copy{Digest: contents.Digest, Index: contents.Kind == provider.KindIndex}
	if !deep {
		return c, nil
	}
	name := strings.SplitN(reference, "@", 2)[0]
	if !strings.Contains(reference, "@") {
		name = reference[:strings.LastIndexByte(reference, ':')]
	} else if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	if !c.Index {
		c.Platform = a.platforms(ctx, []string{name + "@" + contents.Digest})[0]
		return c, nil
	}
	var asked []string
	for _, e := range contents.Entries {
		asked = append(asked, name+"@"+e.Digest)
	}
	actual := a.platforms(ctx, asked)
	for n, e := range contents.Entries {
		if e.Platform != "" || actual[n] != "" {
			c.Entries = append(c.Entries, Entry{Digest: e.Digest, Declared: e.Platform, Actual: actual[n]})
		}
	}
	return c, nil
}

// platforms asks what single images run on; empty where that is not known, or
// more than one thing. Versions of operating systems are left out.
func (a *auditor) platforms(ctx context.Context, references []string) []string {
	out := make([]string, len(references))
	queries := make([]provider.Query, len(references))
	for n, r := range references {
		queries[n] = provider.Query{Image: r}
	}
	for n, answer := range a.Inspect(ctx, queries) {
		if answer.Known() && len(answer.Platforms) == 1 {
			if p, err := platform.Parse(answer.Platforms[0]); err == nil {
				p.OSVersion = ""
				out[n] = p.String()
			}
		}
	}
	return out
}

// absent lists the images of an index that a mirror does not have.
func (a *auditor) absent(ctx context.Context, name string, entries []Entry) ([]string, *provider.Error) {
	var mu sync.Mutex
	var gone []string
	var failed *provider.Error
	var group errgroup.Group
	group.SetLimit(8)
	for _, e := range entries {
		if !a.wanted(e) {
			continue
		}
		group.Go(func() error {
			has, err := a.Has(ctx, name+"@"+e.Digest)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else if !has {
				gone = append(gone, e.Digest)
			}
			return nil
		})
	}
	_ = group.Wait() // the work reports by gone and failed
	slices.Sort(gone)
	return gone, failed
}

// wanted tells whether a mirror must have an entry.
func (a *auditor) wanted(e Entry) bool {
	if len(a.Architectures) == 0 {
		return true
	}
	return slices.ContainsFunc(platform.Architectures([]string{e.platform()}), func(arch string) bool {
		return slices.Contains(a.Architectures, arch)
	})
}

// mend fills in the commands that copy the source as a whole.
func (f *Finding) mend(ref imageref.Reference, mirror string) {
	if f.Status == Identical || f.Status == Undetermined {
		return
	}
	source, tag := ref.Name(), ref.Tag()
	if tag == "" {
		tag = strings.Replace(ref.Digest(), ":", "-", 1)
	}
	if d := ref.Digest(); d != "" {
		source += "@" + d
	} else {
		source += ":" + tag
	}
	to := mirror + ":" + tag
	f.Commands = []string{
		"skopeo copy --all --preserve-digests docker://" + source + " docker://" + to,
		"crane copy " + source + " " + to,
		"regctl image copy " + source + " " + to,
		"oc image mirror --keep-manifest-list=true " + source + " " + to,
	}
}

// ExitStatus is 2 when a mirror differs, else 3 when something is not known,
// else 0.
func ExitStatus(findings []Finding) int {
	status := 0
	for _, f := range findings {
		switch f.Status {
		case Identical:
		case Undetermined:
			status = max(status, 3)
		case Flattened, Sparse, Subset, Reindexed, Mislabelled, Stale, Missing:
			return 2
		}
	}
	return status
}
