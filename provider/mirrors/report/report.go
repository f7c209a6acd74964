// Package report writes what provider/mirrors finds for people and scripts. It
// does no I/O but to the writers that it is given.
package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// The outputs of Render.
const (
	RegistriesConf = "registries.conf"
	Containerd     = "containerd"
	MachineConfig  = "machineconfig"
	Policy         = "policy.json"
	JSON           = "json"
	Table          = "table"
)

// CertsDir is where containerd's config_path usually points.
const CertsDir = "/etc/containerd/certs.d"

// Render gives the bytes of one output. Pools matter to MachineConfig alone,
// which gives one document for each.
func Render(res *mirrors.Result, output string, pools []string) ([]byte, error) {
	switch output {
	case RegistriesConf:
		return res.RegistriesConf(), nil
	case Containerd:
		files, _ := res.Config.ContainerdHosts()
		var out bytes.Buffer
		for i, f := range files {
			if i > 0 {
				out.WriteByte('\n')
			}
			fmt.Fprintf(&out, "# %s/%s/hosts.toml\n%s", CertsDir, f.Host, f.Data)
		}
		return out.Bytes(), nil
	case MachineConfig:
		var docs [][]byte
		for _, pool := range pools {
			doc, err := mirrors.MachineConfig(pool, res.RegistriesConf(), nil)
			if err != nil {
				return nil, err
			}
			docs = append(docs, doc)
		}
		return bytes.Join(docs, []byte("---\n")), nil
	case Policy:
		return res.PolicyJSON()
	case JSON:
		return encode(describe(res))
	}
	return nil, fmt.Errorf("unknown output %q: it is one of %s, %s, %s, %s, %s", output, RegistriesConf, Containerd, MachineConfig, Policy, JSON)
}

type (
	entry struct {
		Scope    string   `json:"scope"`
		Insecure bool     `json:"insecure"`
		Blocked  bool     `json:"blocked"`
		Mirrors  []mirror `json:"mirrors"`
	}
	mirror struct {
		Location       string       `json:"location"`
		Insecure       bool         `json:"insecure"`
		PullFromMirror mirrors.Pull `json:"pullFromMirror"`
	}
	description struct {
		RegistriesConf          string            `json:"registriesConf"`
		SHA256                  string            `json:"sha256"`
		SearchRegistries        []string          `json:"searchRegistries"`
		Entries                 []entry           `json:"entries"`
		Allowed                 []string          `json:"allowed"`
		Blocked                 []string          `json:"blocked"`
		Rejected                []mirrors.Problem `json:"rejected"`
		Conflicts               []mirrors.Problem `json:"conflicts"`
		Warnings                []mirrors.Problem `json:"warnings"`
		Notes                   []mirrors.Problem `json:"notes"`
		UnsupportedByContainerd []mirrors.Problem `json:"unsupportedByContainerd"`
	}
)

func describe(res *mirrors.Result) description {
	conf := res.RegistriesConf()
	sum := sha256.Sum256(conf)
	d := description{
		RegistriesConf: string(conf), SHA256: hex.EncodeToString(sum[:]),
		SearchRegistries: list(res.Config.SearchRegistries()), Entries: []entry{},
		Allowed: list(res.Allowed), Blocked: list(res.Blocked),
		Rejected: list(res.Rejected), Conflicts: list(res.Conflicts), Warnings: list(res.Warnings), Notes: list(res.Notes),
		UnsupportedByContainerd: list(res.Unsupported()),
	}
	for _, e := range res.Config.Entries() {
		out := entry{Scope: e.Prefix, Insecure: e.Insecure, Blocked: e.Blocked, Mirrors: []mirror{}}
		for _, m := range e.Mirrors {
			out.Mirrors = append(out.Mirrors, mirror{Location: m.Location, Insecure: m.Insecure, PullFromMirror: m.Pull})
		}
		d.Entries = append(d.Entries, out)
	}
	return d
}

// list gives an empty list for nil, so that JSON has [] and not null.
func list[T any](in []T) []T {
	if in == nil {
		return []T{}
	}
	return in
}

func encode(value any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Problems writes one line for each rejection and conflict, and one with
// "warning: " before it for each warning; and, when output is Containerd, one
// with "unsupported: " before it for what containerd cannot follow.
func Problems(w io.Writer, res *mirrors.Result, output string) {
	for _, p := range res.Rejected {
		fmt.Fprintln(w, p)
	}
	for _, p := range res.Conflicts {
		fmt.Fprintln(w, p)
	}
	for _, p := range res.Warnings {
		fmt.Fprintln(w, "warning:", p)
	}
	if output == Containerd {
		for _, p := range res.Unsupported() {
			fmt.Fprintln(w, "unsupported:", p)
		}
	}
}

// Explanation is where a runtime looks for one reference. Its JSON form is a
// contract.
type Explanation struct {
	// Reference as it was given.
	Reference  string      `json:"reference"`
	Candidates []Candidate `json:"candidates"`
	// Blocked is true when the source itself may not be contacted.
	Blocked bool `json:"blocked"`
}

// Candidate is one place, in the order in which a runtime tries them.
type Candidate struct {
	Reference string `json:"reference"`
	Insecure  bool   `json:"insecure"`
}

// Explain answers for references in their order and gives the warnings that
// belong to them, each once. A malformed reference is an error.
func Explain(res *mirrors.Result, references []string) ([]Explanation, []string, error) {
	out := make([]Explanation, 0, len(references))
	var warnings []string
	seen := map[string]bool{}
	for _, text := range references {
		ref, err := imageref.Parse(text)
		if err != nil {
			return nil, nil, err
		}
		resolved, told := res.Explain(ref)
		e := Explanation{Reference: text, Candidates: []Candidate{}, Blocked: resolved.Blocked}
		for _, c := range resolved.Candidates {
			e.Candidates = append(e.Candidates, Candidate{Reference: c.Reference.String(), Insecure: c.Insecure})
		}
		out = append(out, e)
		for _, w := range told {
			if !seen[w] {
				seen[w] = true
				warnings = append(warnings, w)
			}
		}
	}
	return out, warnings, nil
}

// ExplainJSON writes explanations as one JSON array.
func ExplainJSON(explanations []Explanation) ([]byte, error) { return encode(list(explanations)) }

// anyDigest stands for the digest of a pull by digest of which none was given.
const (
	anyDigest  = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	someDigest = "sha256:..."
)

// ExplainTable writes, for each reference, the places that a runtime tries and
// why. A reference without tag and digest is shown pulled both ways.
func ExplainTable(res *mirrors.Result, references []string) ([]byte, error) {
	var out bytes.Buffer
	table := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REFERENCE\tPULL\tCANDIDATE\tINSECURE\tWHY")
	for _, text := range references {
		ref, err := imageref.Parse(text)
		if err != nil {
			return nil, err
		}
		row := func(pull, candidate string, insecure bool, why string) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%t\t%s\n", text, pull, strings.ReplaceAll(candidate, anyDigest, someDigest), insecure, why)
		}
		explainRows(res, ref, row)
		if ref.Digest() == "" && !strings.HasSuffix(text, ":"+ref.Tag()) {
			pinned, err := imageref.Parse(ref.Name() + "@" + anyDigest)
			if err != nil {
				return nil, err
			}
			explainRows(res, pinned, row)
		}
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func explainRows(res *mirrors.Result, ref imageref.Reference, row func(pull, candidate string, insecure bool, why string)) {
	pull := "tag"
	if ref.Digest() != "" {
		pull = "digest"
	}
	resolved, _ := res.Explain(ref)
	entry := "no entry matches"
	if resolved.Prefix != "" {
		entry = "entry " + resolved.Prefix
	}
	for _, c := range resolved.Candidates {
		why := "the source itself, " + entry
		if c.Mirror {
			why = "mirror, " + entry
		}
		row(pull, c.Reference.String(), c.Insecure, why)
	}
	for _, s := range resolved.Skipped {
		row(pull, "-", false, "mirror "+s.Reference.String()+" is skipped: blocked by entry "+s.Prefix)
	}
	switch {
	case resolved.Err != nil:
		row(pull, "-", false, "the pull fails, "+entry+": a mirror makes no reference of it")
	case resolved.Blocked:
		row(pull, "-", false, "the source is blocked, "+entry)
	}
}
