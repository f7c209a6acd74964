// Package document reads files of YAML or JSON, one document or several, and says
// on which line of the file a fault is.
package document

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// What a file can have too much or too little of.
var (
	ErrSeveral = errors.New("it holds several documents where one is wanted")
	ErrEmpty   = errors.New("it is empty")
)

// Document is one of the documents of a file, as JSON.
type Document struct {
	// Line of the file, from 1, on which the document begins, comments and empty
	// lines before it left out.
	Line int
	JSON json.RawMessage
}

// One gives the one document of a file as JSON. Documents without content do not
// count. Keys that are given twice are an error, as is any second document; an error
// names the line of the file.
func One(file []byte) (json.RawMessage, error) {
	var found json.RawMessage
	for part, err := range parts(file) {
		if err != nil {
			return nil, err
		}
		raw, err := part.json()
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

// All gives the documents of a file, in their order: YAML documents, and JSON
// values behind each other. Those without content are left out. Keys that are
// given twice in YAML are an error; an error names the line of the file.
func All(file []byte) ([]Document, error) {
	var all []Document
	for part, err := range parts(file) {
		if err != nil {
			return nil, err
		}
		if values, ok := part.values(); ok {
			all = append(all, values...)
			continue
		}
		raw, err := part.json()
		if err != nil {
			return nil, err
		}
		if string(raw) != "null" {
			all = append(all, Document{Line: 1 + part.lines + blank(part.text), JSON: raw})
		}
	}
	return all, nil
}

// part is what stands between two separators, and how many lines are before it.
type part struct {
	text  []byte
	lines int
}

func parts(file []byte) iter.Seq2[part, error] {
	return func(yield func(part, error) bool) {
		reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(file)))
		for rest, lines := file, 0; ; {
			text, err := reader.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(part{}, err)
				return
			}
			at := max(0, bytes.Index(rest, text))
			lines += bytes.Count(rest[:at], []byte("\n"))
			this := part{text: text, lines: lines}
			// The reader leaves a separator that nothing comes before in the text.
			if first, behind, _ := bytes.Cut(text, []byte("\n")); bytes.HasPrefix(first, []byte("---")) {
				this = part{text: behind, lines: lines + 1}
			}
			if !yield(this, nil) {
				return
			}
			end := min(len(rest), at+len(text))
			lines += bytes.Count(rest[at:end], []byte("\n"))
			rest = rest[end:]
		}
	}
}

// json reads a part as YAML.
func (p part) json() (json.RawMessage, error) {
	raw, err := yaml.YAMLToJSONStrict(p.text)
	if err == nil {
		return raw, nil
	}
	// Once more behind as many lines as are before it, for the error's sake.
	if _, placed := yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte("\n"), p.lines), p.text...)); placed != nil {
		err = placed
	}
	return nil, err
}

// values reads a part as JSON; ok is false when it is something else.
func (p part) values() (values []Document, ok bool) {
	if text := bytes.TrimLeft(p.text, " \t\r\n"); len(text) == 0 || text[0] != '{' {
		return nil, false
	}
	decoder := json.NewDecoder(bytes.NewReader(p.text))
	for {
		start := decoder.InputOffset()
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return values, true
		}
		if err != nil {
			return nil, false
		}
		before := bytes.Count(p.text[:start], []byte("\n"))
		values = append(values, Document{Line: 1 + p.lines + before + blank(p.text[start:]), JSON: raw})
	}
}

// blank is how many lines of a text come before its content.
func blank(text []byte) (n int) {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			break
		}
		n++
	}
	return n
}
