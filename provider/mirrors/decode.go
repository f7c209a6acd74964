package mirrors

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/provider"
)

// The kinds that are read, each with the API version of its objects.
const (
	KindDigestMirrorSet     = "ImageDigestMirrorSet"     // config.openshift.io/v1
	KindTagMirrorSet        = "ImageTagMirrorSet"        // config.openshift.io/v1
	KindContentSourcePolicy = "ImageContentSourcePolicy" // operator.openshift.io/v1alpha1
	KindImage               = "Image"                    // config.openshift.io/v1, named cluster
)

const (
	configAPI   = "config.openshift.io/v1"
	operatorAPI = "operator.openshift.io/v1alpha1"
	imageName   = "cluster"
	policyAllow = "AllowContactingSource"
	policyNever = "NeverContactSource"
	maxNesting  = 8 // of Lists inside Lists
)

// apiVersion gives the API version of a kind that is read; empty for others.
func apiVersion(kind string) string {
	switch kind {
	case KindDigestMirrorSet, KindTagMirrorSet, KindImage:
		return configAPI
	case KindContentSourcePolicy:
		return operatorAPI
	}
	return ""
}

// Problem is something to tell about one field of one object.
type Problem struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// String gives "<kind>/<name> <field path>: <reason>".
func (p Problem) String() string {
	return p.Kind + "/" + p.Name + " " + p.Field + ": " + p.Reason
}

// Object is a mirror object or the image configuration, with what could not be
// accepted of it already set apart. It is immutable.
type Object struct {
	kind, name string
	lists      []list
	insecure   []item
	blocked    []item
	allowed    []item
	search     []item
	rejected   []Problem
}

// Kind of the object, one of the four kinds that are read.
func (o Object) Kind() string { return o.kind }

// Name of the object.
func (o Object) Name() string { return o.name }

// Rejected are the parts of the object that do not count, in their order.
func (o Object) Rejected() []Problem { return slices.Clone(o.rejected) }

type (
	item struct{ text, field string }
	list struct {
		source  item
		mirrors []item
		policy  item // text is empty, policyAllow or policyNever
	}
)

// Decode reads objects out of YAML or JSON files: several documents, Lists.
// Other kinds, other API groups and an Image not named cluster are passed over.
// A file that is no YAML is an error of the form "<file>:<line>: <reason>".
func Decode(files ...NamedFile) ([]Object, error) {
	var objects []Object
	for _, f := range files {
		docs, err := documents(f)
		if err != nil {
			return nil, err
		}
		for _, doc := range docs {
			objects = collect(objects, doc, "", "", maxNesting)
		}
	}
	return objects, nil
}

// FromMap reads one object as the API server gives it; ok is false when it is
// none of those that are read. The map is not changed.
func FromMap(object map[string]any) (decoded Object, ok bool) {
	found := collect(nil, object, "", "", 0)
	if len(found) == 0 {
		return Object{}, false
	}
	return found[0], true
}

// collect appends the objects of doc. The items of a typed list may leave out
// kind and apiVersion: the defaults are those of the list.
func collect(objects []Object, doc any, kind, version string, depth int) []Object {
	fields, ok := doc.(map[string]any)
	if !ok {
		return objects
	}
	if text, ok := fields["kind"].(string); ok && text != "" {
		kind = text
	}
	if text, ok := fields["apiVersion"].(string); ok && text != "" {
		version = text
	}
	if want := apiVersion(kind); want != "" {
		if version != want {
			return objects
		}
		return appendObject(objects, kind, fields)
	}
	inner, isList := strings.CutSuffix(kind, "List")
	if !isList || depth == 0 {
		return objects
	}
	switch {
	case inner == "" && version == "v1":
		inner, version = "", ""
	case inner == "" || apiVersion(inner) != version:
		return objects
	}
	items, _ := fields["items"].([]any)
	for _, one := range items {
		objects = collect(objects, one, inner, version, depth-1)
	}
	return objects
}

func appendObject(objects []Object, kind string, fields map[string]any) []Object {
	o := Object{kind: kind, name: "<unnamed>"}
	if meta, ok := fields["metadata"].(map[string]any); ok {
		if name, ok := meta["name"].(string); ok && name != "" {
			o.name = name
		}
	}
	if kind == KindImage && o.name != imageName {
		return objects
	}
	spec, ok := o.object(fields["spec"], "spec")
	if !ok {
		return append(objects, o)
	}
	switch kind {
	case KindDigestMirrorSet:
		o.readLists(spec, "imageDigestMirrors", "source", "mirrors", "mirrorSourcePolicy")
	case KindTagMirrorSet:
		o.readLists(spec, "imageTagMirrors", "source", "mirrors", "mirrorSourcePolicy")
	case KindContentSourcePolicy:
		o.readLists(spec, "repositoryDigestMirrors", "source", "mirrors")
	case KindImage:
		o.readSources(spec)
	}
	return append(objects, o)
}

func (o *Object) reject(field, format string, args ...any) {
	o.rejected = append(o.rejected, Problem{Kind: o.kind, Name: o.name, Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (o *Object) readLists(spec map[string]any, field string, known ...string) {
	o.unknown(spec, "spec", field)
	path := "spec." + field
	for i, value := range o.array(spec[field], path) {
		at := path + "[" + strconv.Itoa(i) + "]"
		entry, ok := o.object(value, at)
		if !ok {
			continue
		}
		if l, ok := o.readList(entry, at, known); ok {
			o.lists = append(o.lists, l)
		}
	}
}

// readList reads one entry. A bad source takes the entry with it, a bad mirror
// only itself.
func (o *Object) readList(entry map[string]any, at string, known []string) (list, bool) {
	o.unknown(entry, at, known...)
	source, ok := o.scope(entry["source"], at+".source", roleSource)
	if !ok {
		return list{}, false
	}
	l := list{source: source}
	for i, value := range o.array(entry["mirrors"], at+".mirrors") {
		if m, ok := o.scope(value, at+".mirrors["+strconv.Itoa(i)+"]", roleMirror); ok {
			l.mirrors = append(l.mirrors, m)
		}
	}
	if !slices.Contains(known, "mirrorSourcePolicy") {
		return l, true
	}
	l.policy.field = at + ".mirrorSourcePolicy"
	switch word := entry["mirrorSourcePolicy"].(type) {
	case nil:
	case string:
		switch word {
		case "", policyAllow, policyNever:
			l.policy.text = word
		default:
			o.reject(l.policy.field, "%s is neither %s nor %s", provider.Quote(word), policyAllow, policyNever)
		}
	default:
		o.reject(l.policy.field, "a string is needed, not %s", typeName(word))
	}
	return l, true
}

// readSources reads what an Image says about registries. Its other fields
// belong to others and are not judged.
func (o *Object) readSources(spec map[string]any) {
	const path = "spec.registrySources"
	sources, ok := o.object(spec["registrySources"], path)
	if !ok {
		return
	}
	o.unknown(sources, path, "insecureRegistries", "blockedRegistries", "allowedRegistries", "containerRuntimeSearchRegistries")
	read := func(field string, as role) []item {
		var out []item
		at := path + "." + field
		for i, value := range o.array(sources[field], at) {
			if it, ok := o.scope(value, at+"["+strconv.Itoa(i)+"]", as); ok {
				out = append(out, it)
			}
		}
		return out
	}
	o.insecure = read("insecureRegistries", roleScope)
	o.blocked = read("blockedRegistries", roleScope)
	o.allowed = read("allowedRegistries", roleScope)
	o.search = read("containerRuntimeSearchRegistries", roleSearch)
}

func (o *Object) scope(value any, field string, as role) (item, bool) {
	text, ok := value.(string)
	if !ok && value != nil {
		o.reject(field, "a string is needed, not %s", typeName(value))
		return item{}, false
	}
	if reason := objection(text, as); reason != "" {
		o.reject(field, "%s is rejected: %s", provider.Quote(text), reason)
		return item{}, false
	}
	return item{text: text, field: field}, true
}

func (o *Object) object(value any, field string) (map[string]any, bool) {
	if value == nil && !strings.HasSuffix(field, "]") {
		return nil, false
	}
	fields, ok := value.(map[string]any)
	if !ok {
		o.reject(field, "an object is needed, not %s", typeName(value))
	}
	return fields, ok
}

func (o *Object) array(value any, field string) []any {
	if value == nil {
		return nil
	}
	items, ok := value.([]any)
	if !ok {
		o.reject(field, "a list is needed, not %s", typeName(value))
	}
	return items
}

// unknown rejects the fields that are not known: a misspelt policy must not
// pass for none.
func (o *Object) unknown(fields map[string]any, at string, known ...string) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			o.reject(at+"."+printable(name), "this field is not known")
		}
	}
}

// printable gives a field name that keeps a message on one line.
func printable(name string) string {
	if quoted := provider.Quote(name); quoted != `"`+name+`"` || strings.Contains(name, " ") {
		return strings.ReplaceAll(quoted, " ", `\x20`)
	}
	return name
}

func typeName(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "a number"
}

// documents splits a file and parses each document.
func documents(f NamedFile) ([]any, error) {
	if len(f.Data) > FileLimit {
		return nil, fmt.Errorf("%s: larger than %d bytes", f.Name, FileLimit)
	}
	text := bytes.TrimPrefix(f.Data, []byte("\xef\xbb\xbf"))
	// Tabs are white space in JSON and not in YAML.
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		var doc any
		strict, err := kjson.UnmarshalStrict(trimmed, &doc)
		if err == nil && len(strict) == 0 {
			return []any{doc}, nil
		}
		if err == nil {
			return nil, fmt.Errorf("%s:1: %w", f.Name, errors.Join(strict...))
		}
	}
	var docs []any
	for _, part := range split(text) {
		converted, err := yaml.YAMLToJSONStrict(part.text)
		if err != nil {
			return nil, yamlError(f.Name, part.line, err)
		}
		var doc any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(converted, &doc); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", f.Name, part.line, err)
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

// part is one document and the number of its first line.
type part struct {
	text []byte
	line int
}

// split cuts a YAML stream at its document markers, which stand at the
// beginning of a line whatever surrounds them.
func split(text []byte) []part {
	var parts []part
	current := part{line: 1}
	number, onlyDirectives := 0, true
	flush := func(next int) {
		if !onlyDirectives {
			parts = append(parts, current)
		}
		current, onlyDirectives = part{line: next}, true
	}
	for line := range bytes.Lines(text) {
		number++
		bare := bytes.TrimRight(line, " \t\r\n")
		if marker(bare, "---") {
			flush(number)
			// What follows the marker on its line belongs to the document.
			line = append([]byte("   "), line[3:]...)
			bare = bytes.TrimSpace(bare[3:])
		} else if marker(bare, "...") {
			flush(number + 1)
			continue
		}
		if start := bytes.TrimLeft(bare, " \t"); len(start) > 0 && start[0] != '#' && bare[0] != '%' {
			onlyDirectives = false
		}
		if onlyDirectives && len(bare) > 0 && bare[0] == '%' {
			line = []byte("\n")
		}
		current.text = append(current.text, line...)
	}
	flush(number + 1)
	return parts
}

func marker(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t')
}

var lineNumber = regexp.MustCompile(`line (\d+): `)

// yamlError moves the line that the parser names, which it counts from the
// beginning of the document, to the front and to the file's own count.
func yamlError(file string, first int, err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.TrimPrefix(text, "yaml: ")
	line := first
	if at := lineNumber.FindStringSubmatchIndex(text); at != nil {
		if n, convErr := strconv.Atoi(text[at[2]:at[3]]); convErr == nil {
			line = first + n - 1
		}
		text = text[:at[0]] + text[at[1]:]
		if strings.HasPrefix(text, "did not find expected") {
			line++ // the parser counts these from zero
		}
	}
	return fmt.Errorf("%s:%d: %s", file, line, text)
}
