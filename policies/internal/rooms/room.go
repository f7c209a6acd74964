// Package rooms knows what a policy room is: what must be in it, and what
// follows from that. It reads and writes the source tree alone.
package rooms

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

//go:embed shared.yaml
var sharedYAML []byte

// section is a folder of policies/ that holds rooms.
type section string

const (
	constraints section = "constraints"
	mutations   section = "mutations"
)

// schema is an OpenAPI v3 schema as a ConstraintTemplate takes it.
type schema = map[string]any

// room is the folder of one policy; the exported fields are its room.yaml.
type room struct {
	// Title for people, in sentence case.
	Title string `json:"title"`
	// Kind of the constraint; the template's name is its lower case. Constraints only.
	Kind string `json:"kind,omitempty"`
	// Version of the room, semantic.
	Version string `json:"version"`
	// Created is the day on which this version was made, YYYY-MM-DD.
	Created string `json:"created"`
	// Description in one sentence.
	Description string `json:"description"`
	// Why, Cost (in provider calls) and Notes are Markdown for the README.
	Why   string `json:"why"`
	Cost  string `json:"cost"`
	Notes string `json:"notes,omitempty"`
	// Shared names parameters of shared.yaml; Parameters are the room's own.
	Shared     []string          `json:"shared,omitempty"`
	Parameters map[string]schema `json:"parameters,omitempty"`

	name    string  // folder name
	section section // folder above
	dir     string  // path from the root of the repository
}

var (
	nameForm    = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	kindForm    = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	versionForm = regexp.MustCompile(`^\d+\.\d+\.\d+$`)
)

// readRooms reads the rooms below policies/ of a section, by name.
func readRooms(root string, in section) ([]room, error) {
	dir := filepath.Join(root, "policies", string(in))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the rooms: %w", err)
	}
	var rooms []room
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		read, err := readRoom(root, in, entry.Name())
		if err != nil {
			return nil, fmt.Errorf("policies/%s/%s: %w", in, entry.Name(), err)
		}
		rooms = append(rooms, read)
	}
	return rooms, nil
}

func readRoom(root string, in section, name string) (room, error) {
	read := room{name: name, section: in, dir: filepath.Join("policies", string(in), name)}
	source, err := os.ReadFile(filepath.Join(root, read.dir, "room.yaml"))
	if err != nil {
		return room{}, err
	}
	if err := yaml.UnmarshalStrict(source, &read); err != nil {
		return room{}, fmt.Errorf("room.yaml: %w", err)
	}
	shared := map[string]schema{}
	if err := yaml.UnmarshalStrict(sharedYAML, &shared); err != nil {
		return room{}, fmt.Errorf("shared.yaml: %w", err)
	}
	if read.Parameters == nil {
		read.Parameters = map[string]schema{}
	}
	for _, name := range read.Shared {
		parameter, known := shared[name]
		if !known {
			return room{}, fmt.Errorf("room.yaml: shared: no shared parameter %q", name)
		}
		if _, own := read.Parameters[name]; own {
			return room{}, fmt.Errorf("room.yaml: parameter %q is both shared and the room's own", name)
		}
		read.Parameters[name] = parameter
	}
	return read, errors.Join(read.problems(root)...)
}

// problems says what is missing in a room: a wall, a sample, a description.
func (r room) problems(root string) []error {
	var problems []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	need(nameForm.MatchString(r.name), "the name is not lower-case words joined by hyphens")
	for field, text := range map[string]string{"title": r.Title, "description": r.Description, "why": r.Why, "cost": r.Cost} {
		need(strings.TrimSpace(text) != "", "room.yaml: %s is empty", field)
	}
	need(versionForm.MatchString(r.Version), "room.yaml: version %q is not semantic", r.Version)
	_, err := time.Parse(time.DateOnly, r.Created)
	need(err == nil, "room.yaml: created %q is no day, YYYY-MM-DD", r.Created)
	for name, parameter := range r.Parameters {
		need(describes(parameter), "room.yaml: parameter %q has no description or no type", name)
	}
	for _, wall := range r.walls(root) {
		matches, err := filepath.Glob(filepath.Join(root, r.dir, wall))
		need(err == nil && len(matches) > 0, "%s is missing", wall)
	}
	if r.section == constraints {
		need(kindForm.MatchString(r.Kind), "room.yaml: kind %q is no CamelCase name", r.Kind)
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return problems
}

// walls are the files that a room must have, as patterns. What is generated is
// not among them: it comes of itself.
func (r room) walls(root string) []string {
	switch {
	case r.section == mutations:
		return []string{"mutation.yaml", "suite.yaml", "samples/*.yaml"}
	case r.rego(root):
		return []string{
			"policy.rego", "policy_test.rego", "suite.yaml", "provider.yaml",
			"samples/constraint*.yaml", "samples/allowed*.yaml", "samples/disallowed*.yaml", "samples/undetermined*.yaml",
		}
	default:
		return []string{"policy.cel.yaml", "suite.yaml", "samples/constraint*.yaml", "samples/allowed*.yaml", "samples/disallowed*.yaml"}
	}
}

// rego tells a room with a Rego policy from one whose policy is CEL.
func (r room) rego(root string) bool {
	_, err := os.Stat(filepath.Join(root, r.dir, "policy.cel.yaml"))
	return errors.Is(err, fs.ErrNotExist)
}

func describes(parameter schema) bool {
	description, _ := parameter["description"].(string)
	kind, _ := parameter["type"].(string)
	return description != "" && kind != ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
