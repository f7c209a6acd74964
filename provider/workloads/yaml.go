package workloads

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"

	"go.yaml.in/yaml/v3"

	"github.com/archkeeper/archkeeper/provider"
)

// decodeYAML reads a stream of documents.
//
// The library parses; the values are built here, because its own way takes time
// that grows with the square of a mapping's length, and tells no line for a key
// that is no text.
func decodeYAML(data []byte) (documents []document, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	// Without aliases a document has fewer nodes than bytes.
	const aliasFactor, aliasFloor = 8, 10_000
	builder := builder{nodes: aliasFactor*len(data) + aliasFloor}
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, describe(err, faultyLine(data, err))
		}
		value, err := builder.value(&node)
		if err != nil {
			return nil, err
		}
		documents = append(documents, document{line: firstLine(&node), value: value})
	}
}

// yamlError is the form of the YAML library's messages: the first fault is kept.
var yamlError = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s+)?(?:line \d+: )?([^\n]*)`)

// describe gives the first fault of the library's error with its line.
func describe(err error, line int) error {
	return fault{line, provider.Printable(yamlError.FindStringSubmatch(err.Error())[1])}
}

// faultyLine gives the line with which the library's error comes up: the number
// in its message is that of a line before the construct in which the fault is,
// or missing. So many lines are read as give the very same error; the error of
// a construct that is open at the end is thus where it begins.
func faultyLine(data []byte, err error) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	return 1 + sort.Search(len(lines)-1, func(n int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(bytes.Join(lines[:n+1], nil)))
		for {
			var node yaml.Node
			if found := decoder.Decode(&node); found != nil {
				return found.Error() == err.Error()
			}
		}
	})
}

func firstLine(node *yaml.Node) int {
	if len(node.Content) > 0 {
		return node.Content[0].Line
	}
	return max(node.Line, 1)
}

// scalar is a value that is neither text nor null: a number, a truth value.
type scalar string

// builder makes values of nodes: map[string]any, []any, string, nil, scalar.
type builder struct {
	nodes int // that may still be visited
}

func (b *builder) value(node *yaml.Node) (any, error) {
	if b.nodes--; b.nodes < 0 {
		return nil, fault{node.Line, "the document grows without bound through its aliases"}
	}
	switch node.Kind {
	case yaml.DocumentNode:
		return b.value(node.Content[0])
	case yaml.AliasNode:
		return b.value(node.Alias)
	case yaml.SequenceNode:
		list := make([]any, 0, len(node.Content))
		for _, element := range node.Content {
			value, err := b.value(element)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		return list, nil
	case yaml.MappingNode:
		return b.mapping(node)
	case yaml.ScalarNode:
		switch node.ShortTag() {
		case "!!str":
			return node.Value, nil
		case "!!null":
			return nil, nil
		}
		return scalar(node.Value), nil
	}
	return nil, nil // a document without content
}

const mergeTag = "!!merge"

func (b *builder) mapping(node *yaml.Node) (any, error) {
	fields := make(map[string]any, len(node.Content)/2)
	var merged []any
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, fault{node.Content[i].Line, "a key is no text (a template that was not rendered?)"}
		}
		value, err := b.value(node.Content[i+1])
		if err != nil {
			return nil, err
		}
		if key.ShortTag() == mergeTag {
			merged = append(merged, value)
			continue
		}
		if _, twice := fields[key.Value]; twice {
			return nil, fault{node.Content[i].Line, "the key " + provider.Quote(key.Value) + " is there twice"}
		}
		fields[key.Value] = value
	}
	merge(fields, merged)
	return fields, nil
}

// merge adds the fields of << that are not there, the first source winning.
func merge(fields map[string]any, sources []any) {
	for _, source := range sources {
		switch source := source.(type) {
		case []any:
			merge(fields, source)
		case map[string]any:
			for key, value := range source {
				if _, there := fields[key]; !there {
					fields[key] = value
				}
			}
		}
	}
}
