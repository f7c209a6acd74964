// Package document reads files that hold one document of YAML or JSON.
package document

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// What a file can have too much or too little of.
var (
	ErrSeveral = errors.New("it holds several documents where one is wanted")
	ErrEmpty   = errors.New("it is empty")
)

// One gives the one document of a file as JSON. Documents without content do not
// count. Keys that are given twice are an error, as is any second document; an error
// names the line of the file.
func One(file []byte) (json.RawMessage, error) {
	var found json.RawMessage
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(file)))
	for rest := file; ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		// The lines before it are put back, for the sake of errors.
		at := max(0, bytes.Index(rest, document))
		lines := bytes.Count(file[:len(file)-len(rest)+at], []byte("\n"))
		rest = rest[min(len(rest), at+len(document)):]
		raw, err := yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte("\n"), lines), document...))
		if err != nil {
			return nil, err
		}
		if string(raw) == "null" {
			continue
		}
		if found != nil {
			return nil, ErrSeveral
		}
		found = raw
	}
	if found == nil {
		return nil, ErrEmpty
	}
	return found, nil
}
